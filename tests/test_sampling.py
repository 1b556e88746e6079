"""Amplification by sampling: the printed theorems, and mixtures that they must bound."""

import math
from collections.abc import Callable
from itertools import pairwise

import mpmath
import numpy as np
import pytest

from fedbench.privacy.amplification import r_alpha
from fedbench.privacy.conversion import Floats
from fedbench.privacy.sampling import between, fixed_size, poisson, pure_sampled


def gaussian(alpha: Floats) -> Floats:
    return alpha * 0.3


def constant(alpha: Floats) -> Floats:
    return np.full_like(alpha, 0.7)


def renyi(alpha: float, p: float, q: float) -> float:
    total = p**alpha * q ** (1 - alpha) + (1 - p) ** alpha * (1 - q) ** (1 - alpha)
    return math.log(total) / (alpha - 1)


@pytest.mark.parametrize("pure", [math.inf, 0.9, 0.2])
@pytest.mark.parametrize("rate", [0.4, 0.01])
def test_fixed_size_is_theorem_9_term_by_term(rate: float, pure: float) -> None:
    def eps(a: int) -> float:
        return min(0.3 * a, pure)

    orders, ours = fixed_size(rate, gaussian, pure, largest=7)
    assert orders.tolist() == [2, 3, 4, 5, 6, 7]
    for a, value in zip(range(2, 8), ours, strict=True):
        grown = (math.exp(min(pure, 99.0)) - 1) ** 2
        second = min(4 * (math.exp(eps(2)) - 1), math.exp(eps(2)) * min(2, grown))
        total = 1 + rate**2 * math.comb(a, 2) * second
        for j in range(3, a + 1):
            most = min(2.0, (math.exp(min(pure, 99.0)) - 1) ** j)
            total += rate**j * math.comb(a, j) * math.exp((j - 1) * eps(j)) * most
        assert value == pytest.approx(min(math.log(total) / (a - 1), eps(a)), rel=1e-12)


@pytest.mark.parametrize("rate", [0.4, 1e-3])
def test_poisson_is_theorem_5_as_it_is_printed(rate: float) -> None:
    mpmath.mp.dps = 40
    q = mpmath.mpf(rate)
    _, ours = poisson(rate, gaussian, largest=9)
    for a, value in zip(range(2, 10), ours, strict=True):
        total = (1 - q) ** (a - 1) * (a * q - q + 1)
        total += mpmath.binomial(a, 2) * q**2 * (1 - q) ** (a - 2) * mpmath.exp(0.3 * 2)
        for j in range(3, a + 1):
            part = mpmath.binomial(a, j) * (1 - q) ** (a - j) * q**j
            total += 3 * part * mpmath.exp((j - 1) * mpmath.mpf(0.3) * j)
        expected = float(mpmath.log(total) / (a - 1))
        assert value == pytest.approx(min(expected, 0.3 * a), rel=1e-12)


@pytest.mark.parametrize("pure", [math.inf, math.log(4)])
@pytest.mark.parametrize("rate", [0.02, 0.2, 0.7])
def test_no_three_neighbours_exceed_the_fixed_size_bound(rate: float, pure: float) -> None:
    orders, bound = fixed_size(rate, lambda a: r_alpha(a, 0.2), pure, largest=12)
    draw = np.random.Generator(np.random.PCG64(1))
    for p, q, r in [(0.2, 0.8, 0.2), (0.8, 0.2, 0.5), *draw.uniform(0.2, 0.8, (30, 3))]:
        pair = rate * p + (1 - rate) * r, rate * q + (1 - rate) * r
        for a, most in zip(orders, bound, strict=True):
            assert renyi(a, *pair) <= most * (1 + 1e-12)


@pytest.mark.parametrize("pure", [math.inf, math.log(4)])
@pytest.mark.parametrize("rate", [0.02, 0.2, 0.7])
def test_no_coin_exceeds_the_poisson_bound_in_either_direction(rate: float, pure: float) -> None:
    orders, bound = poisson(rate, lambda a: r_alpha(a, 0.2), pure, largest=12)
    draw = np.random.Generator(np.random.PCG64(2))
    for there, absent in [(0.8, 0.2), (0.2, 0.8), *draw.uniform(0.2, 0.8, (30, 2))]:
        mixed = rate * there + (1 - rate) * absent
        for a, most in zip(orders, bound, strict=True):
            assert max(renyi(a, mixed, absent), renyi(a, absent, mixed)) <= most * (1 + 1e-12)


@pytest.mark.parametrize("sampled", [fixed_size, poisson])
@pytest.mark.parametrize("base", [gaussian, constant])
def test_sampling_never_costs_and_costs_more_the_more_clients_are_drawn(
    sampled: Callable[..., tuple[Floats, Floats]], base: Callable[[Floats], Floats]
) -> None:
    costs = [sampled(rate, base)[1] for rate in (1e-6, 0.01, 0.3, 0.999, 1.0)]
    orders, _ = sampled(1.0, base)
    assert len(orders) == 63
    np.testing.assert_array_equal(costs[-1], base(orders))
    for less, more in pairwise(costs):
        assert (less <= more).all()
    assert (costs[0] > 0).all()
    assert costs[0][0] < 1e-11  # of the second order in the rate
    assert (costs[1] <= sampled(0.01, base, math.inf, 64)[1]).all()
    assert (sampled(0.01, base, 0.5)[1] <= costs[1]).all()


@pytest.mark.parametrize("sampled", [fixed_size, poisson])
def test_a_tiny_rate_keeps_its_digits(sampled: Callable[..., tuple[Floats, Floats]]) -> None:
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        for rate in (1e-12, 0.5, 1 - 1e-12):
            for scale in (0.0, 1e-9, 1e6):
                eps = sampled(rate, lambda a, s=scale: a * s, largest=300)[1]
                assert np.isfinite(eps).all()
                assert (eps >= 0).all()
                assert (eps <= np.arange(2, 301) * scale).all()
    assert sampled(1e-6, lambda a: a * 0.3)[1][0] == pytest.approx(
        (4 if sampled is fixed_size else 1) * 1e-12 * math.expm1(0.6), rel=1e-9
    )
    unknown = sampled(0.1, lambda a: np.where(a < 5, a, np.inf), largest=8)[1]
    assert np.isfinite(unknown).tolist() == [True] * 3 + [False] * 4


def test_pure_epsilon_is_sampled_without_overflow() -> None:
    mpmath.mp.dps = 60
    for eps in (1e-12, 0.1, 1.0, 30.0, 700.0, 1e5):
        for rate in (1e-9, 0.1, 0.9):
            exact = mpmath.log1p(mpmath.mpf(rate) * mpmath.expm1(mpmath.mpf(eps)))
            assert pure_sampled(eps, rate) == pytest.approx(float(exact), rel=1e-12)
    assert pure_sampled(3.0, 1.0) == 3.0
    assert pure_sampled(0.0, 0.5) == 0.0
    assert math.isinf(pure_sampled(math.inf, 0.5))


def test_a_pure_bound_is_sampled_too() -> None:
    _, ours = poisson(0.5, constant, 0.7, largest=64)
    assert ours[-1] == pure_sampled(0.7, 0.5) < 0.7
    assert ours[0] < ours[-1]


def test_between_two_orders_the_chord_is_above_what_a_mixture_costs() -> None:
    mixed = 0.3 * 0.8 + 0.7 * 0.2
    integers = np.arange(2.0, 9)
    exact = np.array([renyi(a, mixed, 0.2) for a in integers])
    asked = np.array([1.01, 1.5, 2.0, 2.5, 6.9, 8.0, 8.1])
    ours = between(asked, integers, exact)
    assert ours[[2, 5]] == pytest.approx(exact[[0, 6]])
    assert ours[1] == pytest.approx(exact[0])  # below 2, that of 2
    assert (ours[:-1] >= [renyi(a, mixed, 0.2) * (1 - 1e-12) for a in asked[:-1]]).all()
    assert ours[3] == pytest.approx((exact[0] + 2 * exact[1]) / 2 / 1.5)
    assert math.isinf(ours[-1])
    holes = np.where(integers == 3, np.inf, exact)
    assert between([3.0], integers, holes)[0] == pytest.approx((exact[0] + 3 * exact[2]) / 2 / 2)
