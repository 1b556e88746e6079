"""Privacy of sums of masks, of Skellam noise and of coins, by hand and beside exact sums."""

import math
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ive
from scipy.stats import binom

from fedbench.api import Adjacency
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
from fedbench.privacy.events import BinomialCounts, SkellamShare
from fedbench.privacy.sampling import fixed_size, poisson_epsilons
from fedbench.privacy.sums import (
    COIN_SLACK,
    MASK_SLACK,
    SUM_ORDERS,
    counted,
    one_coin,
    others,
    poisson_binomial_rdp,
    shifted_rdp,
    skellam_rdp,
    sum_rdp,
)

SETTINGS = [(0.0, 0.2), (0.05, 0.2), (1.0, 0.2), (0.1, 0.05), (0.0, 0.01), (20.0, 0.4)]
FEW = np.array([1.001, 1.5, 2.0, 4.0, 8.0, 32.0])


def renyi(alpha: float, p: Floats, q: Floats) -> float:
    at = (q > 1e-290) & (p > 1e-290)
    terms = alpha * np.log(p[at]) + (1 - alpha) * np.log(q[at])
    return float(np.logaddexp.reduce(terms)) / (alpha - 1)


# masks


def sum_law(chances: list[float]) -> Floats:
    """``(len + 1,)``: the number of ones among bits of these chances."""
    law = np.ones(1)
    for p in chances:
        law = np.convolve(law, [1 - p, p])
    return law


def bit_renyi(alpha: float, x: float, y: float, law: Floats) -> float:
    """``D_a`` of a bit of probability ``x``, or ``y``, plus a number of this ``law``."""
    p, q = (np.convolve(law, [1 - z, z]) for z in (x, y))
    return renyi(alpha, p, q)


@pytest.mark.edges("2-0.0-0.2", "3-1.0-0.2", "9-20.0-0.4")
@pytest.mark.parametrize(("sigma", "c"), SETTINGS)
@pytest.mark.parametrize("n", [2, 3, 9])
def test_no_sum_exceeds_the_bound_whatever_the_others_are(n: int, sigma: float, c: float) -> None:
    draw = np.random.Generator(np.random.PCG64(n))
    low = float(marginal(c, sigma, c))
    alphas = [1.05, 2.0, 8.0, 64.0]
    for d in (1, 3) * 8:
        left = c + (1 - 2 * c) * draw.beta(0.3, 0.6, d)
        right = c + (1 - 2 * c) * draw.beta(0.6, 0.3, d)
        bound = sum_rdp(alphas, d, n, sigma, c, float(np.linalg.norm(left - right)))
        x, y = marginal(left, sigma, c), marginal(right, sigma, c)
        corner = draw.random(n - 1) < draw.random()
        inside = low + (1 - 2 * low) * draw.random(n - 1)
        for chances in (np.where(corner, low, 1 - low), inside, np.full(n - 1, low)):
            law = sum_law(chances.tolist())
            for a, most in zip(alphas, bound, strict=True):
                spent = sum(bit_renyi(a, *pair, law) for pair in zip(x, y, strict=True))
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
                    spent = [bit_renyi(a, *pair, law) for law in laws]
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
    p = 0.2
    d = 1000
    reach = 0.5
    h2 = reach**2 / d
    ours = sum_rdp([2.0], d, n, 0.0, p, reach)[0]
    assert d * math.log1p(h2 / (n * p * (1 - p))) <= ours * (1 + 1e-12)
    law = sum_law([p] * (n - 1))
    at_one_size = [
        bit_renyi(2.0, x, y, law) * h2 / h**2 * d
        for h in np.geomspace(0.005, 0.6, 40)
        for x, y in ((p, p + h), (p + h, p), (1 - p, 1 - p - h), (1 - p - h, 1 - p))
    ]
    assert max(at_one_size) * (1 - 1e-9) <= ours <= max(at_one_size) * (1 + 1.1 * MASK_SLACK)


def test_the_whole_cube_is_one_pair() -> None:
    orders = np.array([1.5, 4.0, 64.0])
    for n, sigma in ((3, 0.0), (20, 0.3)):
        p = float(marginal(0.2, sigma, 0.2))
        law = sum_law([p] * (n - 1))
        pairs = ((p, 1 - p), (1 - p, p))
        exact = np.array([7 * max(bit_renyi(a, *pair, law) for pair in pairs) for a in orders])
        ours = sum_rdp(orders, 7, n, sigma, 0.2)
        assert (exact <= ours * (1 + 1e-9)).all()
        most = np.minimum(exact * (1 + MASK_SLACK), 7 * r_alpha(orders, p))
        np.testing.assert_allclose(ours, most, rtol=1e-9)
        np.testing.assert_array_equal(sum_rdp(orders, 7, n, sigma, 0.2, cube(7, 0.2)), ours)


@pytest.mark.parametrize(
    ("n", "sigma", "table"),
    [
        (10, 0.0, (10.37, 19.50)),  # 18.7 there; h = .156 below 1-c, the others all at c: 19.503
        (100, 0.0, (6.55, 7.271)),  # 7.21 there
        (10, 1.0, (0.2274, 0.2308)),  # 0.227 there
        (100, 1.0, (0.227, 0.227)),
        (300, 1.0, (0.227, 0.227)),
    ],
)
def test_n_times_the_constants_are_those_of_the_table(n: int, sigma: float, table: Any) -> None:
    """Orders 2 and 8 (notes 3.6), or what a pair reaches where its grid missed it."""
    orders = np.array([2.0, 8.0])
    constants = n * sum_rdp(orders, 10**6, n, sigma, 0.2, 1e-2) * 2 / orders / 1e-4
    np.testing.assert_allclose(constants / (1 + MASK_SLACK), table, rtol=3e-3)


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
def test_the_worked_example_comes_out(reach: float, sigma: float) -> None:
    d = 10**6
    rounds = 200
    rate = 0.1
    delta = 1e-5

    def masks(orders: Floats) -> Floats:
        return mask_rdp(orders, d, sigma, 0.2, reach).epsilon

    def sums(orders: Floats) -> Floats:
        return sum_rdp(orders, d, 10, sigma, 0.2, reach)

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
    hull = [concave_hull(x, y, at) for at in (0.5, 2.0, 9.0)]
    assert hull == pytest.approx([1.0, 2 + 4 / 3, 6.0])
    with pytest.raises(ConfigError, match="at must"):
        concave_hull(x, y, -1.0)


def test_nothing_overflows_at_the_extremes() -> None:
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        for sigma, c in ((0.0, 2e-6), (1e9, 1e-6), (1e-320, 1e-100), (0.1, 0.5 - 1e-9), (0.0, 0.2)):
            for n in (1, 2, 60):
                eps = sum_rdp([1 + 1e-6, 1024.0], 5_200_000, n, sigma, c, 0.1)
                assert (np.isfinite(eps) & (eps >= 0)).all(), (sigma, c)


# Skellam noise


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
    assert between.tolist() == pytest.approx([two, (0.5 * two + 0.5 * 2 * three) / 1.5])
    assert shifted_rdp([2, 3], 1, 1, 0).tolist() == [math.inf, math.inf]
    assert shifted_rdp([2, 3], 0, 0, 0).tolist() == [0, 0]
    assert shifted_rdp([2, 3], 0, 0, 5).tolist() == [0, 0]


def test_the_bound_is_above_the_divergence_of_two_skellams_and_near_that_of_a_gaussian() -> None:
    orders = np.array([1.01, 1.5, 2, 2.5, 3, 5, 9])
    for mu, shift in product((1.0, 9.0, 25.0, 100.0), (1, 2, 5)):
        exact = [skellam_exactly(a, shift, mu) for a in orders]
        ratios = shifted_rdp(orders, shift, shift, mu) / exact
        assert (ratios >= 1).all()
        whole = ratios[orders == orders.round()]
        assert mu < 100 or max(whole) < 1.06  # and 1.01 at the first
        assert mu < 100 or min(whole) < 1.02

    # much noise is as good as Gaussian noise
    gaussian = FEW[2:] * 5000**2 / (2 * 1e8)
    bound = skellam_rdp(FEW[2:], SkellamShare(10_000, 5000.0, 1e7), 10, "zero-out")
    assert ((gaussian <= bound) & (bound < gaussian * 1.01)).all()


def test_neighbours_are_one_norm_apart_or_two_and_shares_add_up() -> None:
    event = SkellamShare(16, 10.0, 3.0)
    known: list[tuple[int, Adjacency]] = [(1, "zero-out"), (2, "replace-one")]
    for times, adjacency in known:
        for honest in (1, 7):
            # sqrt(16) 10 is less than 10**2
            expected = shifted_rdp(FEW, times * 10, times * 40, 3.0 * honest)
            assert skellam_rdp(FEW, event, honest, adjacency).tolist() == expected.tolist()
    # of whole numbers the L1 norm is at most the square of the L2 norm
    wide = skellam_rdp(FEW, SkellamShare(10**6, 10.0, 3.0), 1, "replace-one")
    assert wide.tolist() == shifted_rdp(FEW, 20, 200, 3.0).tolist()


def test_missing_noise_and_coins_nearly_without_bias_have_no_bound() -> None:
    missing: list[tuple[int, Adjacency, str]]
    missing = [(1, "add-remove", "adjacency"), (0, "zero-out", "honest")]
    for honest, adjacency, what in missing:
        with pytest.raises(ConfigError, match=what):
            skellam_rdp(FEW, SkellamShare(9, 1.0, 1.0), honest, adjacency)
        with pytest.raises(ConfigError, match=what):
            poisson_binomial_rdp(FEW, BinomialCounts(9, 2, 0.1, 0.2), honest, adjacency)
    with pytest.raises(ConfigError, match=r"theta must be in \[0.001, 1/2\), got 0.0001"):
        poisson_binomial_rdp(FEW, BinomialCounts(9, 2, 1e-4, 1e-4), 3, "zero-out")


# coins


def heads(m: int, p: float) -> Floats:
    return np.asarray(binom.pmf(np.arange(m + 1), m, p))


def coins_exactly(left: float, right: float, m: int, base: Floats) -> Floats:
    """Cost of ``m`` coins that are all ``left`` or all ``right``, beside ``base``: both orders."""
    p, q = np.convolve(base, heads(m, left)), np.convolve(base, heads(m, right))
    return np.array([max(renyi(a, p, q), renyi(a, q, p)) for a in FEW])


def worst_of(left: float, right: float, m: int, theta: float, rest: int) -> Floats:
    """The largest cost over how many of the ``rest`` other coins are at each end."""
    low, high = 0.5 - theta, 0.5 + theta
    bases = [np.convolve(heads(k, high), heads(rest - k, low)) for k in range(rest + 1)]
    costs: Floats = np.stack([coins_exactly(left, right, m, base) for base in bases])
    largest: Floats = costs.max(axis=0)
    return largest


def test_one_message_of_one_coordinate_by_hand_and_one_that_becomes_nothing() -> None:
    # From 1/4 to 3/4: ln(1/16 / 3/4 + 9/16 / 1/4) = ln(7/3) a coin at order 2.
    event = BinomialCounts(1, 3, 0.25, 0.25)
    bound = poisson_binomial_rdp([2], event, 1, "replace-one")[0]
    assert bound == pytest.approx(3 * math.log(7 / 3) * (1 + COIN_SLACK))
    # From 1/2 to 3/4: ln(2 (1/16 + 9/16)) = ln(5/4), or in the other order ln(1/3 + 1) = ln(4/3).
    bound = poisson_binomial_rdp([2], event, 1, "zero-out")[0]
    assert bound == pytest.approx(3 * math.log(4 / 3) * (1 + COIN_SLACK))
    # The line from 0 to 0.4**2 and ln(5/3), at 0.2**2; from 0.1 to 0.3 it were 0.154.
    bound = poisson_binomial_rdp([1.000001], BinomialCounts(1, 1, 0.4, 0.2), 1, "zero-out")[0]
    assert bound == pytest.approx(math.log(5 / 3) / 4 * (1 + COIN_SLACK), rel=1e-4)


@pytest.mark.parametrize("theta", [0.02, 0.1, 0.25])
@pytest.mark.parametrize(("honest", "m"), [(1, 4), (2, 3), (5, 3), (8, 4)])
def test_the_bound_exceeds_that_of_all_coins(honest: int, m: int, theta: float) -> None:
    pairs: list[tuple[Adjacency, float, float]]
    pairs = [("replace-one", 0.5 - theta, 2 * theta), ("zero-out", 0.5, theta)]
    for share, (adjacency, left, longest) in product((0.3, 1.0), pairs):
        event = BinomialCounts(1, m, theta, share * theta)
        right = left + share * longest
        bound = poisson_binomial_rdp(FEW, event, honest, adjacency)
        worst = worst_of(left, right, m, theta, (honest - 1) * m)
        assert (bound >= worst).all()
        if theta <= 0.1 and share == 1:
            assert (bound <= 1.05 * worst).all()


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
    base = sum_law([0.5 - theta + 2 * theta * place / 100 for place in places])
    bound = one_coin(FEW, 0.5 - theta, np.array([g]), theta, len(places) + 1)[:, 0]
    assert (coins_exactly(left, left + g, 1, base) <= bound * (1 + 1e-9) + 1e-12).all()


@given(st.floats(0, 1), st.integers(1, 4))
def test_coordinates_share_the_norm_of_a_change(share: float, honest: int) -> None:
    # all of it in one coordinate, or any part of it in the other
    theta = 0.2
    norm = 0.15
    low = 0.5 - theta
    steps = 2 * norm * share**0.5, 2 * norm * (1 - share) ** 0.5
    spent = sum(coins_exactly(low, low + step, 1, heads(honest - 1, low)) for step in steps)
    bound = poisson_binomial_rdp(FEW, BinomialCounts(2, 1, theta, norm), honest, "replace-one")
    assert (spent <= bound).all()


def test_small_changes_cost_what_the_fisher_information_says() -> None:
    # m h / (h / 4) for h fair coins: 4 m Delta**2 / h, times a / 2.
    event = BinomialCounts(10**6, 5, 0.01, 0.4)
    for honest in (1, 10):
        gaussian = FEW / 2 * 4 * 5 * 0.4**2 / honest
        bound = poisson_binomial_rdp(FEW, event, honest, "zero-out")
        assert ((gaussian <= bound) & (bound <= 1.02 * gaussian)).all()
    # 1 / (1/4 * 3/4) a coin, more than on the way to 3/4
    event = BinomialCounts(10**6, 2, 0.25, 0.01)
    bound = poisson_binomial_rdp([1.000001], event, 1, "replace-one")[0]
    assert bound == pytest.approx(2 * 0.02**2 / 2 / 0.1875 * (1 + COIN_SLACK), rel=1e-4)


def test_groups_fit_whatever_the_others_do_and_are_no_less_than_all_coins() -> None:
    assert [len(base) for base in others(0.2, 48)] == [49] * 49
    # Of 60 coins 31 and 29 hold 15 and 14 pairs, and 29 pairs and 1 are 59 numbers of heads.
    assert [len(base) for base in others(0.2, 60)] == [59] * 30
    assert [base.tolist() for base in others(0.2, 0)] == [[1.0]]
    bound = one_coin(FEW, 0.3, np.array([0.1]), 0.2, 61)[:, 0]
    worst = worst_of(0.3, 0.4, 1, 0.2, 60)
    assert ((worst <= bound) & (bound <= 1.06 * worst)).all()


def test_more_honest_clients_hide_more_up_to_what_is_counted() -> None:
    event = BinomialCounts(100, 3, 0.25, 0.5)
    prices = {
        honest: poisson_binomial_rdp([2.0, 8.0], event, honest, "replace-one")
        for honest in (1, 2, 5, 20, 48, 80, 257, 10**6)
    }
    # 80 in groups of two, of which one is left out: a bound that is 3 % above that of 77 others
    for fewer, more in pairwise(prices[honest] for honest in (1, 2, 5, 20, 48, 80)):
        assert (more < fewer).all()
    assert prices[257].tolist() == prices[10**6].tolist()
    assert counted(0.499) == 97  # 0.001**96 = 1e-288
