"""The geometric median: numbers by hand, and its objective beside a minimum found otherwise."""

from math import cos, radians, sin, sqrt
from typing import Any

import pytest
import torch
from rules import answer, column, draw, view_of
from scipy.optimize import minimize
from torch import Tensor

from fedbench_defenses.geometric_median import GeometricMedian


def test_the_geometric_median_of_three_rows_sees_them_under_equal_angles() -> None:
    # (-1, 0), (1, 0), (0, 10): 120 degrees apart at (0, 1 / sqrt 3). The mean has 10 / 3 there, the
    # median 0; the first step starts on the row (-1, 0), which is nearest to all.
    x = torch.tensor([[-1.0, 0.0], [1.0, 0.0], [0.0, 10.0]])
    assert answer(GeometricMedian(), x).tolist() == pytest.approx([0, 1 / sqrt(3)], abs=1e-4)
    # That step: the others pull by (1.0995, 0.9950), 1.4829, of which the row itself holds 1, so
    # 0.3256 of the way to their mean by 1/2 and 1/10.05, (0.8340, 1.6597).
    first = answer(GeometricMedian(iterations=1), x).tolist()
    assert first == pytest.approx([-1 + 0.3256 * 1.8340, 0.3256 * 1.6597], abs=1e-3)
    # Lower than that the third row is the answer, and the iterates end on it.
    x[2, 1] = 0.25
    assert answer(GeometricMedian(), x).tolist() == pytest.approx([0, 0.25], abs=1e-6)
    # Smoothed it is RFA's. Of 0, 1, 10 with 2: z / 2 + (z - 1) / 2 = 1, so z = 1.5; not smoothed
    # the median is 1, the mean 11 / 3.
    assert answer(GeometricMedian(smooth=2.0), column(0, 1, 10)).item() == pytest.approx(1.5, 1e-4)
    assert answer(GeometricMedian(), column(0, 1, 10)).item() == pytest.approx(1.0)


def rfa(x: Tensor, z: Tensor, smooth: float = 0.0) -> float:
    """The smoothed sum of distances: ``t^2 / 2 smooth + smooth / 2`` below ``smooth``."""
    far = torch.linalg.vector_norm(x.double() - z, dim=1)
    near = far**2 / (2 * max(smooth, 1e-300)) + smooth / 2
    return float(torch.where(far < smooth, near, far).sum())


def least(x: Tensor, smooth: float = 0.0) -> float:
    """The minimum of `rfa` that SciPy finds from the best row and from the mean, in float64."""
    rows = x.double()
    best = min(rows, key=lambda row: rfa(x, row, smooth))
    minima = [rfa(x, best, smooth)]
    for start in (best + 1e-3 * rows.std(), rows.mean(dim=0)):

        def both(z: Any) -> tuple[float, Any]:
            away = torch.from_numpy(z) - rows
            far = torch.linalg.vector_norm(away, dim=1, keepdim=True).clamp_min(max(smooth, 1e-12))
            return rfa(x, torch.from_numpy(z), smooth), (away / far).sum(dim=0).numpy()

        minima.append(float(minimize(both, start.numpy(), jac=True, options={"gtol": 1e-9}).fun))
    return min(minima)


@pytest.mark.parametrize("smooth", [0.0, 1.5])
@pytest.mark.parametrize("kind", ["apart", "duplicates", "grid", "line", "far", "moved"])
def test_the_geometric_median_is_a_minimum_to_a_millionth(kind: str, smooth: float) -> None:
    for seed in range(8):
        x = draw(seed, 4 + 3 * seed, 1 + seed % 4)
        n = len(x)
        if kind == "duplicates":  # few places, with unequally many rows in each
            x = x[torch.arange(n) ** 2 % (2 + n // 4)]
        elif kind == "grid":
            x = x.round()
        elif kind == "line":  # any point between the two middle rows is a median
            x = x[:, :1] * torch.tensor([[3.0, -1.0]])
        elif kind == "far":
            x[: (n - 1) // 2] *= 1e4
        elif kind == "moved":
            x = x + 1000
        shown = view_of(x)
        out = answer(GeometricMedian(smooth=smooth), x, shown)
        assert "stopped" not in shown.findings.notes
        minimum = least(x, smooth)
        rounding = n * float(x.abs().max()) * 2**-23  # of the answer to float32
        assert rfa(x, out.double(), smooth) <= (1 + 1e-6) * minimum + rounding


@pytest.mark.parametrize("angle", [59.0, 59.9, 59.99, 60.01])
def test_a_median_close_to_a_row_is_told_from_it(angle: float) -> None:
    # Seen from (0, 0) the others are 2 angles apart. Up to 120 degrees the point that sees all
    # three under 120 is (cos - sin / sqrt 3, 0), 3.5e-4 for 59.99; beyond, it is the row itself.
    # Weiszfeld's steps alone leave the row ever more slowly.
    c, s = cos(radians(angle)), sin(radians(angle))
    x = torch.tensor([[0.0, 0.0], [c, s], [c, -s]])
    expected = max(c - s / sqrt(3), 0)
    found = answer(GeometricMedian(tolerance=1e-9), x).tolist()
    assert found == pytest.approx([expected, 0], abs=1e-6)
    # Row 0 three times, and the others five and six times: held by 3, pulled by 5 and 6.
    x = x[[0, 0, 0, *[1] * 5, *[2] * 6]]
    shown = view_of(x)
    out = answer(GeometricMedian(), x, shown)
    assert rfa(x, out) <= (1 + 1e-6) * least(x)
    assert float(shown.findings.notes["gap"]) <= 1e-6


def test_a_search_that_stops_too_soon_says_so() -> None:
    x = draw(0, 9, 4)
    shown = view_of(x)
    out = answer(GeometricMedian(iterations=1), x, shown)
    error = rfa(x, out) / least(x) - 1
    assert 1e-6 < error <= float(shown.findings.notes["gap"])
    assert "1 steps did not find" in str(shown.findings.notes["stopped"])


SCALES = pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])


@SCALES
@pytest.mark.parametrize("kind", ["apart", "duplicates"])
def test_the_objective_is_the_least_to_a_millionth_in_any_unit(kind: str, scale: float) -> None:
    # Rows in float64, so that the answer is not rounded. `least` may be above the minimum by its
    # own error, 1e-12 or so, and the gap, a bound that needs no minimum, says the same.
    for seed in range(4):
        x = draw(seed, 4 + 3 * seed, 2 + seed % 4).double()
        if kind == "duplicates":
            x = x[torch.arange(len(x)) ** 2 % (3 + len(x) // 4)]
        shown = view_of(scale * x)
        out = answer(GeometricMedian(), scale * x, shown)
        assert rfa(scale * x, out) <= (1 + 1e-6) * scale * least(x)
        assert float(shown.findings.notes["gap"]) <= 1e-6


@SCALES
def test_on_a_line_the_objective_is_that_of_the_median_of_the_places(scale: float) -> None:
    # F is sqrt(10) times the sum of distances along the line; every point between the two middle
    # rows of an even number has the least. The mean's F is larger by a tenth and more.
    direction = torch.tensor([[3.0, -1.0]], dtype=torch.float64)
    for n in (5, 8, 13, 20):
        places = draw(n, n, 1).double()
        x = scale * (2 + places * direction)
        exact = scale * sqrt(10) * float((places - places.quantile(0.5)).abs().sum())
        assert rfa(x, answer(GeometricMedian(), x)) <= (1 + 1e-6) * exact
        assert rfa(x, x.mean(dim=0)) > (1 + 1e-3) * exact


@SCALES
def test_a_row_that_the_others_pull_by_no_more_than_1_is_the_median_itself(scale: float) -> None:
    # Unit vectors from (0, 0, 0) to the others: (0.6, 0.8, 0), (-0.6, 0.8, 0), (0, -1, 0), (0, 0,
    # 1) and (0, 0, -1), which add up to (0, 0.6, 0), whatever the lengths 5, 10, 2, 3 and 7.
    x = [[3.0, 4, 0], [-6, 8, 0], [0, -2, 0], [0, 0, 0], [0, 0, 3], [0, 0, -7]]
    rows = scale * (torch.tensor(x, dtype=torch.float64) + 100)
    out = answer(GeometricMedian(), rows)
    assert rfa(rows, out) == pytest.approx(27 * scale, rel=1e-6)
    torch.testing.assert_close(out, rows[3], rtol=0, atol=1e-9 * scale)
    # Without (0, -2, 0) they pull by 1.6: it is not.
    moved = answer(GeometricMedian(), rows[[0, 1, 3, 4, 5]])
    assert float((moved - rows[3]).norm()) > 0.1 * scale


@SCALES
def test_a_place_of_half_of_the_rows_is_the_median(scale: float) -> None:
    # Three rows at (1, 1) hold by 3 against three others, however far; the mean is 50 away.
    x = [[1.0, 1], [301, 1], [1, 1], [2, 500], [1, 1], [0, 0]]
    rows = scale * torch.tensor(x, dtype=torch.float64)
    torch.testing.assert_close(answer(GeometricMedian(), rows), rows[0], rtol=1e-9, atol=0)
