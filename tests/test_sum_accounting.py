"""What sums under Skellam noise and sums of coins give away: by hand, and against exact sums."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ive
from scipy.stats import binom

from fedbench.api import Adjacency
from fedbench.core.errors import ConfigError
from fedbench.privacy.conversion import Floats
from fedbench.privacy.events import BinomialCounts, SkellamShare
from fedbench.privacy.sums import (
    COIN_SLACK,
    counted,
    one_coin,
    others,
    poisson_binomial_rdp,
    shifted_rdp,
    skellam_rdp,
)

ORDERS = np.array([1.001, 1.5, 2.0, 4.0, 8.0, 32.0])


def renyi(a: float, p: Floats, q: Floats) -> float:
    both = (p > 0) & (q > 0)
    loss = np.log(p[both]) - np.log(q[both])
    return float(np.log((p[both] * np.exp((a - 1) * loss)).sum()) / (a - 1))


def skellam_exactly(a: float, shift: int, mu: float) -> float:
    k = np.arange(-round(14 * mu**0.5) - 20, round(14 * mu**0.5) + 21)
    p, q = (np.asarray(ive(np.abs(i), mu), dtype=np.float64) for i in (k - shift, k))
    return renyi(a, p, q)


def test_the_bound_of_whole_orders_by_hand_and_its_line_between_them() -> None:
    # 2 * 9 / 20 = 0.9, and the lesser of (3 * 9 + 6 * 5) / 400 = 0.1425 and 15 / 20.
    assert shifted_rdp([2], 3, 5, 10)[0] == pytest.approx(1.0425)
    # 3 * 9 / 2 = 13.5, and the lesser of (5 * 9 + 30) / 4 = 18.75 and 7.5.
    assert shifted_rdp([3], 3, 5, 1)[0] == pytest.approx(21.0)
    two, three = shifted_rdp([2, 3], 4, 4, 7)
    between = shifted_rdp([1.2, 2.5], 4, 4, 7)
    assert between[0] == pytest.approx(two)
    assert between[1] == pytest.approx((0.5 * two + 0.5 * 2 * three) / 1.5)
    assert shifted_rdp([2, 3], 1, 1, 0).tolist() == [math.inf, math.inf]
    assert shifted_rdp([2, 3], 0, 0, 0).tolist() == [0, 0]
    assert shifted_rdp([2, 3], 0, 0, 5).tolist() == [0, 0]


@pytest.mark.parametrize("mu", [1.0, 9.0, 25.0, 100.0])
@pytest.mark.parametrize("shift", [1, 2, 5])
def test_the_bound_is_above_the_divergence_of_two_skellams(shift: int, mu: float) -> None:
    orders = [1.01, 1.5, 2, 2.5, 3, 5, 9]
    bounds = shifted_rdp(orders, shift, shift, mu)
    exact = [skellam_exactly(a, shift, mu) for a in orders]
    assert all(b >= e for b, e in zip(bounds, exact, strict=True))
    if mu == 100:
        whole = [b / e for a, b, e in zip(orders, bounds, exact, strict=True) if a == int(a)]
        assert max(whole) < 1.06  # and 1.01 at the first
        assert min(whole) < 1.02


def test_much_noise_is_as_good_as_gaussian_noise() -> None:
    event = SkellamShare(10_000, 5000.0, 1e7)
    gaussian = ORDERS[2:] * 5000**2 / (2 * 1e8)
    bound = skellam_rdp(ORDERS[2:], event, 10, "zero-out")
    assert bool((bound >= gaussian).all())
    assert bool((bound < gaussian * 1.01).all())


def test_neighbours_are_one_norm_apart_or_two_and_shares_add_up() -> None:
    event = SkellamShare(16, 10.0, 3.0)
    known: list[tuple[int, Adjacency]] = [(1, "zero-out"), (2, "replace-one")]
    for times, adjacency in known:
        for honest in (1, 7):
            # sqrt(16) 10 is less than 10**2
            expected = shifted_rdp(ORDERS, times * 10, times * 40, 3.0 * honest)
            bound = skellam_rdp(ORDERS, event, honest, adjacency)
            assert bound.tolist() == expected.tolist()
    # of whole numbers the L1 norm is at most the square of the L2 norm
    wide = skellam_rdp(ORDERS, SkellamShare(10**6, 10.0, 3.0), 1, "replace-one")
    assert wide.tolist() == shifted_rdp(ORDERS, 20, 200, 3.0).tolist()


@pytest.mark.parametrize(
    ("honest", "adjacency", "what"), [(1, "add-remove", "adjacency"), (0, "zero-out", "honest")]
)
def test_missing_noise_has_no_bound(honest: int, adjacency: Adjacency, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        skellam_rdp(ORDERS, SkellamShare(9, 1.0, 1.0), honest, adjacency)
    with pytest.raises(ConfigError, match=what):
        poisson_binomial_rdp(ORDERS, BinomialCounts(9, 2, 0.1, 0.2), honest, adjacency)


def heads(m: int, p: float) -> Floats:
    return np.asarray(binom.pmf(np.arange(m + 1), m, p))


def coins_exactly(left: float, right: float, m: int, base: Floats) -> Floats:
    """Of ``m`` coins that are all ``left`` or all ``right``, beside ``base``: both orders."""
    p, q = np.convolve(base, heads(m, left)), np.convolve(base, heads(m, right))
    return np.array([max(renyi(a, p, q), renyi(a, q, p)) for a in ORDERS])


def test_one_message_of_one_coordinate_by_hand_and_one_that_becomes_nothing() -> None:
    # From 1/4 to 3/4: ln(1/16 / 3/4 + 9/16 / 1/4) = ln(7/3) a coin at order 2.
    event = BinomialCounts(1, 3, 0.25, 0.25)
    bound = poisson_binomial_rdp([2], event, 1, "replace-one")[0]
    assert bound == pytest.approx(3 * math.log(7 / 3) * (1 + COIN_SLACK))
    # From 1/2 to 3/4: ln(2 (1/16 + 9/16)) = ln(5/4), or in the other order ln(1/3 + 1) = ln(4/3).
    bound = poisson_binomial_rdp([2], event, 1, "zero-out")[0]
    assert bound == pytest.approx(3 * math.log(4 / 3) * (1 + COIN_SLACK))
    # The line from 0 to 0.4**2 and ln(5/3), at 0.2**2; from 0.1 to 0.3 it were 0.154.
    event = BinomialCounts(1, 1, 0.4, 0.2)
    bound = poisson_binomial_rdp([1.000001], event, 1, "zero-out")[0]
    assert bound == pytest.approx(math.log(5 / 3) / 4 * (1 + COIN_SLACK), rel=1e-4)


@pytest.mark.parametrize("theta", [0.02, 0.1, 0.25])
@pytest.mark.parametrize(("honest", "m"), [(1, 4), (2, 3), (5, 3), (8, 4)])
@pytest.mark.parametrize("share", [0.3, 1.0])
def test_the_bound_exceeds_that_of_all_coins(
    honest: int, m: int, theta: float, share: float
) -> None:
    event = BinomialCounts(1, m, theta, share * theta)
    low, high, rest = 0.5 - theta, 0.5 + theta, (honest - 1) * m
    pairs: list[tuple[Adjacency, float, float]] = [
        ("replace-one", low, low + 2 * share * theta),
        ("zero-out", 0.5, 0.5 + share * theta),
    ]
    for adjacency, left, right in pairs:
        bound = poisson_binomial_rdp(ORDERS, event, honest, adjacency)
        worst = np.zeros(len(ORDERS))
        for k in range(rest + 1):
            base = np.convolve(heads(k, high), heads(rest - k, low))
            worst = np.maximum(worst, coins_exactly(left, right, m, base))
        assert bool((bound >= worst).all())
        if theta <= 0.1 and share == 1:
            assert bool((bound <= 1.05 * worst).all())


@given(
    st.lists(st.integers(0, 100), min_size=0, max_size=6),
    st.integers(0, 100),
    st.integers(1, 100),
    st.floats(0.01, 0.45),
)
def test_the_worst_is_at_the_ends(places: list[int], start: int, change: int, theta: float) -> None:
    # other clients' chances anywhere, and the changed one's anywhere at its distance
    g = change / 100 * 2 * theta
    left = 0.5 - theta + start / 100 * (2 * theta - g)
    base = np.ones(1)
    for place in places:
        base = np.convolve(base, heads(1, 0.5 - theta + 2 * theta * place / 100))
    found = coins_exactly(left, left + g, 1, base)
    bound = one_coin(ORDERS, 0.5 - theta, np.array([g]), theta, len(places) + 1)[:, 0]
    assert bool((found <= bound * (1 + 1e-9) + 1e-12).all())


@given(st.floats(0, 1), st.integers(1, 4))
def test_coordinates_share_the_norm_of_a_change(share: float, honest: int) -> None:
    # all of it in one coordinate, or any part of it in the other
    theta, norm = 0.2, 0.15
    low = 0.5 - theta
    steps = 2 * norm * share**0.5, 2 * norm * (1 - share) ** 0.5
    base = heads(honest - 1, low)
    found = sum(coins_exactly(low, low + step, 1, base) for step in steps)
    bound = poisson_binomial_rdp(ORDERS, BinomialCounts(2, 1, theta, norm), honest, "replace-one")
    assert bool((found <= bound).all())


def test_small_changes_cost_what_the_fisher_information_says() -> None:
    # m h / (h / 4) for h fair coins: 4 m Delta**2 / h, times a / 2.
    event = BinomialCounts(10**6, 5, 0.01, 0.4)
    for honest in (1, 10):
        gaussian = ORDERS / 2 * 4 * 5 * 0.4**2 / honest
        bound = poisson_binomial_rdp(ORDERS, event, honest, "zero-out")
        assert bool((bound >= gaussian).all())
        assert bool((bound <= 1.02 * gaussian).all())
    # 1 / (1/4 * 3/4) a coin, more than on the way to 3/4
    event = BinomialCounts(10**6, 2, 0.25, 0.01)
    bound = poisson_binomial_rdp([1.000001], event, 1, "replace-one")[0]
    assert bound == pytest.approx(2 * 0.02**2 / 2 / 0.1875 * (1 + COIN_SLACK), rel=1e-4)


def test_groups_fit_whatever_the_others_do() -> None:
    assert [len(base) for base in others(0.2, 48)] == [49] * 49
    # Of 60 coins 31 and 29 hold 15 and 14 pairs, and 29 pairs and 1 are 59 numbers of heads.
    assert [len(base) for base in others(0.2, 60)] == [59] * 30
    assert [base.tolist() for base in others(0.2, 0)] == [[1.0]]


def test_more_honest_clients_hide_more_up_to_what_is_counted() -> None:
    event = BinomialCounts(100, 3, 0.25, 0.5)
    prices = [
        poisson_binomial_rdp([2.0, 8.0], event, honest, "replace-one")
        for honest in (1, 2, 5, 20, 48, 49, 80, 200, 257, 10**6)
    ]
    for fewer, more in pairwise(prices[:5]):
        assert bool((more < fewer).all())
    # 80 in groups of two, of which one is left out: a bound that is 3 % above that of 77 others
    assert bool((prices[6] < prices[4]).all())
    assert prices[-1].tolist() == prices[-2].tolist()
    assert counted(0.499) == 97  # 0.001**96 = 1e-288


def test_coins_in_groups_are_no_less_than_all_of_them() -> None:
    theta, honest, g = 0.2, 61, np.array([0.1])
    bound = one_coin(ORDERS, 0.3, g, theta, honest)[:, 0]
    worst = np.zeros(len(ORDERS))
    for k in range(honest):
        base = np.convolve(heads(k, 0.7), heads(honest - 1 - k, 0.3))
        worst = np.maximum(worst, coins_exactly(0.3, 0.4, 1, base))
    assert bool((bound >= worst).all())
    assert bool((bound <= 1.06 * worst).all())


def test_coins_nearly_without_bias_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"theta must be in \[0.001, 1/2\), got 0.0001"):
        poisson_binomial_rdp(ORDERS, BinomialCounts(9, 2, 1e-4, 1e-4), 3, "zero-out")
