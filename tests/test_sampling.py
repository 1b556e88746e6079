"""Amplification by sampling: the printed theorems, and mixtures that they must bound."""

import math
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import numpy as np
import pytest

from fedbench.privacy.amplification import r_alpha
from fedbench.privacy.conversion import Floats
from fedbench.privacy.sampling import fixed_size


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


@pytest.mark.parametrize("pure", [math.inf, math.log(4)])
@pytest.mark.parametrize("rate", [0.02, 0.2, 0.7])
def test_no_three_neighbours_exceed_the_fixed_size_bound(rate: float, pure: float) -> None:
    orders, bound = fixed_size(rate, lambda a: r_alpha(a, 0.2), pure, largest=12)
    draw = np.random.Generator(np.random.PCG64(1))
    for p, q, r in [(0.2, 0.8, 0.2), (0.8, 0.2, 0.5), *draw.uniform(0.2, 0.8, (30, 3))]:
        pair = rate * p + (1 - rate) * r, rate * q + (1 - rate) * r
        for a, most in zip(orders, bound, strict=True):
            assert renyi(a, *pair) <= most * (1 + 1e-12)


@pytest.mark.parametrize("base", [gaussian, constant])
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
    assert (costs[1] <= fixed_size(0.01, base, math.inf, 64)[1]).all()
    assert (fixed_size(0.01, base, 0.5)[1] <= costs[1]).all()


def test_a_tiny_rate_keeps_its_digits() -> None:
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        for rate in (1e-12, 0.5, 1 - 1e-12):
            for scale in (0.0, 1e-9, 1e6):
                eps = fixed_size(rate, partial(np.multiply, scale), largest=300)[1]
                assert np.isfinite(eps).all()
                assert (eps >= 0).all()
                assert (eps <= np.arange(2, 301) * scale).all()
    rare = fixed_size(1e-6, lambda a: a * 0.3)[1][0]
    assert rare == pytest.approx(4e-12 * math.expm1(0.6), rel=1e-9)
    unknown = fixed_size(0.1, lambda a: np.where(a < 5, a, np.inf), largest=8)[1]
    assert np.isfinite(unknown).tolist() == [True] * 3 + [False] * 4
