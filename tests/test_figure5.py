"""FedPM's Figure 5: the paper's numbers, where they come from, and what they are worth."""

import io
import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import typer
from rich.console import Console
from scipy.integrate import quad
from scipy.stats import binom, norm
from typer.testing import CliRunner

from fedbench.cli import figure5 as command
from fedbench.cli.figure5_chart import CURVES, compose
from fedbench.core.errors import ConfigError
from fedbench.core.rng import Key
from fedbench.privacy.amplification import marginal, paper_rdp, r_alpha
from fedbench.privacy.conversion import ORDERS, Floats, rdp_to_dp, rdp_to_dp_mironov
from fedbench.privacy.figure5 import (
    CLAIMED,
    DATA,
    EXACT,
    GRID,
    SENSITIVITY,
    C,
    D,
    Error,
    Figure5,
    N,
    affine_slope,
    classical_sigma,
    draw,
    epsilons,
    estimate_from,
    estimates,
    exact_epsilon,
    exact_sigma,
    honest_cap,
    invertible,
    play,
    printed_cap,
    simulate,
)
from fedbench.privacy.inverse import inverse_marginal, printed_mean

KEY, DELTA, REPETITIONS = Key(0).fold("figure5"), 1e-4, 2000
AT = {epsilon: exact_sigma(epsilon, DELTA) or math.nan for epsilon in (1.0, 4.0, 6.0)}
TABLES = {sigma: estimates(sigma) for sigma in AT.values()}


@pytest.fixture(scope="module")
def small() -> Figure5:
    return play(DELTA, 0, 3)


@pytest.fixture(scope="module", params=list(DATA))
def simulated(
    request: pytest.FixtureRequest,
) -> tuple[str, dict[float, dict[str, Error]], dict[str, Error]]:
    errors, controls = simulate(request.param, TABLES, REPETITIONS, KEY)
    return request.param, errors, controls


def test_the_last_line_of_the_paper_is_not_the_integral_that_it_ends() -> None:
    # E2: theta = 0.25, sigma = 2, c = 0.2, by quadrature of clip(theta + sigma Z, c, 1-c)
    def clipped(z: float) -> float:
        return float(np.clip(0.25 + 2 * z, C, 1 - C) * norm.pdf(z))

    edges = [(C - 0.25) / 2, (1 - C - 0.25) / 2]
    truth = quad(clipped, -12, 12, points=edges, limit=200)[0]
    assert float(marginal(0.25, 2.0, C)) == pytest.approx(truth, abs=1e-9)
    assert truth == pytest.approx(0.470, abs=5e-4)
    assert float(printed_mean(np.array(0.25), 2.0, C)) == pytest.approx(0.914, abs=5e-4)


def test_8_96_is_order_five_with_its_conversion_and_the_best_order_gives_6_93() -> None:
    by_order = {a: rdp_to_dp_mironov([a], D * r_alpha([a], C), DELTA)[0] for a in range(2, 100)}
    assert [a for a, epsilon in by_order.items() if round(epsilon, 2) == 8.96] == [5]
    assert printed_cap(DELTA) == by_order[5] == pytest.approx(8.9551, abs=5e-5)
    assert (D * r_alpha(np.geomspace(1.01, 1e6, 200), C) <= 5 * math.log(4) + 1e-12).all()
    assert honest_cap(DELTA) == pytest.approx(6.931, abs=5e-4)
    assert honest_cap(1e-300) == pytest.approx(5 * math.log(4))  # it needs no delta
    assert honest_cap(0.1) < 6.6  # but has one


# reference notes 3.5 (i): claimed, sigma, true Gaussian, the paper's minimum, exact
TABLE = [
    (0.5, 11.66, 0.323, 0.5, 0.120),
    (1.0, 5.83, 0.705, 1.0, 0.243),
    (2.0, 2.91, 1.545, 2.0, 0.489),
    (4.0, 1.457, 3.451, 4.0, 0.973),
    (6.0, 0.971, 5.610, 6.0, 1.442),
    (8.0, 0.728, 8.002, 8.0, 1.888),
    (9.0, 0.648, 9.284, 8.96, 2.101),
    (12.0, 0.486, 13.46, 8.96, 2.694),
    (16.0, 0.364, 19.80, 8.96, 3.366),
    (32.0, 0.182, 53.7, 8.96, 4.906),
    (64.0, 0.091, 162.0, 8.96, 5.864),
]


@pytest.mark.parametrize(("claimed", "sigma", "gaussian", "minimum", "exact"), TABLE)
def test_epsilons_are_those_of_the_reference_table(
    claimed: float, sigma: float, gaussian: float, minimum: float, exact: float
) -> None:
    assert claimed in CLAIMED
    noise = classical_sigma(claimed, DELTA)
    assert noise == pytest.approx(sigma, rel=2e-3)
    found = epsilons(noise, DELTA)
    assert found["claimed"] == pytest.approx(claimed)
    assert found["gaussian"] == pytest.approx(gaussian, rel=4e-3)
    assert found["claimed-min"] == pytest.approx(minimum, abs=5e-3)
    assert found["exact"] == pytest.approx(exact, abs=6e-4)
    assert found["exact"] <= found["honest-min"] <= min(found["gaussian"], 6.9315)


def test_the_noise_of_the_paper_is_enough_at_8_and_too_little_at_9() -> None:
    # E4: its theorem is for epsilon < 1
    gap = {e: epsilons(classical_sigma(e, DELTA), DELTA)["gaussian"] - e for e in (0.9, 7.0, 9.0)}
    assert max(gap[0.9], gap[7.0]) < 0
    assert gap[9.0] > 0.28


@pytest.mark.parametrize(("sigma", "delta"), [(SENSITIVITY, 1e-5), (0.7, 1e-4), (0.3, 0.3)])
def test_the_honest_minimum_is_no_more_than_the_papers_bound_at_its_best_order(
    sigma: float, delta: float
) -> None:
    paper = rdp_to_dp(ORDERS, paper_rdp(ORDERS, D, sigma, C), delta)[0]
    found = epsilons(sigma, delta)
    assert found["exact"] < found["honest-min"] <= paper
    if delta == 1e-5:  # reference notes 3.5 (ii), z = 1: Gaussian 4.377, paper's bound 4.729
        assert (found["honest-min"], paper) == pytest.approx((4.377, 4.729), abs=5e-4)


@pytest.mark.parametrize("epsilon", EXACT)
def test_the_sigma_of_an_exact_epsilon_has_it(epsilon: float) -> None:
    sigma = exact_sigma(epsilon, DELTA)
    assert sigma is not None
    assert exact_epsilon(sigma, DELTA) == pytest.approx(epsilon, rel=1e-9)


def test_no_noise_brings_the_bits_above_their_own_epsilon() -> None:
    assert exact_epsilon(0.0, DELTA) == pytest.approx(6.93117, abs=5e-6)
    assert exact_sigma(6.932, DELTA) is None


@pytest.mark.parametrize("sigma", [0.05, 0.5, 3.0])
def test_affine_bits_cost_what_masks_cost(sigma: float) -> None:
    ends = 0.5 + affine_slope(sigma) * (np.array([C, 1 - C]) - 0.5)
    assert ends == pytest.approx(marginal(np.array([C, 1 - C]), sigma, C), abs=1e-15)


def moments(data: str, sigma: float) -> dict[str, float]:
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

    k, mean = affine_slope(sigma), weight @ theta
    constant = D * ((weight @ theta**2 - mean**2) / N + (mean - 0.5) ** 2)
    return {
        "raw": error(marginal(theta, sigma, C)),
        "affine": error(0.5 + k * (theta - 0.5), k),
        "no-dp": error(theta),
        "constant": float(constant),
    }


def test_simulated_errors_are_their_closed_forms(
    simulated: tuple[str, dict[float, dict[str, Error]], dict[str, Error]],
) -> None:
    data, errors, controls = simulated
    for sigma, found in errors.items():
        known = moments(data, sigma)
        for name, expected in known.items():
            error = (controls | found)[name]
            assert abs(error.mean - expected) < 5 * error.se, (data, sigma, name)
            assert error.se < 0.03 * error.mean


def test_the_error_is_summed_over_coordinates_as_in_the_paper() -> None:
    known = moments("uniform", 1.0)
    assert known["no-dp"] == pytest.approx(0.0110, abs=1e-12)  # 5 (1/4 - 0.36/12) / 100
    assert known["constant"] == pytest.approx(0.0015, abs=1e-12)  # 5 (0.36/12) / 100


def test_the_constant_wins_on_the_data_of_the_paper_and_loses_on_skewed(
    simulated: tuple[str, dict[float, dict[str, Error]], dict[str, Error]],
) -> None:
    data, errors, controls = simulated
    best = min(error.mean for found in [controls, *errors.values()] for error in found.values())
    assert (controls["constant"].mean == best) == (data == "uniform")


# reference notes 3.7 (7), the paper's setting: raw, inverted, affine, affine clipped
EQUAL = {
    1.0: {"raw": 0.0134, "inverted": 0.232, "affine": 0.453, "affine-clipped": 0.235},
    4.0: {"raw": 0.0119, "inverted": 0.0240, "affine": 0.0295},
    6.0: {"raw": 0.0111, "inverted": 0.0111, "affine": 0.0139},
}


def test_errors_at_equal_epsilon_are_those_of_the_reference() -> None:
    errors, _ = simulate("uniform", TABLES, REPETITIONS, KEY)
    for epsilon, sigma in AT.items():
        found = errors[sigma]
        for name, reference in EQUAL[epsilon].items():
            # theirs was a simulation too: 5 standard errors of a difference
            assert abs(found[name].mean - reference) < 7 * found[name].se, (epsilon, name)


# reference notes 3.7 (7), has +0.012 and +0.042 from a simulation of its own
@pytest.mark.parametrize(("sigma", "bias"), [(0.1, 0.018), (1.0, 0.047)])
def test_the_inverse_is_biased_on_skewed_theta_and_affine_bits_are_not(
    sigma: float, bias: float
) -> None:
    def expected(name: str, p: Floats) -> float:
        # clients are alike before theta is drawn: 100 bits of one probability
        return float(binom.pmf(np.arange(N + 1), N, [0.85, 0.15] @ p) @ estimates(sigma)[name])

    theta = np.array([0.2, 0.8])
    found = expected("inverted", marginal(theta, sigma, C)) - 0.29
    assert found == pytest.approx(bias, abs=6e-4)
    affine = 0.5 + affine_slope(sigma) * (theta - 0.5)
    assert expected("affine", affine) == pytest.approx(0.29, abs=1e-12)


def test_each_estimate_reads_its_own_bits() -> None:
    # theta = 0.3 everywhere, sigma = 0.1: masks are ones at 0.308, affine bits at 0.327
    generator = KEY.fold("own").numpy()
    theta = np.full((1000, N, D), 0.3)
    noise, coin = generator.standard_normal(theta.shape), generator.random(theta.shape)
    found = estimate_from(theta, noise, coin, 0.1, estimates(0.1))
    raw, affine = found["raw"], found["affine"]
    se = 0.5 / math.sqrt(theta.size)
    assert raw.mean() == pytest.approx(float(marginal(0.3, 0.1, C)), abs=5 * se)
    assert affine.mean() == pytest.approx(0.3, abs=5 * se / affine_slope(0.1))
    masks = 0.5 + (raw.mean() - 0.5) / affine_slope(0.1)
    assert abs(masks - 0.3) > 10 * se  # which the line before tells apart


def test_skewed_theta_is_skewed_and_uniform_theta_fills_the_cube() -> None:
    skewed, uniform = (draw(data, 200, KEY.fold("draw").numpy()) for data in ("skewed", "uniform"))
    assert skewed.shape == uniform.shape == (200, N, D)
    assert np.unique(skewed) == pytest.approx([0.2, 0.8])
    assert skewed.mean() == pytest.approx(0.29, abs=5 * 0.214 / math.sqrt(skewed.size))
    assert uniform.min() == pytest.approx(0.2, abs=1e-4)
    assert uniform.max() == pytest.approx(0.8, abs=1e-4)
    assert uniform.std() == pytest.approx(0.6 / math.sqrt(12), rel=0.01)


@pytest.mark.parametrize("sigma", [0.1, 0.5, 2.0])
def test_the_right_correction_inverts_the_right_formula_and_stays_in_the_cube(
    sigma: float,
) -> None:
    table, share = estimates(sigma)["inverted"], np.arange(N + 1) / N
    assert table == pytest.approx(inverse_marginal(share, sigma, C))
    low, high = float(marginal(C, sigma, C)), float(marginal(1 - C, sigma, C))
    assert marginal(table, sigma, C) == pytest.approx(np.clip(share, low, high), abs=1e-9)
    assert (table.min(), table.max()) == pytest.approx((C, 1 - C))


def test_the_printed_correction_inverts_the_printed_formula_where_that_has_an_inverse() -> None:
    assert (invertible(0.5), invertible(1.0)) == (True, False)
    table, share = estimates(0.5)["printed"], np.arange(N + 1) / N
    low, high = printed_mean(np.array([C, 1 - C]), 0.5, C)
    inside = (share > low) & (share < high)
    assert printed_mean(table[inside], 0.5, C) == pytest.approx(share[inside], abs=2e-4)
    assert (table[share < low] == C).all()
    assert (table[share > high] == 1 - C).all()
    # sigma = 2: falls from 0.934 to 0.402, so that a large share says "small theta"
    table = estimates(2.0)["printed"]
    assert (table[95], table[40]) == (C, 1 - C)
    assert printed_mean(GRID, 2.0, C)[[0, -1]] == pytest.approx([0.934, 0.402], abs=5e-4)


def test_repetitions_and_seeds_mean_what_they_say() -> None:
    table = estimates(0.5)

    def errors(repetitions: int, seed: int) -> Error:
        return simulate("uniform", {0.5: table}, repetitions, Key(seed))[0][0.5]["raw"]

    assert errors(501, 0) == errors(501, 0) != errors(501, 1)
    # a 501st repetition changes a mean by 1/501 of a squared error
    assert 0 < abs(errors(501, 0).mean - errors(500, 0).mean) < 0.06 / 501
    few, many = errors(500, 0), errors(2000, 0)
    assert few.mean != many.mean  # blocks of draws differ
    assert many.se == pytest.approx(few.se / 2, rel=0.15)


def test_a_figure_has_all_points_and_the_same_draws_in_each(small: Figure5) -> None:
    assert [p.epsilons["claimed"] for p in small.claims] == pytest.approx(list(CLAIMED))
    assert [p.epsilons["exact"] for p in small.equal] == pytest.approx(list(EXACT))
    assert len(small.curve) > 40
    point = small.equal[2]
    alone, _ = simulate("skewed", {point.sigma: estimates(point.sigma)}, 3, KEY)
    found = {name: e for name, e in point.errors["skewed"].items() if name != "no-bits"}
    assert alone == {point.sigma: found}
    for epsilon, error in ((1.0, 0.909), (4.0, 0.0821), (6.0, 0.0423)):
        point = small.equal[EXACT.index(epsilon)]
        assert point.errors["uniform"]["no-bits"].mean == pytest.approx(error, rel=0.01)


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="repetitions must be >= 2, got 1"):
        play(DELTA, 0, 1)
    with pytest.raises(ConfigError, match=r"delta must be in \(0, 1\), got 1.0"):
        play(1.0, 0, 2)
    with pytest.raises(ConfigError, match="--delta must be"):
        command.figure5(delta=0.0, out=tmp_path)
    with pytest.raises(ConfigError, match="--delta must be"):
        command.figure5(delta=math.nan, out=tmp_path)
    with pytest.raises(ConfigError, match="--repetitions must be >= 2, got 1"):
        command.figure5(repetitions=1, out=tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="--out must be a folder"):
        command.figure5(repetitions=10**9, out=tmp_path / "file")  # before hours of work
    assert not list(tmp_path.glob("figure5*"))


def test_the_report_fits_into_80_columns_and_explains_the_numbers(small: Figure5) -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(command.Report(small))
    lines = console.export_text().splitlines()
    assert max(len(line.rstrip()) for line in lines) <= 80
    assert not any("…" in line for line in lines)
    flat = " ".join(" ".join(lines).split())
    assert "6.653 + 2.303 = 8.955" in flat
    assert "The honest value, at the best order, is 6.931." in flat
    assert "claimed 1 is 0.705, 9 is 9.284, 12 is 13.46, 64 is 162.5" in flat
    assert "always saying 1/2" in flat
    row = next(line.split() for line in lines if line.split()[:2] == ["0.486", "12.00"])
    assert row[2:6] == ["13.46", "8.955", "6.931", "2.694"]


def test_a_formula_without_inverse_is_marked(small: Figure5) -> None:
    marked = [command.text(p, "uniform", "printed\ncorr.").endswith("*") for p in small.claims]
    assert marked == [not invertible(p.sigma) for p in small.claims]
    assert marked.index(False) == CLAIMED.index(8.0)


def test_a_correction_helps_where_its_error_is_less(small: Figure5) -> None:
    def wins(name: str) -> str:
        found = [
            f"{claimed:g}"
            for claimed, p in zip(CLAIMED, small.claims, strict=True)
            if p.errors["skewed"][name].mean < p.errors["skewed"]["raw"].mean and claimed < 8.955
        ]
        return ", ".join(found) or "none"

    assert command.helps(small, "skewed", "inverted") == wins("inverted")
    assert command.helps(small, "uniform", "printed") == "none"


@pytest.mark.parametrize("delta", [0.5, 1e-12])
def test_other_deltas_are_told_apart_from_the_papers(delta: float) -> None:
    said = " ".join(command.remarks(play(delta, 0, 2)))
    assert "= 8.955 at delta = 1/N^2" in said
    two = f"At delta = {delta:g} the two are {printed_cap(delta):.3f} and {honest_cap(delta):.3f}."
    assert two in said


def test_what_is_claimed_is_dashed_and_the_first_group_is_the_papers() -> None:
    assert all(c.dashed == c.epsilon.startswith("claimed") for cs in CURVES.values() for c in cs)
    pairs = [[(c.epsilon, c.error) for c in curves] for curves in CURVES.values()]
    assert pairs[0] == [("claimed", "raw"), ("claimed-min", "raw"), ("claimed-min", "printed")]
    assert pairs[1] == [("gaussian", "raw"), ("honest-min", "raw"), ("honest-min", "inverted")]
    assert pairs[2] == [("exact", "raw"), ("exact", "inverted"), ("exact", "affine")]


def test_every_curve_is_drawn_in_both_panels(small: Figure5) -> None:
    page = compose(small)
    for axes, data in zip(page.axes, DATA, strict=True):
        for curve in (curve for curves in CURVES.values() for curve in curves):
            xs = {p.epsilons[curve.epsilon]: p.errors[data][curve.error].mean for p in small.curve}
            drawn = [
                np.asarray(line.get_xydata())
                for line in axes.lines
                if line.get_color() == curve.colour and line.is_dashed() == curve.dashed
            ]
            assert xs.items() <= dict(np.concatenate(drawn).tolist()).items(), curve


@pytest.mark.slow
def test_the_command_writes_picture_and_numbers(tmp_path: Path) -> None:
    app = typer.Typer()
    app.command("figure5")(command.figure5)
    done = CliRunner().invoke(app, ["--repetitions", "2", "--out", str(tmp_path / "new")])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "new/figure5.png").read_bytes().startswith(b"\x89PNG")
    numbers = json.loads((tmp_path / "new/figure5.json").read_text())
    assert numbers["setting"]["clients"] == N
    assert numbers["claims"][6]["epsilons"]["gaussian"] == pytest.approx(9.284, abs=5e-4)
    assert set(numbers["controls"]["skewed"]["constant"]) == {"mean", "se"}


def test_the_command_waits_for_nothing_heavy_before_it_runs() -> None:
    code = (
        "import sys, fedbench.cli.figure5\n"
        "heavy = {'torch', 'matplotlib', 'numpy', 'scipy'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
