"""Amplification by sampling: printed theorems, integrals, many digits, and mixtures in between."""

import math
import warnings
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import mpmath
import numpy as np
import numpy.typing as npt
import pytest
from opacus.accountants import PRVAccountant

from fedbench.privacy.amplification import r_alpha
from fedbench.privacy.conversion import Floats, gdp_epsilon, rdp_to_dp
from fedbench.privacy.sampling import (
    FRACTIONS,
    INTEGERS,
    _log_moments,
    fixed_size,
    fixed_size_rdp,
    poisson_epsilons,
    poisson_rdp,
)


def renyi(alpha: float, p: float, q: float) -> float:
    total = p**alpha * q ** (1 - alpha) + (1 - p) ** alpha * (1 - q) ** (1 - alpha)
    return math.log(total) / (alpha - 1)


@pytest.mark.parametrize("pure", [math.inf, 0.9, 0.2])
@pytest.mark.parametrize("rate", [0.4, 0.01])
def test_fixed_size_is_theorem_9_term_by_term(rate: float, pure: float) -> None:
    def eps(a: int) -> float:
        return min(0.3 * a, pure)

    orders, ours = fixed_size(rate, lambda a: a * 0.3, pure, largest=7)
    assert orders.tolist() == [2, 3, 4, 5, 6, 7]
    grown = math.exp(min(pure, 99.0)) - 1
    for a, value in zip(range(2, 8), ours, strict=True):
        second = min(4 * (math.exp(eps(2)) - 1), math.exp(eps(2)) * min(2, grown**2))
        total = 1 + rate**2 * math.comb(a, 2) * second
        for j in range(3, a + 1):
            most = math.exp((j - 1) * eps(j)) * min(2.0, grown**j)
            total += rate**j * math.comb(a, j) * most
        assert value == pytest.approx(min(math.log(total) / (a - 1), eps(a)), rel=1e-12)


@pytest.mark.parametrize("pure", [math.inf, math.log(4)])
@pytest.mark.parametrize("rate", [0.02, 0.2, 0.7])
def test_no_three_neighbours_exceed_the_fixed_size_bound(rate: float, pure: float) -> None:
    orders, bound = fixed_size(rate, lambda a: r_alpha(a, 0.2), pure, largest=12)
    draw = np.random.Generator(np.random.PCG64(1))
    for p, q, r in [(0.2, 0.8, 0.2), (0.8, 0.2, 0.5), *draw.uniform(0.2, 0.8, (30, 3))]:
        pair = rate * p + (1 - rate) * r, rate * q + (1 - rate) * r
        for a, most in zip(orders, bound, strict=True):
            assert renyi(a, *pair) <= most * (1 + 1e-12)


@pytest.mark.parametrize("base", [lambda a: a * 0.3, lambda a: np.full_like(a, 0.7)])
def test_sampling_never_costs_and_costs_more_the_more_clients_are_drawn(
    base: Callable[[Floats], Floats],
) -> None:
    costs = [fixed_size(rate, base)[1] for rate in (1e-6, 0.01, 0.3, 0.999, 1.0)]
    orders, _ = fixed_size(1.0, base)
    assert len(orders) == 63
    np.testing.assert_array_equal(costs[-1], base(orders))
    for less, more in pairwise(costs):
        assert (less <= more).all()
    assert (costs[0] > 0).all()
    assert costs[0][0] < 1e-11  # of the second order in the rate
    assert (fixed_size(0.01, base, 0.5)[1] <= costs[1]).all()


def test_a_tiny_rate_keeps_its_digits_and_nothing_overflows() -> None:
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        for rate in (1e-12, 0.5, 1 - 1e-12):
            for scale in (0.0, 1e-9, 1e6):
                eps = fixed_size(rate, partial(np.multiply, scale), largest=300)[1]
                assert ((eps >= 0) & (eps <= np.arange(2, 301) * scale)).all()
        for z in (1e-99, 1e-3, 1e150):
            for rate in (1e-9, 0.5):
                for rdp in (fixed_size_rdp(z, rate)[1], poisson_rdp(z, rate, 10)[1] / 10):
                    assert (np.isfinite(rdp) & (rdp >= 0)).all()
                    assert rdp[-1] <= 512 / z / z * (1 + 1e-12)
    rare = fixed_size(1e-6, lambda a: a * 0.3)[1][0]
    assert rare == pytest.approx(4e-12 * math.expm1(0.6), rel=1e-9)
    unknown = fixed_size(0.1, lambda a: np.where(a < 5, a, np.inf), largest=8)[1]
    assert np.isfinite(unknown).tolist() == [True] * 3 + [False] * 4


# Gaussian sums


def mixture_moment(alpha: float, u: float, first: npt.ArrayLike, second: npt.ArrayLike) -> float:
    """``D_a`` of two mixtures of unit normals at 0, ``u`` and ``2u``, by a fine sum."""
    x = np.arange(-14, 2 * u * max(alpha, 2) + 14, 0.01)
    bells = np.stack([-((x - k * u) ** 2) / 2 for k in range(3)], axis=1)
    with np.errstate(divide="ignore"):
        p, q = (np.logaddexp.reduce(bells + np.log(weights), axis=1) for weights in (first, second))
    terms = alpha * p + (1 - alpha) * q
    return float(np.log(np.exp(terms).sum() * 0.01 / math.sqrt(2 * math.pi)) / (alpha - 1))


@pytest.mark.parametrize(("z", "rate"), [(1.0, 0.1), (0.5, 0.5), (4.0, 0.01), (20.0, 0.5)])
def test_poisson_rdp_is_the_integral_at_every_order(z: float, rate: float) -> None:
    orders, rdp = poisson_rdp(z, rate, steps=3)
    for a in (1.1, 1.75, 2.0, 2.7, 6.0, 8.5):
        exact = 3 * mixture_moment(a, 1 / z, [1 - rate, rate, 0], [1, 0, 0])
        assert rdp[orders == a][0] == pytest.approx(exact, rel=1e-5)


def test_poisson_rdp_agrees_with_many_digits_and_without_fractions_where_noise_is_strong() -> None:
    mpmath.mp.dps = 60
    z, q = mpmath.mpf(5), mpmath.mpf("0.01")
    orders, rdp = poisson_rdp(5.0, 0.01)
    for a in (64, 1024):
        terms = [
            mpmath.binomial(a, k) * (1 - q) ** (a - k) * q**k * mpmath.exp((k * k - k) / (2 * z**2))
            for k in range(a + 1)
        ]
        exact = mpmath.log(mpmath.fsum(terms)) / (a - 1)
        assert rdp[orders == a][0] == pytest.approx(float(exact), rel=1e-9)

    assert (INTEGERS[0], INTEGERS[-1]) == (2, 1024)
    assert set(np.append(INTEGERS, FRACTIONS)) == set(poisson_rdp(1.0, 0.1)[0])
    np.testing.assert_array_equal(poisson_rdp(31.0, 0.1)[0], INTEGERS)
    assert (poisson_rdp(1e9, 0.1)[1] >= 0.1**2 * INTEGERS / 2e18).all()  # no zero by rounding


# z, rate, steps: RDP, and the truth by another accountant (reference notes 1 and 2), at delta 1e-5
TABLE = [
    (1.1, 0.01, 10_000, 5.632, 5.193),
    (50.0, 0.01, 10, 0.0037, 0.00115),
    (1.0, 0.2, 500, 40.94, 38.17),
    (0.5, 0.1, 1000, 134.8, 126.0),  # 136 at coarser orders
]


@pytest.mark.edges("1.1-0.01-10000-5.632-5.193", "50.0-0.01-10-0.0037-0.00115")
@pytest.mark.parametrize(("z", "rate", "steps", "rdp", "truth"), TABLE)
def test_poisson_epsilons_are_those_of_the_table(
    z: float, rate: float, steps: int, rdp: float, truth: float
) -> None:
    ours = poisson_epsilons(z, rate, steps, 1e-5)
    assert ours["rdp"] == pytest.approx(rdp, rel=5e-3)
    # the accountant's own error is part of its answer: 1 % of epsilon, at most 0.01 on a short grid
    assert truth * 0.9995 <= ours["prv"] <= truth * 1.002 + max(1e-4, min(0.01, rdp / 100))


def test_prv_is_above_the_exact_gaussian_by_its_error_where_almost_everybody_is_drawn() -> None:
    for z, steps, delta in [(1.0, 1, 1e-5), (5.0, 100, 1e-3), (20.0, 100, 1e-9)]:
        exact = gdp_epsilon(math.sqrt(steps) / z, delta)
        ours = poisson_epsilons(z, 1 - 1e-9, steps, delta)
        assert exact < ours["prv"] < min(exact + 0.012, ours["rdp"])
        whole = poisson_epsilons(z, 1.0, steps, delta)
        assert whole == {"gdp": exact, "rdp": pytest.approx(ours["rdp"], rel=1e-6)}


def test_no_epsilon_is_negative_nothing_is_said_and_prv_is_left_out_where_it_is_slow() -> None:
    accountant = PRVAccountant()
    accountant.history = [(100.0, 0.001, 1)]
    with warnings.catch_warnings(action="ignore"):
        assert accountant.get_epsilon(1e-2) < 0
    with warnings.catch_warnings(action="error"):
        assert poisson_epsilons(100.0, 0.001, 1, 1e-2) == {"rdp": 0.0, "prv": 0.0}
        assert poisson_epsilons(5.0, 0.01, 10, 1e-5)["prv"] > 0
    for z, steps, delta in ((0.1, 200, 1e-5), (1.0, 10, 1e-12), (2e3, 10, 1e-5), (1e-50, 1, 1e-5)):
        ours = poisson_epsilons(z, 0.1, steps, delta)
        assert set(ours) == {"rdp"}
        assert 0 <= ours["rdp"] <= rdp_to_dp(INTEGERS, steps * INTEGERS / 2 / z**2, delta)[0]


@pytest.mark.parametrize(
    "price",
    [
        lambda x: poisson_epsilons(2 / x, 0.1, 6, 1e-5),
        lambda x: poisson_epsilons(2.0, 0.1 * x, 6, 1e-5),
        lambda x: poisson_epsilons(2.0, 0.1, int(4 * x), 1e-5),
        lambda x: poisson_epsilons(2.0, 0.1, 6, 1e-5 / x),
    ],
    ids=["noise", "rate", "steps", "delta"],
)
def test_less_noise_a_larger_rate_more_steps_and_a_smaller_delta_cost_more(
    price: Callable[[float], dict[str, float]],
) -> None:
    for less, more in pairwise([price(x) for x in (0.5, 1.0, 2.0)]):
        assert less["rdp"] < more["rdp"]
        assert less["prv"] < more["prv"]


@pytest.mark.parametrize("z", [0.5, 1.0, 3.0, 30.0])
def test_fixed_size_rdp_is_theorem_27_at_even_terms_and_below_it_at_odd_ones(z: float) -> None:
    mpmath.mp.dps = 60
    rate = mpmath.mpf("0.05")
    v = 1 / mpmath.mpf(z)

    def even(j: int) -> mpmath.mpf:
        signs = [(-1) ** (j - i) * mpmath.binomial(j, i) for i in range(j + 1)]
        cgf = [mpmath.exp(v * v * i * (i - 1) / 2) for i in range(j + 1)]
        return mpmath.fsum(s * m for s, m in zip(signs, cgf, strict=True))

    orders, ours = fixed_size_rdp(z, 0.05)
    for a in (2, 3, 6):
        floor = theorem = mpmath.mpf(1)
        for j in range(2, a + 1):
            neighbours = even(j - j % 2) * even(j + j % 2)
            at_most = 2 * mpmath.exp(v * v * j * (j - 1) / 2)
            part = rate**j * mpmath.binomial(a, j)
            theorem += part * min(4 * mpmath.sqrt(neighbours), at_most)
            floor += part * min(4 * even(j), at_most) if j % 2 == 0 else 0
        value = ours[orders == a][0]
        totals = (float(mpmath.log(total) / (a - 1)) for total in (floor, theorem))
        low, high = (min(total, a / (2 * z * z)) for total in totals)
        assert low * (1 - 1e-9) <= value <= high * (1 + 1e-5)
        if a == 2:
            assert value == pytest.approx(high, rel=1e-9)


@pytest.mark.parametrize("v", [1e-3, 0.1, 0.5])
def test_the_integrated_moments_are_forward_differences_where_these_are_known(v: float) -> None:
    mpmath.mp.dps = 300

    def even(j: int) -> float:
        square = mpmath.mpf(v) ** 2
        terms = [
            (-1) ** i * mpmath.binomial(j, i) * mpmath.exp(square * i * (i - 1) / 2)
            for i in range(j + 1)
        ]
        return float(mpmath.log(mpmath.fsum(terms)))

    js = [2, 4, 10, 40]
    ours = _log_moments(np.array([*js, 3.0, 39.0]), v)
    np.testing.assert_allclose(ours[:4], [even(j) for j in js], rtol=1e-9, atol=1e-7)
    assert 2 * ours[4] <= ours[0] + ours[1]  # Cauchy, Schwarz
    x = np.linspace(-9, 12, 200_001)
    cubes = np.abs(np.expm1(v * x - v * v / 2)) ** 3 * np.exp(-x * x / 2)
    third = cubes.sum() * (x[1] - x[0]) / math.sqrt(2 * math.pi)
    assert ours[4] == pytest.approx(math.log(third), abs=1e-6)


@pytest.mark.parametrize(("z", "rate"), [(2.0, 0.1), (1.0, 0.3), (3.0, 0.7), (0.4, 0.05)])
def test_no_three_vectors_exceed_the_fixed_size_bound(z: float, rate: float) -> None:
    orders, bound = fixed_size_rdp(z, rate)
    ends = np.eye(3)
    for a in (2.0, 5.0, 16.0):
        for rest in ends * (1 - rate):  # at one end, between the two, at the other end
            first, second = rest + rate * ends[0], rest + rate * ends[2]
            for pair in ((first, second), (second, first)):
                assert mixture_moment(a, 1 / z / 2, *pair) <= bound[orders == a][0]


def test_fixed_size_rdp_of_the_table_and_never_above_the_whole() -> None:
    orders, rdp = fixed_size_rdp(1.1, 0.01)
    assert rdp_to_dp(orders, 10_000 * rdp, 1e-5)[0] == pytest.approx(11.77, abs=5e-3)
    for z in (0.3, 1.0, 10.0):
        costs = [fixed_size_rdp(z, rate)[1] for rate in (1e-6, 0.01, 0.5, 1.0)]
        np.testing.assert_allclose(costs[-1], orders / (2 * z * z))
        for less, more in pairwise(costs):
            assert (less <= more * (1 + 1e-12)).all()
    for noisy, exact in pairwise([fixed_size_rdp(z, 0.1)[1] for z in (30.0, 3.0, 0.3)]):
        assert (noisy < exact).all()
