"""Bounds on epsilon of masks: closed forms, other people's tables, slow oracles and sandwiches."""

import math
import time
from itertools import pairwise, product
from typing import Any

import mpmath
import numpy as np
import pytest
from figure5 import gdp_mu, printed_mean, rdp_to_dp_mironov
from scipy.integrate import quad
from scipy.stats import binom, norm

from fedbench.core.errors import ConfigError
from fedbench.privacy.amplification import (
    SLACK,
    concave_hull,
    cube,
    envelope,
    inverse_marginal,
    logit_constant,
    marginal,
    marginal_slope,
    mask_rdp,
    paper_rdp,
    probit_constant,
    r_alpha,
    renyi_bernoulli,
)
from fedbench.privacy.conversion import (
    ORDERS,
    gdp_delta,
    gdp_epsilon,
    gdp_rounds,
    rdp_to_dp,
)
from fedbench.privacy.randomized_response import RandomizedResponse

SETTINGS = [(0.0, 0.2), (0.05, 0.2), (1.0, 0.2), (0.1, 0.05), (0.3, 0.01), (20.0, 0.4)]


def brute(p: float, n: int, epsilon: float) -> float:
    """Delta of ``n``-fold randomized response, summed over all ``n + 1`` counts of ones."""
    terms = []
    for k in range(n + 1):
        truth = math.comb(n, k) * (1 - p) ** k * p ** (n - k)
        other = math.comb(n, k) * p**k * (1 - p) ** (n - k)
        terms.append(max(0.0, truth - math.exp(epsilon) * other))
    return math.fsum(terms)


@pytest.mark.parametrize(("sigma", "c"), SETTINGS[1:])
def test_the_marginal_is_the_mean_of_clipped_noise(sigma: float, c: float) -> None:
    for theta in np.linspace(c, 1 - c, 5):
        ends = (c - theta) / sigma, (1 - c - theta) / sigma
        inside = quad(lambda z, mean=theta: (mean + sigma * z) * norm.pdf(z), *ends, epsabs=1e-13)
        expected = c * norm.cdf(ends[0]) + inside[0] + (1 - c) * norm.sf(ends[1])
        assert marginal(theta, sigma, c) == pytest.approx(expected, abs=1e-11)


@pytest.mark.parametrize(("sigma", "c"), SETTINGS)
def test_the_marginal_is_symmetric_and_its_slope_is_its_derivative(sigma: float, c: float) -> None:
    theta = np.linspace(c, 1 - c, 41)
    p = marginal(theta, sigma, c)
    np.testing.assert_allclose(marginal(1 - theta, sigma, c), 1 - p, rtol=0, atol=1e-15)
    assert p.min() >= c * (1 - 1e-15)
    assert p.max() <= 1 - c * (1 - 1e-15)
    if sigma == 0:
        np.testing.assert_array_equal(p, theta)
    step = 1e-6
    rise = marginal(theta + step, sigma, c) - marginal(theta - step, sigma, c)
    slope = marginal_slope(theta, sigma, c)
    np.testing.assert_allclose(slope, rise / (2 * step), rtol=0, atol=1e-5)
    assert slope.max() <= 1


def test_the_marginal_keeps_its_digits_where_terms_would_cancel() -> None:
    mpmath.mp.dps = 50
    for sigma, c, theta in [(1e6, 0.2, 0.3), (1e-9, 1e-12, 1e-12), (0.3, 1e-9, 1e-9)]:
        a, b = (mpmath.mpf(c) - theta) / sigma, (1 - mpmath.mpf(c) - theta) / sigma
        inner = mpmath.ncdf(b) - mpmath.ncdf(a)
        p = c * mpmath.ncdf(a) + (1 - mpmath.mpf(c)) * mpmath.ncdf(-b) + theta * inner
        p += sigma * (mpmath.npdf(a) - mpmath.npdf(b))
        assert float(marginal(theta, sigma, c)) == pytest.approx(float(p), rel=1e-14)
        assert float(marginal_slope(theta, sigma, c)) == pytest.approx(float(inner), rel=1e-14)


def test_r_alpha_agrees_with_many_digits_and_with_renyi_of_two_bernoullis() -> None:
    mpmath.mp.dps = 60
    for c in (1e-12, 0.05, 0.2, 0.4999):
        for a in (1 + 1e-6, 1.5, 2.0, 32.0, 1024.0):
            x, q = mpmath.mpf(a), mpmath.mpf(c)
            exact = mpmath.log(q**x * (1 - q) ** (1 - x) + (1 - q) ** x * q ** (1 - x)) / (x - 1)
            assert r_alpha([a], c)[0] == pytest.approx(float(exact), rel=2e-9)
    assert r_alpha([1 + 1e-9], 0.2)[0] == pytest.approx(0.6 * math.log(4), rel=1e-7)
    assert r_alpha([1e9], 0.2)[0] == pytest.approx(math.log(4), rel=1e-8)

    p, q, near = ((np.log([x]), np.log1p([-x])) for x in (0.8, 0.2, 0.2 + 1e-6))
    for a in (1.001, 2.0, 1024.0):
        assert renyi_bernoulli(a, p, q)[0] == pytest.approx(r_alpha([a], 0.2)[0])
    assert renyi_bernoulli(2.0, q, near)[0] == pytest.approx(1e-12 / 0.16, rel=1e-5)


def test_8_96_is_order_5_converted_at_delta_1e_4_and_not_d_times_r_alpha() -> None:
    """Erratum E3: no order gives 8.96 in nats, since five bits hold 5 ln 4."""
    assert 5 * r_alpha([5.0], 0.2)[0] == pytest.approx(6.6525, abs=5e-5)
    for order, printed in ((4.0, 9.630), (5.0, 8.9551), (6.0, 8.550)):
        eps, _ = rdp_to_dp_mironov([order], 5 * r_alpha([order], 0.2), 1e-4)
        assert eps == pytest.approx(printed, abs=5e-4)
    assert (5 * r_alpha(ORDERS, 0.2)).max() < 5 * math.log(4) < 6.9315
    five = RandomizedResponse(0.2, 5)
    assert five.epsilon(1e-4) == pytest.approx(6.93117, abs=5e-6)
    assert five.pure == pytest.approx(6.93147, abs=5e-6)
    assert RandomizedResponse(0.2, 50).epsilon(1e-4) == pytest.approx(65.88, abs=5e-3)


def test_randomized_response_is_the_sum_over_all_counts() -> None:
    for p, n in ((0.2, 1), (0.2, 5), (0.45, 200), (0.01, 60), (0.3, 400)):
        response = RandomizedResponse(p, n)
        eps = np.linspace(0, 1.2 * response.pure, 57)
        expected = [brute(p, n, e) if e < 600 else 0.0 for e in eps]
        np.testing.assert_allclose(response.delta(eps), expected, rtol=1e-9, atol=1e-15)


def test_epsilon_inverts_delta_and_of_a_billion_bits_is_two_binomial_tails() -> None:
    delta = np.array([1e-30, 1e-12, 1e-5, 1e-3, 0.02])
    for p, n in ((0.2, 5), (0.49, 10_000), (0.2, 10**6), (0.4999, 10**9)):
        response = RandomizedResponse(p, n)
        epsilons = response.epsilon(delta)
        assert (np.diff(epsilons) < 0).all()
        below = epsilons < response.pure
        spent = response.delta(epsilons)
        np.testing.assert_allclose(spent[below], delta[below], rtol=1e-4)  # epsilon has 16 digits
        assert (response.delta(epsilons + 1e-9 * response.pure) < delta).all()
        assert response.delta(response.pure) == 0.0
    p = 0.49999
    n = 10**9
    eps = 5.0
    response = RandomizedResponse(p, n)
    k = math.floor((eps / response.per_bit + n) / 2)
    expected = binom.sf(k, n, 1 - p) - math.exp(eps) * binom.sf(k, n, p)
    # the two tails are themselves only good to 6 digits here
    assert response.delta(eps) == pytest.approx(expected, rel=1e-5)
    mu = 1.0
    p = 0.5 - mu / (4 * math.sqrt(n))  # means 1/2 -+ h of variance 1/4: mu = 2h sqrt(n) / (1/2)
    assert RandomizedResponse(p, n).epsilon(1e-5) == pytest.approx(gdp_epsilon(mu, 1e-5), rel=1e-4)


# c, sigma: K_F, K_l, K_u (reference notes 3.4), and of orders 2, 8, 32 where its grid resolved them
TABLE = {
    (0.2, 0.0): (6.250, 9.766, 12.76, 6.25, 7.36, None),
    (0.2, 0.05): (4.548, 5.475, 7.92, 4.76, 5.08, 5.13),
    (0.2, 0.1): (3.991, 4.185, 6.40, 4.06, 4.09, 4.09),
    (0.2, 0.2): (3.0025, 3.0025, 4.716, 3.00, 3.00, 3.00),
    (0.2, 0.5): (0.8154, 0.8154, 1.281, 0.815, 0.815, 0.815),
    (0.2, 1.0): (0.2224, 0.2224, 0.3494, 0.222, 0.222, 0.222),
    (0.2, 2.0): (0.0569, 0.0569, 0.0893, None, None, None),
    (0.05, 0.0): (21.05, 110.8, 94.0, 21.05, 42.06, None),
    (0.05, 0.1): (5.42, 10.76, 12.30, 6.94, 8.22, 8.34),
    (0.05, 0.5): (1.597, 1.611, 2.509, 1.597, 1.597, 1.597),
    (0.05, 1.0): (0.4824, 0.4841, 0.7578, None, None, None),
    (0.01, 0.0): (101.0, 2551, 1408, 101.0, None, 855.7),  # 685 there: its grid was too coarse
    (0.01, 0.1): (6.80, 27.8, 23.6, 10.9, 15.9, None),
    (0.01, 1.0): (0.5651, 0.5930, 0.8877, 0.565, 0.567, 0.567),
}


def fisher(sigma: float, c: float) -> float:
    """``sup p'^2 / (p (1 - p))``: what every constant tends to for small changes, a lower bound."""
    theta = np.concatenate([np.linspace(c, 0.5, 4001), c + np.geomspace(1e-6 * c, 0.5 - c, 4001)])
    p = marginal(theta, sigma, c)
    return float((marginal_slope(theta, sigma, c) ** 2 / (p * (1 - p))).max())


def constants(sigma: float, c: float, orders: list[float]) -> np.ndarray:
    """``K_a``: what the envelope tends to, over ``a Delta²/2``, when coordinates are many."""
    return np.asarray(envelope(orders, 1e-12, sigma, c) * 2e12 / np.array(orders))


@pytest.mark.parametrize(("c", "sigma"), TABLE)
def test_the_constants_are_those_of_the_table(c: float, sigma: float) -> None:
    ours = [f(sigma, c) for f in (fisher, logit_constant, probit_constant)]
    ours += list(constants(sigma, c, [2.0, 8.0, 32.0]) / (1 + SLACK))
    for value, printed in zip(ours, TABLE[c, sigma], strict=True):
        assert printed is None or value == pytest.approx(printed, rel=3e-3)
    assert ours[0] <= ours[3] * (1 + 1e-8)
    assert ours[5] <= ours[1] * (1 + 1e-8)
    assert ours[0] <= ours[2]
    assert sigma == 0 or ours[2] <= 1 / sigma**2


def test_closed_forms_of_the_constants_and_of_order_2_without_noise() -> None:
    for c in (0.2, 0.05, 1e-6):
        v = c * (1 - c)
        assert fisher(0.0, c) == pytest.approx(1 / v)
        assert logit_constant(0.0, c) == pytest.approx(1 / (4 * v * v))
        assert probit_constant(0.0, c) == pytest.approx(norm.pdf(norm.ppf(c)) ** -2)
    for sigma in (0.2, 0.5, 2.0):
        middle = 4 * (2 * norm.cdf(0.3 / sigma) - 1) ** 2
        assert logit_constant(sigma, 0.2) == pytest.approx(middle, rel=1e-6)
    for c, shrunk in ((0.2, 4.36), (0.05, 1.94)):
        assert 1 / (1e6 * logit_constant(1e3, c)) == pytest.approx(shrunk, abs=5e-3)
    for c, d, reach in ((0.2, 100, 0.5), (0.05, 10**6, 3.0), (0.2, 5, 0.6 * math.sqrt(5))):
        exact = d * math.log1p(reach**2 / (d * c * (1 - c)))
        ours = d * envelope([2.0], reach**2 / d, 0.0, c)[0]
        assert exact <= ours * (1 + 1e-12) <= exact * (1 + 1.1 * SLACK)


@pytest.mark.edges("0.0-0.2", "20.0-0.4", "0.01-0.001")
@pytest.mark.parametrize(("sigma", "c"), [*SETTINGS, (1e-3, 0.3), (0.0, 0.01), (0.01, 0.001)])
def test_no_split_of_the_sensitivity_exceeds_the_envelope(sigma: float, c: float) -> None:
    draw = np.random.Generator(np.random.PCG64(5))
    for d in (1, 2, 7):
        for _ in range(8):
            left = c + (1 - 2 * c) * draw.beta(0.3, 0.6, d)
            right = c + (1 - 2 * c) * draw.beta(0.6, 0.3, d)
            odds = [(marginal(t, sigma, c), marginal(1 - t, sigma, c)) for t in (left, right)]
            p, q = ((np.log(one), np.log(zero)) for one, zero in odds)
            alphas = [1.01, 2.0, 8.0, 300.0]
            bound = d * envelope(alphas, float(((left - right) ** 2).mean()), sigma, c)
            spent = [float(renyi_bernoulli(a, p, q).sum()) for a in alphas]
            assert (np.array(spent) <= bound * (1 + 1e-9)).all()


def test_a_concave_hull_begins_at_the_origin_and_ends_at_the_largest_value() -> None:
    x = np.array([1.0, 2.0, 4.0])
    y = np.array([3.0, 1.0, 6.0])
    for at, expected in ((0, 0), (0.5, 1.5), (1, 3), (2, 4), (3, 5), (4, 6), (9, 6)):
        assert concave_hull(x, y, at) == pytest.approx(expected)  # 2 is below the line from 1 to 4
    assert concave_hull(x, np.array([3.0, 1.0, 2.0]), 9.0) == 3


def test_the_envelope_is_between_nothing_and_the_cube_where_its_grid_reaches() -> None:
    assert envelope([2.0, 9.0], 0.0, 0.3, 0.2).tolist() == [0, 0]
    whole = envelope([2.0, 9.0], 0.6**2, 0.3, 0.2)
    np.testing.assert_array_equal(envelope([2.0, 9.0], 4 * 0.6**2, 0.3, 0.2), whole)
    corners = r_alpha([2.0, 9.0], float(marginal(0.2, 0.3, 0.2)))
    np.testing.assert_allclose(whole, corners * (1 + SLACK))
    # p(c) is c without noise; the sides of 0.4998 and 0.4997 are 4e-4 and 6e-4
    for c, reached in ((0.9e-6, False), (1.1e-6, True), (0.4998, False), (0.4997, True)):
        assert np.isfinite(envelope([2.0], 1e-9, 0.0, c)).all() == reached, c


def test_no_place_of_a_coordinate_between_two_points_of_the_grid_exceeds_the_envelope() -> None:
    for sigma, c in ((0.05, 0.4), (0.1, 0.05), (0.03, 0.3)):
        left = np.linspace(c, 1 - c - 1e-3, 20_001)  # 1e-3 apart
        odds = [(marginal(t, sigma, c), marginal(1 - t, sigma, c)) for t in (left, left + 1e-3)]
        p, q = [(np.log(ones), np.log(zeros)) for ones, zeros in odds]
        for alpha in (2.0, 300.0):
            most = max(renyi_bernoulli(alpha, p, q).max(), renyi_bernoulli(alpha, q, p).max())
            assert envelope([alpha], 1e-6, sigma, c)[0] >= most


def test_constants_are_no_less_than_any_slope_between_the_points_of_their_grid() -> None:
    sigma = 1e-3
    theta = np.linspace(1e-3, 4e-3, 300_001)  # the largest slopes are near the clip at 0.001
    p = marginal(theta, sigma, 1e-3)
    slope = marginal_slope(theta, sigma, 1e-3)
    logit = ((slope / (2 * p * (1 - p))) ** 2).max()
    probit = ((slope / norm.pdf(norm.ppf(p))) ** 2).max()
    assert 1 <= logit_constant(sigma, 1e-3) / logit < 1 + 1e-8
    assert 1 <= probit_constant(sigma, 1e-3) / probit < 1 + 1e-8


def test_every_term_of_a_round_of_masks_is_that_of_its_bound() -> None:
    sigma = 0.5
    terms = mask_rdp([4.0], 3, sigma, 0.2, 0.6).terms  # a Delta²/2 = 4 * 0.36 / 2
    p = float(marginal(0.2, sigma, 0.2))
    assert 0.3 < p < 0.4
    exact = 3 * math.log(p**4 * (1 - p) ** -3 + (1 - p) ** 4 * p**-3) / 3
    assert terms["randomized-response"][0] == pytest.approx(exact)
    assert terms["envelope"][0] == 3 * envelope([4.0], 0.12, sigma, 0.2)[0]  # 0.36/3 each
    assert terms["logit"][0] == pytest.approx(0.72 * logit_constant(sigma, 0.2))
    assert terms["probit"][0] == pytest.approx(0.72 * probit_constant(sigma, 0.2))
    assert terms["gaussian"][0] == pytest.approx(0.72 / 0.25)


def test_the_papers_bound_has_the_clip_and_no_more_than_the_cube() -> None:
    # of 4 masks with c = 0.2: Delta = 0.6 * 2, and r_2(0.2) = ln(0.2²/0.8 + 0.8²/0.2)
    assert paper_rdp([2.0], 4, 2.0, 0.2).tolist() == pytest.approx([1.2**2 / 4])
    assert paper_rdp([2.0], 4, 2.0, 0.2, 100.0).tolist() == pytest.approx([1.2**2 / 4])
    assert paper_rdp([2.0], 4, 2.0, 0.2, 0.5).tolist() == pytest.approx([0.5**2 / 4])
    for sigma in (0.1, 0.0):
        assert paper_rdp([2.0], 4, sigma, 0.2).tolist() == pytest.approx([4 * math.log(3.25)])


CUBE = [  # d, sigma/Delta, the paper's bound, exact (notes 3.5 ii, which prints 2.04), delta 1e-5
    *[(5, 0.1, 6.93, 5.4), (5, 0.5, 6.93, 2.0364), (5, 1.0, 4.729, 1.057), (5, 4.0, 1.013, 0.267)],
    *[(1000, 0.0, 990.3, 975.5), (1000, 0.1, 96.1, 30.7), (1000, 0.5, 10.73, 4.155)],
    *[(1000, 1.0, 4.729, 1.896), (1000, 4.0, 1.013, 0.414)],
    *[(10**6, 0.0, 837087, 836501), (10**6, 0.1, 96.1, 31.2), (10**6, 0.5, 10.73, 4.163)],
    *[(10**6, 1.0, 4.729, 1.899), (10**6, 4.0, 1.013, 0.414)],
]


def mask_epsilons(
    d: int, rounds: int, delta: float, sigma: float, c: float, reach: float | None = None
) -> dict[str, float]:
    """Epsilon of visible rounds by each way of adding them up, as the accountant does it."""
    longest = cube(d, c) if reach is None else min(cube(d, c), reach)
    mu = gdp_rounds(math.sqrt(probit_constant(sigma, c)) * longest, rounds)
    response = RandomizedResponse(float(marginal(c, sigma, c)), d * rounds)
    masks = rounds * mask_rdp(ORDERS, d, sigma, c, reach).epsilon
    claimed = rounds * paper_rdp(ORDERS, d, sigma, c, reach)
    return {
        "rdp": rdp_to_dp(ORDERS, masks, delta)[0],
        "randomized-response": float(response.epsilon(delta)),
        "probit": gdp_epsilon(mu, delta),
        "paper": rdp_to_dp(ORDERS, claimed, delta)[0],
    }


GAUSSIAN = {0.0: math.inf, 0.1: 91.8, 0.5: 10.0, 1.0: 4.377, 4.0: 0.926}  # by sigma/Delta


@pytest.mark.edges("5-0.1-6.93-5.4", "1000-0.0-990.3-975.5", "1000000-4.0-1.013-0.414")
@pytest.mark.parametrize(("d", "z", "paper", "exact"), CUBE)
def test_the_cube_is_below_the_paper(d: int, z: float, paper: float, exact: float) -> None:
    """Without noise the table has 996.3 and 890003: its orders were too coarse near 1."""
    eps = mask_epsilons(d, 1, 1e-5, z * cube(d, 0.2), 0.2)
    assert gdp_epsilon(1 / z if z else math.inf, 1e-5) == pytest.approx(GAUSSIAN[z], rel=1e-3)
    assert eps["randomized-response"] == pytest.approx(exact, rel=1.5e-3)
    assert eps["paper"] == pytest.approx(paper, rel=1.5e-3)
    assert eps["randomized-response"] <= eps["rdp"] <= eps["paper"]
    assert eps["randomized-response"] <= eps["probit"]
    assert eps["rdp"] <= 1.11 * eps["randomized-response"]


@pytest.mark.slow
@pytest.mark.edges("0.05-0.549-2.69-9.56")
@pytest.mark.parametrize(
    ("reach", "once", "often", "always"),  # 1, 20 and 200 rounds
    [
        (0.05, 0.549, 2.69, 9.56),
        (0.1, 1.149, 5.7, 22.1),
        (0.2, 2.38, 12.6, 57.3),
        (1, 14.4, 114, 792),
    ],
)
def test_sampling_alone_protects_a_clipped_client(
    reach: float, once: float, often: float, always: float
) -> None:
    """The table has 799 at the end: its orders were coarser."""
    for rounds, expected in ((1, once), (20, often), (200, always)):
        eps = mask_epsilons(10**6, rounds, 1e-5, 0.0, 0.2, reach)
        assert eps["rdp"] == pytest.approx(expected, rel=5e-3)


@pytest.mark.edges("None-0.0-0.2", "0.05-0.3-0.01", "3.0-20.0-0.4")
@pytest.mark.parametrize(("sigma", "c"), SETTINGS)
@pytest.mark.parametrize("reach", [None, 0.05, 3.0])
def test_every_order_is_below_the_paper(sigma: float, c: float, reach: float | None) -> None:
    d = 64
    ours = mask_rdp(ORDERS, d, sigma, c, reach)
    assert (ours.epsilon <= paper_rdp(ORDERS, d, sigma, c, reach) * (1 + 1e-9)).all()
    for i in (0, 100, len(ORDERS) - 1):
        assert any(term[i] == ours.epsilon[i] for term in ours.terms.values())
        assert all(term[i] >= ours.epsilon[i] for term in ours.terms.values())
    assert (np.diff(ours.epsilon) >= -1e-9 * ours.epsilon[1:]).all()
    if reach is None:
        exact = d * r_alpha(ORDERS, float(marginal(c, sigma, c)))
        np.testing.assert_allclose(ours.epsilon, exact, rtol=1e-9)


def test_rounds_add_bits_and_no_sensitivity_is_longer_than_the_cube() -> None:
    eps = mask_epsilons(10, 7, 1e-5, 0.3, 0.2)
    assert eps["randomized-response"] == RandomizedResponse(
        float(marginal(0.2, 0.3, 0.2)), 70
    ).epsilon(1e-5)
    assert mask_epsilons(10, 7, 1e-5, 0.3, 0.2, 100.0) == eps
    assert mask_rdp([2.0], 10, 0.3, 0.2, 100.0).terms == mask_rdp([2.0], 10, 0.3, 0.2).terms


@pytest.mark.slow
@pytest.mark.edges("sigma-grid0")
@pytest.mark.parametrize(
    ("name", "grid"),
    [("sigma", (0.0, 0.1, 30.0)), ("c", (0.1, 0.2, 0.4)), ("delta", (1e-12, 1e-5, 1e-2))],
)
def test_more_noise_a_wider_clip_and_a_larger_delta_cost_less(name: str, grid: Any) -> None:
    usual = {"delta": 1e-5, "sigma": 0.1, "c": 0.2}
    costs = [mask_epsilons(1000, 3, **usual | {name: value}, reach=0.5) for value in grid]
    for less, more in pairwise(costs):
        assert all(more[bound] < less[bound] for bound in ("rdp", "randomized-response", "probit"))


@pytest.mark.slow
def test_nothing_overflows_at_the_extremes_and_five_million_weights_take_seconds() -> None:
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        for sigma in (0.0, 1e-320, 1e-3, 1e9):
            for c in (1e-100, 1e-6, 0.5 - 1e-9):
                masks = mask_rdp([1 + 1e-6, 1024.0], 5_200_000, sigma, c, 0.1).epsilon
                assert (np.isfinite(masks) & (masks >= 0)).all(), (sigma, c)
    for sigma, c in ((0.0, 1e-100), (1e9, 0.3)):
        eps = mask_epsilons(1000, 2, 1e-5, sigma, c, 0.1)
        assert all(0 <= e < math.inf for e in eps.values()), (sigma, c)

    start = time.process_time()
    mask_epsilons(5_200_000, 1000, 1e-5, 0.1, 0.2, 0.3)
    assert time.process_time() - start < 20  # 0.5 measured; a loop over weights takes minutes


def test_conversion_of_rdp_is_below_mironovs_and_never_negative() -> None:
    rdp = ORDERS * 0.01
    ours, order = rdp_to_dp(ORDERS, rdp, 1e-5)
    assert ours < rdp_to_dp_mironov(ORDERS, rdp, 1e-5)[0]
    assert ours == pytest.approx(
        order * 0.01 + math.log1p(-1 / order) - math.log(1e-5 * order) / (order - 1)
    )
    assert rdp_to_dp(ORDERS, ORDERS * 1e-9, 0.01)[0] == 0
    assert rdp_to_dp([2.0, 3.0], [math.inf, 1.0], 1e-5)[1] == 3.0
    for orders in ([1.0, 2.0], [0.5, 2.0], [math.inf, 2.0], []):  # each above 1, as Rényi's are
        with pytest.raises(ConfigError, match="orders must be finite and > 1"):
            rdp_to_dp(orders, [0.1] * len(orders), 1e-5)


def test_gaussian_epsilon_mu_and_delta_invert_each_other_and_keep_many_digits() -> None:
    mpmath.mp.dps = 80
    for mu, eps in [(1.0, 1.0), (0.01, 0.1), (5.0, 30.0), (1000.0, 5e5), (0.1, 3.0), (2.0, 0.0)]:
        m, e = mpmath.mpf(mu), mpmath.mpf(eps)
        exact = mpmath.ncdf(-e / m + m / 2) - mpmath.exp(e) * mpmath.ncdf(-e / m - m / 2)
        assert gdp_delta(mu, eps) == pytest.approx(float(exact), rel=1e-9)
    for mu in (1e-3, 0.1, 1.0, 30.0, 2000.0):
        eps = gdp_epsilon(mu, 1e-5)
        assert gdp_delta(mu, eps) <= 1e-5
        if eps:
            assert gdp_delta(mu, eps) == pytest.approx(1e-5, rel=1e-6)
            assert gdp_mu(eps, 1e-5) == pytest.approx(mu, rel=1e-9)
    assert gdp_epsilon(1e-6, 1e-5) == gdp_epsilon(0.0, 1e-5) == 0
    assert gdp_delta(gdp_mu(0.0, 1e-5), 0.0) == pytest.approx(1e-5)
    assert gdp_delta(math.inf, 5.0) == 1  # without noise the event is certain
    assert gdp_delta(0.0, 0.0) == gdp_delta(1.0, math.inf) == 0
    assert gdp_rounds(0.5, 16) == 2.0


# FedPM's bias correction, right and as printed


def test_the_inverse_takes_the_marginal_back_and_clips_what_few_masks_can_say() -> None:
    draw = np.random.Generator(np.random.PCG64(4))
    sigmas = (0.0, 1e-9, 1e-4, 0.01, 0.1, 0.5, 1.0, 30.0, 1e4)
    for sigma, c in product(sigmas, (1e-6, 0.05, 0.2, 0.45)):
        theta = np.concatenate([[c, 0.5, 1 - c], c + (1 - 2 * c) * draw.random(3000)])
        theta = np.concatenate([theta, np.minimum(c + sigma * draw.random(1000), 1 - c)])
        back = inverse_marginal(marginal(theta, sigma, c), sigma, c)
        flat = max(sigma, 1) / (1 - 2 * c)  # 1/slope, up to a factor of 3
        np.testing.assert_allclose(back, theta, rtol=0, atol=1e-8 if sigma <= 1 else 1e-15 * flat)
    p = np.array([[0.0, 0.5], [1.0, 0.3]])
    back = inverse_marginal(p, 0.5, 0.2)
    assert back.shape == (2, 2)
    assert back[0].tolist() == [0.2, 0.5]
    assert back[1, 0] == 0.8
    assert 0.2 <= back[1, 1] < 0.3
    assert (np.diff(inverse_marginal(np.linspace(0, 1, 999), 0.5, 0.2)) >= 0).all()
    assert inverse_marginal(0.3, 0.0, 0.2) == pytest.approx(0.3)

    # exact of a mean only if clients agree (Jensen): 0.25 and 0.75 are symmetric, 0.2 and 0.6 not
    for thetas, right in (((0.25, 0.75), True), ((0.2, 0.6), False), ((0.6, 0.6), True)):
        mean = marginal(np.array(thetas), 0.3, 0.2).mean()
        error = abs(inverse_marginal(mean, 0.3, 0.2) - np.mean(thetas))
        assert (error < 1e-9) == right
        assert error < 0.02


def test_e2_the_printed_mean_leaves_the_clip() -> None:
    assert printed_mean(0.25, 2.0, 0.2) == pytest.approx(0.914, abs=5e-4)  # above 1 - c
    assert marginal(0.25, 2.0, 0.2) == pytest.approx(0.470, abs=5e-4)
    theta = np.linspace(0.2, 0.8, 13)
    sigma = 0.7
    c = 0.2
    low, high = c - theta, 1 - c - theta
    cdf = norm(scale=sigma).cdf
    bell = sigma / math.sqrt(2 * math.pi) * np.exp(-(low**2) / (2 * sigma**2))
    rest = 1 - c - high * cdf(high) + low * cdf(low)
    corrected = -(1 - 2 * c) * (1 - 2 * theta) / (2 * sigma**2)
    for mean, exponent in ((printed_mean, -2 * low - 1), (marginal, corrected)):
        expected = rest - bell * np.expm1(exponent)
        np.testing.assert_allclose(mean(theta, sigma, c), expected, rtol=1e-12)
    np.testing.assert_allclose(printed_mean(theta, 0.0, c), theta)
