"""Rényi differential privacy of sums of honest clients' messages, under secure aggregation.

*Masks* (`sum_rdp`) are bits of probabilities that depend on the data. *Shares of noise*
(`skellam_rdp`, `poisson_binomial_rdp`) are vectors of integers, each with its client's share of the
noise; neighbours are a client's vector of L2 norm at most ``B`` and 0 (``zero-out``) or any other
(``replace-one``), while under ``add-remove`` the noise would change too.

Honest clients are those in the sum whose randomness the adversary does not know, the changed one
included: 1 if single messages are seen. More of them release less.
"""

import math

import numpy as np
import numpy.typing as npt
from scipy.special import comb, gammaln, logsumexp

from fedbench.api import Adjacency
from fedbench.core.errors import require
from fedbench.privacy.amplification import check_mask, concave_hull, cube, marginal, mask_rdp
from fedbench.privacy.conversion import Floats, check_orders
from fedbench.privacy.events import BinomialCounts, SkellamShare

# Relative enlargement of the hulls, for what lies between two points of their grids
MASK_SLACK = 5e-3
COIN_SLACK = 1e-3
GROUPS = 48  # largest number of groups of the others' coins
LEAST = 1e-3  # smallest theta: below it float64 cannot resolve the divergence of a coin
# Few, since the time for an order grows with n; neighbouring orders are within 2 % of epsilon.
SUM_ORDERS: Floats = np.append(
    [1.01, 1.05, 1.1, 1.2, 1.35, 1.5, 1.65, 1.8, 2, 2.2, 2.4, 2.7, 3, 3.4, 3.8, 4.3],
    [5, 6, 7, 8, 10, 12, 16, 20, 24, 32, 48, 64, 128, 1024],
)


def _binomial(n: int, p: float) -> tuple[Floats, Floats]:
    """``ln Bin(n, p)(s)`` and ``g(s) = (s - np)/(np(1-p))`` for all ``s``, both ``(n + 1, 1)``."""
    s = np.arange(n + 1.0)[:, None]
    ways = gammaln(n + 1) - gammaln(s + 1) - gammaln(n - s + 1)
    return ways + s * math.log(p) + (n - s) * math.log1p(-p), (s - n * p) / (n * p * (1 - p))


def _renyi_columns(alpha: float, log_p: Floats, p: Floats, loss: Floats) -> Floats:
    """``D_a(P || Q)`` per column of ``ln P``, ``P`` and ``ln P - ln Q``, all ``(n + 1, m)``."""
    t = alpha - 1
    if t * loss.max() < 500:  # exact also near the diagonal
        return np.asarray(np.log1p((p * np.expm1(t * loss)).sum(axis=0)) / t)
    return np.asarray(logsumexp(log_p + t * loss, axis=0) / t)


def _largest(orders: Floats, h: Floats, n: int, sigma: float, c: float) -> Floats:
    """``(k, m)``: the largest ``D_a`` between sums whose changed client moves by ``h (m,)``."""
    floor = float(marginal(c, sigma, c))
    width = 1 - 2 * c
    near = np.geomspace(0.01 * floor, 0.5, math.ceil(math.log(50 / floor) / 0.2))
    u = np.unique(np.concatenate([[0.0], near, np.linspace(0, 0.5, 13)[1:]]))
    u = np.concatenate([u, 1 - u[-2::-1]])  # both halves: the others are all at the lower end
    log_b, g = _binomial(n, floor)
    result = np.empty((len(orders), len(h)))
    for i, step in enumerate(h):
        left = c + u * (width - step)
        x = marginal(left, sigma, c) - floor
        y = marginal(left + step, sigma, c) - floor
        log_p, log_q = (log_b + np.log1p(np.maximum(z, 0.0) * g) for z in (x, y))
        p = np.exp(log_p)
        q = np.exp(log_q)
        loss = log_p - log_q
        for row, alpha in enumerate(orders):
            forth = _renyi_columns(alpha, log_p, p, loss)
            back = _renyi_columns(alpha, log_q, q, -loss)
            result[row, i] = max(forth.max(), back.max())
    return result


def sum_rdp(
    orders: npt.ArrayLike, d: int, n: int, sigma: float, c: float, sensitivity: float | None = None
) -> Floats:
    """RDP, ``(k,)``, of the sum of ``n`` honest clients' masks of ``d`` bits in one round.

    Neighbours: the probabilities of one client change by at most L2 ``sensitivity`` (None: to
    anything in the cube). Never above `mask_rdp`, of which a sum is a post-processing; equal to it
    for a single client, and where the grid does not reach: for ``p(c)`` under 1e-6, and for a cube
    whose sides are shorter than a twentieth of ``p(c)``. About 0.01 s per order at ``n = 100``.

    ``S = X + Y`` with ``X`` the client's bit and ``Y`` those of the ``n - 1`` others:

    - *Extreme probabilities are the worst.* ``e^((a-1) D_a)`` is jointly convex in the two laws of
      ``S``, which are affine in the probability of each other client: no law of ``Y`` is worse than
      ``Bin(k, 1-p) + Bin(n-1-k, p)`` for some ``k``, with ``p = p(c)``.
    - *The same extreme for all.* ``k = 0`` and its reflection ``k = n-1`` were the largest for
      every pair, order and ``n`` tried (`tests/test_sums.py` tries all ``k``): observed, not
      proved.
    - For ``k = 0``, ``Pr[S = s] = Bin(n, p)(s) (1 + (x-p) g(s))`` with ``g(s) = (s - np) /
      (np(1-p))`` and ``x = Pr[X = 1] >= p``, so that ``e^((a-1) D_a) = E (1 + (x-p) g)^a (1 + (y-p)
      g)^(1-a)`` under ``Bin(n, p)``: close to the divergence of one bit with ``h²/n`` for ``h²``.

    References:
        Chen, Özgür, Kairouz, "The Poisson Binomial Mechanism for Unbiased Federated Learning with
        Secure Aggregation", ICML 2022, https://arxiv.org/abs/2207.09916 (bits of equal bias).
    """
    check_mask(sigma, c)
    require("n", n, n >= 1, ">= 1")
    masks = mask_rdp(orders, d, sigma, c, sensitivity).epsilon
    alpha = check_orders(orders)
    width = 1 - 2 * c
    floor = float(marginal(c, sigma, c))
    if n == 1 or floor < 1e-6 or width < 0.05 * floor:
        return masks
    reach = cube(d, c) if sensitivity is None else min(sensitivity, cube(d, c))
    at = min(reach**2 / d, width**2)
    h = np.geomspace(1e-3 * floor, width, math.ceil(math.log(1e3 * width / floor) / 0.1))
    h = np.unique(np.append(h, max(math.sqrt(at), h[0])))
    sums = [concave_hull(h**2, row, at) for row in _largest(alpha, h, n, sigma, c)]
    return np.minimum(masks, d * (1 + MASK_SLACK) * np.array(sums))


def _distance(adjacency: Adjacency, honest: int) -> int:
    """Return the distance of neighbours in units of ``B``, and check both arguments."""
    norms = {"zero-out": 1, "replace-one": 2}
    require("adjacency", adjacency, adjacency in norms, " or ".join(norms))
    require("honest", honest, honest >= 1, ">= 1")
    return norms[adjacency]


def skellam_rdp(
    orders: npt.ArrayLike, event: SkellamShare, honest: int, adjacency: Adjacency
) -> Floats:
    """RDP, ``(k,)``, of one round whose observed sum holds ``honest`` shares of Skellam noise.

    `shifted_rdp` of variance ``honest v`` at an L2 distance of ``r B``, ``r`` 1 or 2. The L1
    distance is at most ``r min{sqrt(d) B, B**2}``, since an integer is at most its square. It holds
    for every rounding of the vector, so for random ones; wrapping the sum is a post-processing.
    """
    times = _distance(adjacency, honest)
    l1 = times * min(math.sqrt(event.d) * event.norm, event.norm**2)
    return shifted_rdp(orders, times * event.norm, l1, honest * event.variance)


def shifted_rdp(orders: npt.ArrayLike, l2: float, l1: float, mu: float) -> Floats:
    """RDP, ``(k,)``, of integers under Skellam noise of variance ``mu`` on each.

    For integer orders ``a l2**2 / (2 mu) + min{((2 a - 1) l2**2 + 6 l1) / (4 mu**2), 3 l1 /
    (2 mu)}`` at distances of at most ``l2`` and ``l1``; the first term is a Gaussian's. The theorem
    covers integer orders only. ``(a - 1) D_a`` is convex in ``a`` and 0 at 1, so for other orders
    the chord between the neighbouring integers bounds it; below 2 that is ``D_2``.

    References:
        Agarwal, Kairouz, Liu, "The Skellam Mechanism for Differentially Private Federated
        Learning", NeurIPS 2021, https://arxiv.org/abs/2110.04995, the theorem on the Rényi
        divergence of shifted Skellam distributions and Corollary 4.1.
    """
    alpha = check_orders(orders)
    require("l2", l2, l2 >= 0, ">= 0")
    require("l1", l1, l1 >= 0, ">= 0")
    if mu == 0:
        return np.full(alpha.shape, math.inf if l2 > 0 else 0.0)
    require("mu", mu, mu > 0, ">= 0")

    def scaled(a: Floats) -> Floats:
        sharp = ((2 * a - 1) * l2**2 + 6 * l1) / (4 * mu**2)
        excess = np.minimum(sharp, 3 * l1 / (2 * mu))
        return np.asarray((a - 1) * (a * l2**2 / (2 * mu) + excess))

    below = np.floor(alpha)
    share = alpha - below
    line: Floats = (1 - share) * scaled(below) + share * scaled(below + 1)
    return line / (alpha - 1)


def poisson_binomial_rdp(
    orders: npt.ArrayLike, event: BinomialCounts, honest: int, adjacency: Adjacency
) -> Floats:
    """RDP, ``(k,)``, of one round whose observed sum is that of ``honest`` clients' coins.

    A client tosses ``m`` coins for each of ``d`` coordinates, of chances ``1/2 + y_i`` with
    ``|y_i| <= theta``. When the ``y`` of one client moves by ``g_i`` in coordinate ``i``:

    - *one coin of each*: the first coins of all clients, the second ones, and so on are ``m`` sums
      of ``h`` coins. Releasing each of them releases no less than their sum, so ``D_a <= m sum_i
      D_a(one coin changed among h)``.
    - *endpoints*: a coin of chance ``q`` in ``[1/2 - theta, 1/2 + theta]`` is a mixture of the two
      extreme coins. Other clients' coins are the same before and after the change; the pair ``(q, q
      + g)`` is a mixture of ``(1/2 - theta, 1/2 - theta + g)`` and ``(1/2 + theta - g, 1/2 +
      theta)``, which is the first pair with tails for heads. ``D_a`` is jointly quasi-convex, so
      the worst case is among these, in both directions (`one_coin`).
    - *hull*: ``sum_i G_a(g_i)`` with ``sum_i g_i**2 <= Delta**2`` is at most ``d`` times the
      concave hull of ``G_a`` over ``g**2`` at ``Delta**2 / d`` (`concave_hull`).

    All steps are proofs except the hull, which is numerical: its grid over ``g`` has steps of 4 %
    and is enlarged by 0.1 %. One sum of all ``n m`` coins would release less, by 5 % at ``theta =
    0.1``, but takes longer. At most 257 ``honest`` clients count, see `counted`.

    References:
        Chen, Ozgur, Kairouz, "The Poisson Binomial Mechanism for Unbiased Federated Learning with
        Secure Aggregation", ICML 2022, https://arxiv.org/abs/2207.09916, the theorem on the Rényi
        divergence of two Poisson binomial distributions.
    """
    times = _distance(adjacency, honest)
    theta = event.reach
    require("theta", theta, LEAST <= theta < 0.5, f"in [{LEAST:g}, 1/2)")
    step = times * theta
    squared = min((times * event.norm) ** 2 / event.d, step**2)
    g = step * np.append(np.geomspace(0.04, 1, 83)[:-1], 1.0)
    g = np.unique(np.append(g, max(np.sqrt(squared), g[0])))
    left = 0.5 - theta if times == 2 else 0.5
    largest = one_coin(check_orders(orders), left, g, theta, min(honest, counted(theta)))
    hulls = [concave_hull(g**2, row, squared) for row in largest]
    return event.d * event.coins * (1 + COIN_SLACK) * np.array(hulls)


def counted(theta: float) -> int:
    """Return how many honest clients' sums have no outcome that underflows float64, up to 257."""
    return 1 + min(256, int(-290 * np.log(10) / np.log(0.5 - theta)))


def one_coin(alpha: Floats, left: float, g: Floats, theta: float, honest: int) -> Floats:
    """``G_a (k, g)`` of a coin of chance ``left`` or ``left + g`` among ``honest`` coins.

    The worst case over how many of the ``honest - 1`` other coins are at each end, in both
    directions. More than 48 of them are taken in groups at the same end, without the coins that
    fill no group, whose noise is then not counted. At the first ``g`` the value is at least ``a I
    g**2 / 2`` with the Fisher information ``I`` at ``left``, the limit for smaller ``g``.
    """
    result = np.zeros((len(alpha), len(g)))
    for base in others(theta, honest - 1):
        heads, tails = np.append(0.0, base), np.append(base, 0.0)
        p = left * heads + (1 - left) * tails
        q = p + g[:, None] * (heads - tails)
        information = float(((heads - tails) ** 2 / p).sum())
        result[:, 0] = np.maximum(result[:, 0], alpha / 2 * information * g[0] ** 2)
        for i, a in enumerate(alpha):
            result[i] = np.maximum(result[i], np.maximum(_renyi(a, p, q), _renyi(a, q, p)))
    return result


def others(theta: float, coins: int) -> list[Floats]:
    """Laws of the number of heads of other coins, for each split of them between both ends."""
    size = max(1, -(-coins // GROUPS))
    groups = max(coins // size - (size > 1), 0)

    def heads(n: int, p: float) -> Floats:
        k = np.arange(n + 1)
        return np.asarray(comb(n, k) * p**k * (1 - p) ** (n - k))

    splits = ((up * size, (groups - up) * size) for up in range(groups + 1))
    return [np.convolve(heads(up, 0.5 + theta), heads(down, 0.5 - theta)) for up, down in splits]


def _renyi(a: float, p: Floats, q: Floats) -> Floats:
    """``D_a(p || q)`` over the last axis."""
    t = a - 1
    ratio = np.log(p) - np.log(q)
    largest = ratio.max(axis=-1, keepdims=True)
    if t * float(largest.max()) < 500:  # exact also near order 1
        return np.asarray(np.log1p((p * np.expm1(t * ratio)).sum(axis=-1)) / t)
    moment = (p * np.exp(t * (ratio - largest))).sum(axis=-1)
    return np.asarray(np.log(moment) / t + largest[..., 0])
