"""FedPM's Figure 5: the paper's numbers, where they come from, and what they are worth."""

import json
import math
from pathlib import Path

import chart
import figure5
import numpy as np
import pytest
from figure5 import DATA, EXACT, C, D, N, estimates, exact_sigma, simulate

from fedbench.core.rng import Key
from fedbench.privacy.amplification import marginal, paper_rdp, r_alpha
from fedbench.privacy.conversion import ORDERS, Floats, rdp_to_dp

KEY, DELTA = Key(0).fold("figure5"), 1e-4
AT = {epsilon: exact_sigma(epsilon, DELTA) or math.nan for epsilon in (1.0, 4.0, 6.0)}


def test_the_caps_are_8_96_at_order_five_and_6_93_at_the_best() -> None:
    by_order = {
        a: figure5.rdp_to_dp_mironov([a], D * r_alpha([a], C), DELTA)[0] for a in range(2, 100)
    }
    assert [a for a, epsilon in by_order.items() if round(epsilon, 2) == 8.96] == [5]
    assert figure5.printed_cap(DELTA) == by_order[5]
    assert figure5.honest_cap(DELTA) == pytest.approx(6.931, abs=5e-4)
    assert figure5.honest_cap(1e-300) == pytest.approx(5 * math.log(4))  # it needs no delta
    assert figure5.honest_cap(0.1) < 6.6  # but has one
    for epsilon, sigma in AT.items():
        assert figure5.exact_epsilon(sigma, DELTA) == pytest.approx(epsilon, rel=1e-9)
    assert figure5.exact_epsilon(0.0, DELTA) == pytest.approx(6.93117, abs=5e-6)
    assert exact_sigma(6.932, DELTA) is None


# reference notes 3.5 (i): claimed, sigma, true Gaussian, exact
TABLE = [
    *[(0.5, 11.66, 0.323, 0.120), (1, 5.83, 0.705, 0.243), (2, 2.91, 1.545, 0.489)],
    *[(4, 1.457, 3.451, 0.973), (6, 0.971, 5.610, 1.442), (8, 0.728, 8.002, 1.888)],
    *[(9, 0.648, 9.284, 2.101), (12, 0.486, 13.46, 2.694), (16, 0.364, 19.80, 3.366)],
    *[(32, 0.182, 53.73, 4.906), (64, 0.091, 162, 5.864)],
]


def test_figure_5_claims_too_little_above_8_and_masks_cost_less_than_it_says() -> None:
    """Erratum E4: ``sigma = Delta sqrt(2 ln(1.25/delta)) / eps`` is a theorem for eps < 1 only."""
    for claimed, sigma, gaussian, exact in TABLE:
        noise = figure5.classical_sigma(claimed, DELTA)
        assert noise == pytest.approx(sigma, rel=2e-3)
        prices = figure5.epsilons(noise, DELTA)
        assert prices["claimed"] == pytest.approx(claimed)
        assert prices["gaussian"] == pytest.approx(gaussian, rel=3e-3)
        assert (prices["gaussian"] > claimed) == (claimed > 7.9)
        assert prices["claimed-min"] == pytest.approx(min(claimed, 8.96), abs=5e-3)
        assert prices["exact"] == pytest.approx(exact, abs=6e-4)
        assert prices["exact"] <= prices["honest-min"] <= min(prices["gaussian"], 6.9315)
        assert prices["honest-min"] <= rdp_to_dp(ORDERS, paper_rdp(ORDERS, D, noise, C), DELTA)[0]


def expected_errors(data: str, sigma: float) -> dict[str, float]:
    """Closed forms of the expected errors, by quadrature over ``theta``."""
    if data == "uniform":
        nodes, weights = np.polynomial.legendre.leggauss(200)
        theta, weight = 0.5 + 0.3 * nodes, weights / 2
    else:
        theta, weight = np.array([0.2, 0.8]), np.array([0.85, 0.15])

    def error(p: Floats, scale: float = 1.0) -> float:
        estimate = 0.5 + (p - 0.5) / scale
        bias = weight @ (estimate - theta)
        spread = weight @ (estimate - theta) ** 2 - bias**2
        return float(D * (weight @ (p * (1 - p)) / scale**2 / N + spread / N + bias**2))

    k, mean = figure5.affine_slope(sigma), weight @ theta
    constant = D * ((weight @ theta**2 - mean**2) / N + (mean - 0.5) ** 2)
    return {
        "raw": error(marginal(theta, sigma, C)),
        "affine": error(0.5 + k * (theta - 0.5), k),
        "no-dp": error(theta),
        "constant": float(constant),
    }


# reference notes 3.7 (7), the paper's setting; theirs was a simulation, too
EQUAL = {
    1.0: {"raw": 0.0134, "inverted": 0.232, "affine": 0.453, "affine-clipped": 0.235},
    4.0: {"raw": 0.0119, "inverted": 0.0240, "affine": 0.0295},
    6.0: {"raw": 0.0111, "inverted": 0.0111, "affine": 0.0139},
}


def test_simulated_errors_are_their_closed_forms_and_the_references_and_the_constant_wins() -> None:
    tables = {sigma: estimates(sigma) for sigma in AT.values()}
    for data in DATA:
        errors, controls = simulate(data, tables, 2000, KEY)
        for sigma, measured in errors.items():
            for name, expected in expected_errors(data, sigma).items():
                mean, se = (controls | measured)[name]
                assert abs(mean - expected) < 5 * se, (data, sigma, name)
                assert se < 0.03 * mean
        best = min(mean for found in [controls, *errors.values()] for mean, _ in found.values())
        assert (controls["constant"][0] == best) == (data == "uniform")
        for epsilon, references in EQUAL.items() if data == "uniform" else ():
            for name, reference in references.items():
                mean, se = errors[AT[epsilon]][name]
                assert abs(mean - reference) < 7 * se, (epsilon, name)


def test_the_printed_correction_is_the_nearest_theta_of_a_formula_that_may_fall() -> None:
    share, table = np.arange(N + 1) / N, estimates(0.5)["printed"]
    low, high = figure5.printed_mean(np.array([C, 1 - C]), 0.5, C)
    inside = (share > low) & (share < high)
    back = figure5.printed_mean(table[inside], 0.5, C)
    assert back == pytest.approx(share[inside], abs=2e-4)
    # sigma = 2: falls from 0.934 to 0.402, so that a large share says "small theta"
    assert (estimates(2.0)["printed"][95], estimates(2.0)["printed"][40]) == (C, 1 - C)


def test_a_figure_has_all_points_and_every_curve_is_drawn() -> None:
    small = figure5.play(DELTA, 0, 3)
    assert [p.epsilons["exact"] for p in small.equal] == pytest.approx(list(EXACT))
    assert [p.invertible for p in small.claims] == [False] * 5 + [True] * 6
    for axes, data in zip(chart.compose(small).axes, DATA, strict=True):
        for curve in (curve for curves in chart.CURVES.values() for curve in curves):
            xs = {p.epsilons[curve.epsilon]: p.errors[data][curve.error][0] for p in small.curve}
            lines = [line for line in axes.lines if line.get_color() == curve.colour]
            drawn = np.concatenate([np.asarray(line.get_xydata()) for line in lines])
            assert xs.items() <= {(x, y) for x, y in drawn.tolist()}, curve


def test_the_command_writes_picture_and_numbers_and_refuses_what_cannot_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figure5.main(["--repetitions", "2", "--out", str(tmp_path / "new")])
    assert "| 0.486 | 12 | 13.46 | 8.955 | 6.931 | 2.694 |" in capsys.readouterr().out
    assert (tmp_path / "new/figure5.png").read_bytes().startswith(b"\x89PNG")
    numbers = json.loads((tmp_path / "new/figure5.json").read_text())
    assert numbers["claims"][6]["epsilons"]["gaussian"] == pytest.approx(9.284, abs=5e-4)
    for words in (["--delta", "0"], ["--repetitions", "1"], ["--out", "/dev/null"]):
        with pytest.raises(SystemExit):
            figure5.main(words)
        assert f"{words[0]} must be" in capsys.readouterr().err
