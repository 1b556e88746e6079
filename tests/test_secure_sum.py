"""The sum of masks: convolutions of everybody's bits, all of the others' corners, and a table."""

import math
from itertools import pairwise

import numpy as np
import pytest

from fedbench.core.errors import ConfigError
from fedbench.privacy.amplification import (
    concave_hull,
    cube,
    marginal,
    mask_rdp,
    probit_constant,
    r_alpha,
)
from fedbench.privacy.conversion import ORDERS, Floats, rdp_to_dp
from fedbench.privacy.sampling import fixed_size, poisson_epsilons
from fedbench.privacy.sums import MASK_SLACK, SUM_ORDERS, sum_rdp

SETTINGS = [(0.0, 0.2), (0.05, 0.2), (1.0, 0.2), (0.1, 0.05), (0.0, 0.01), (20.0, 0.4)]


def sum_law(others: list[float]) -> Floats:
    """Of bits that are 1 with these probabilities: ``(len + 1,)``."""
    law = np.ones(1)
    for p in others:
        law = np.convolve(law, [1 - p, p])
    return law


def renyi(alpha: float, x: float, y: float, law: Floats) -> float:
    """``D_a`` of a bit of probability ``x``, or ``y``, plus a number of this ``law``."""
    p, q = (np.convolve(law, [1 - z, z]) for z in (x, y))
    at = (q > 1e-290) & (p > 1e-290)
    terms = alpha * np.log(p[at]) + (1 - alpha) * np.log(q[at])
    return float(np.logaddexp.reduce(terms)) / (alpha - 1)


@pytest.mark.edges("2-0.0-0.2", "3-1.0-0.2", "9-20.0-0.4")
@pytest.mark.parametrize(("sigma", "c"), SETTINGS)
@pytest.mark.parametrize("n", [2, 3, 9])
def test_no_sum_exceeds_the_bound_whatever_the_others_are(n: int, sigma: float, c: float) -> None:
    draw = np.random.Generator(np.random.PCG64(n))
    low = float(marginal(c, sigma, c))
    alphas = [1.05, 2.0, 8.0, 64.0]
    for d in (1, 3):
        for _ in range(8):
            left = c + (1 - 2 * c) * draw.beta(0.3, 0.6, d)
            right = c + (1 - 2 * c) * draw.beta(0.6, 0.3, d)
            reach = float(np.linalg.norm(left - right))
            bound = sum_rdp(alphas, d, n, sigma, c, reach)
            x, y = marginal(left, sigma, c), marginal(right, sigma, c)
            corner = draw.random(n - 1) < draw.random()
            inside = low + (1 - 2 * low) * draw.random(n - 1)
            for others in (np.where(corner, low, 1 - low), inside, np.full(n - 1, low)):
                law = sum_law(others.tolist())
                for a, most in zip(alphas, bound, strict=True):
                    spent = sum(renyi(a, *pair, law) for pair in zip(x, y, strict=True))
                    assert spent <= most * (1 + 1e-9)


@pytest.mark.parametrize(("sigma", "c"), SETTINGS)
@pytest.mark.parametrize("n", [4, 7, 24])
def test_the_others_are_worst_when_all_are_at_one_end(n: int, sigma: float, c: float) -> None:
    """The finding that the module rests on: for every pair and order, ``k`` is 0 or ``n - 1``."""
    p = float(marginal(c, sigma, c))
    laws = [sum_law([1 - p] * k + [p] * (n - 1 - k)) for k in range(n)]
    for h in (0.02, 0.3, 1.0):
        for u in (0.0, 0.1, 0.5, 1.0):
            left = c + u * (1 - 2 * c) * (1 - h)
            x, y = (float(marginal(t, sigma, c)) for t in (left, left + h * (1 - 2 * c)))
            for a in (1.5, 4.0, 32.0):
                for pair in ((x, y), (y, x)):
                    spent = [renyi(a, *pair, law) for law in laws]
                    assert max(spent) <= max(spent[0], spent[-1]) * (1 + 1e-7) + 1e-14


@pytest.mark.edges("None-0.0-0.2", "0.05-0.1-0.05", "0.7-20.0-0.4")
@pytest.mark.parametrize(("sigma", "c"), SETTINGS)
@pytest.mark.parametrize("reach", [None, 0.05, 0.7])
def test_a_sum_costs_less_the_more_masks_there_are(
    sigma: float, c: float, reach: float | None
) -> None:
    orders = [1.01, 2.0, 5.0, 30.0, 1024.0]
    masks = mask_rdp(orders, 20, sigma, c, reach).epsilon
    costs = [sum_rdp(orders, 20, n, sigma, c, reach) for n in (1, 2, 4, 30)]
    np.testing.assert_array_equal(costs[0], masks)
    for more, fewer in pairwise(costs):
        assert (fewer <= more * (1 + 3 * MASK_SLACK)).all()
    assert (costs[-1] <= masks).all()
    assert (np.diff(costs[-1]) >= 0).all()


@pytest.mark.parametrize("n", [2, 10, 100])
def test_without_noise_order_2_is_between_two_closed_forms(n: int) -> None:
    """``1 + h²/(n p (1-p))`` if the client is the one at the others' end; the other order is more.

    That has ``E 1/(1 + h g)``, of which ``1/(1+x) <= 1 - x + x²/(1+x)`` and ``1 + h g >= p/(1-p)``
    make ``1 + h²/(n p²)``, also from the other end.
    """
    p, d, reach = 0.2, 1000, 0.5
    h2 = reach**2 / d
    ours = sum_rdp([2.0], d, n, 0.0, p, reach)[0]
    assert d * math.log1p(h2 / (n * p * (1 - p))) <= ours * (1 + 1e-12)
    at_one_size = [
        max(renyi(2.0, x, y, sum_law([p] * (n - 1))) * h2 / (x - y) ** 2 * d for x, y in pair)
        for h in np.geomspace(0.005, 0.6, 40)
        for pair in [((p, p + h), (p + h, p), (1 - p, 1 - p - h), (1 - p - h, 1 - p))]
    ]
    assert ours <= max(at_one_size) * (1 + 1.1 * MASK_SLACK)
    assert ours >= max(at_one_size) * (1 - 1e-9)


def test_the_whole_cube_is_one_pair() -> None:
    for n, sigma in ((3, 0.0), (20, 0.3)):
        p = float(marginal(0.2, sigma, 0.2))
        orders = np.array([1.5, 4.0, 64.0])
        law = sum_law([p] * (n - 1))
        pairs = ((p, 1 - p), (1 - p, p))
        exact = np.array([7 * max(renyi(a, *pair, law) for pair in pairs) for a in orders])
        ours = sum_rdp(orders, 7, n, sigma, 0.2)
        assert (exact <= ours * (1 + 1e-9)).all()
        np.testing.assert_allclose(
            ours, np.minimum(exact * (1 + MASK_SLACK), 7 * r_alpha(orders, p)), rtol=1e-9
        )
        np.testing.assert_array_equal(sum_rdp(orders, 7, n, sigma, 0.2, cube(7, 0.2)), ours)


# n, sigma: n K at orders 2 and 8 (notes 3.6), or what a pair reaches where its grid missed it
CONSTANTS = {
    (10, 0.0): (10.37, 19.50),  # 18.7 there; at h = .156 below 1-c, the others all at c: 19.503
    (100, 0.0): (6.55, 7.271),  # 7.21 there
    (10, 1.0): (0.2274, 0.2308),  # 0.227 there
    (100, 1.0): (0.227, 0.227),
    (300, 1.0): (0.227, 0.227),
}


@pytest.mark.parametrize(("n", "sigma"), CONSTANTS)
def test_n_times_the_constants_are_those_of_the_table(n: int, sigma: float) -> None:
    orders = np.array([2.0, 8.0])
    constants = n * sum_rdp(orders, 10**6, n, sigma, 0.2, 1e-2) * 2 / orders / 1e-4
    np.testing.assert_allclose(constants / (1 + MASK_SLACK), CONSTANTS[n, sigma], rtol=3e-3)


def test_the_table_of_3_6_was_too_small_where_its_grid_was_too_coarse() -> None:
    """At ``n = 10`` and order 8 it says 18.7; one pair already costs 19.5."""
    law, h = sum_law([0.2] * 9), 0.156
    assert 10 * renyi(8.0, 0.8 - h, 0.8, law) * 2 / 8 / h**2 == pytest.approx(19.503, abs=1e-3)


# Delta, sigma: 20 visible masks, hidden without replacement, all 200 sums, sums without
# replacement, hidden by coins (notes 3.6). There: 21.4 at coarser orders; 8.06 and 15.4 with
# other orders and a smaller constant.
EXAMPLE = {
    (0.3, 0.0): (20.69, 14.54, 28.8, 5.37, 11.4),
    (0.1, 0.0): (5.70, 4.77, 8.22, 3.53, 2.18),
    (0.3, 0.2): (12.9, 8.89, 15.25, 4.10, 4.88),
}


@pytest.mark.edges("0.1-0.0")
@pytest.mark.parametrize(("reach", "sigma"), EXAMPLE)
def test_the_worked_example(reach: float, sigma: float) -> None:
    d, rounds, n, rate, delta = 10**6, 200, 10, 0.1, 1e-5

    def masks(orders: Floats) -> Floats:
        return mask_rdp(orders, d, sigma, 0.2, reach).epsilon

    def sums(orders: Floats) -> Floats:
        return sum_rdp(orders, d, n, sigma, 0.2, reach)

    z = 1 / (math.sqrt(probit_constant(sigma, 0.2)) * reach)
    hidden_masks, hidden_sums = fixed_size(rate, masks, largest=12), fixed_size(rate, sums, 1e9, 12)
    ours = (
        rdp_to_dp(ORDERS, 20 * masks(ORDERS), delta)[0],
        rdp_to_dp(hidden_masks[0], rounds * hidden_masks[1], delta)[0],
        rdp_to_dp(SUM_ORDERS, rounds * sums(SUM_ORDERS), delta)[0],
        rdp_to_dp(hidden_sums[0], rounds * hidden_sums[1], delta)[0],
        poisson_epsilons(z, rate, rounds, delta)["prv"],
    )
    np.testing.assert_allclose(ours, EXAMPLE[reach, sigma], rtol=6e-3)


def test_the_concave_hull_is_above_its_points_and_exact_on_chords() -> None:
    x, y = np.array([0.0, 1.0, 2.0, 4.0]), np.array([0.0, 2.0, 2.5, 6.0])
    assert concave_hull(x, y, 0.5) == 1.0
    assert concave_hull(x, y, 2.0) == pytest.approx(2 + 4 / 3)
    assert concave_hull(x, y, 9.0) == 6.0
    with pytest.raises(ConfigError, match="at must"):
        concave_hull(x, y, -1.0)


def test_nothing_overflows_at_the_extremes() -> None:
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        for sigma, c in ((0.0, 2e-6), (1e9, 1e-6), (1e-320, 1e-100), (0.1, 0.5 - 1e-9), (0.0, 0.2)):
            for n in (1, 2, 60):
                eps = sum_rdp([1 + 1e-6, 1024.0], 5_200_000, n, sigma, c, 0.1)
                assert np.isfinite(eps).all(), (sigma, c)
                assert (eps >= 0).all()
