"""Rényi differential privacy of sums of biased coins.

A client tosses ``m`` coins for each of ``d`` coordinates, of chances ``1/2 + y_i`` with ``|y_i| <=
theta`` and ``|y| <= B``. The adversary sees the number of heads of ``h`` honest clients together.
When the ``y`` of one client moves by ``g_i`` in coordinate ``i``:

- *one coin of each*: the first coins of all clients, the second ones, and so on are ``m`` sums of
  ``h`` coins. Releasing each of them releases no less than their sum, so ``D_a <= m sum_i D_a(one
  coin changed among h)``.
- *endpoints*: a coin of chance ``q`` in ``[1/2 - theta, 1/2 + theta]`` is a mixture of the two
  extreme coins. The coins of other clients are the same before and after the change; the pair
  ``(q, q + g)`` is a mixture of ``(1/2 - theta, 1/2 - theta + g)`` and ``(1/2 + theta - g, 1/2 +
  theta)``, which is the first pair with tails for heads. ``D_a`` is jointly quasi-convex, so the
  worst case is among these, in both directions: ``G_a(g)`` is the largest over the number of other
  coins at their upper end.
- *hull*: ``sum_i G_a(g_i)`` with ``sum_i g_i**2 <= Delta**2`` is at most ``d`` times the concave
  hull of ``G_a`` over ``g**2`` at ``Delta**2 / d`` (Jensen), as in `amplification.envelope`.

All steps are proofs except the hull, which is numerical: its grid over ``g`` has steps of 4 % and
is enlarged by 0.1 %. The paper's theorem gives the order, ``a m theta**2 / n`` per coordinate. One
sum of all ``n m`` coins would release less than ``m`` sums of ``n`` coins, by 5 % at ``theta =
0.1`` and by a quarter at 1/4; in exchange the computation does not grow with the number of coins.

References:
    Chen, Ozgur, Kairouz, "The Poisson Binomial Mechanism for Unbiased Federated Learning with
    Secure Aggregation", ICML 2022, https://arxiv.org/abs/2207.09916, the theorem on the Rényi
    divergence of two Poisson binomial distributions.
"""

import numpy as np
import numpy.typing as npt
from scipy.special import comb

from fedbench.api import Adjacency
from fedbench.core.errors import require
from fedbench.privacy.conversion import Floats, check_orders
from fedbench.privacy.events import BinomialCounts
from fedbench.privacy.knapsack import concave_hull
from fedbench.privacy.skellam import distances

SLACK = 1e-3  # relative enlargement of the hull, for what lies between two points of its grid
GROUPS = 48  # largest number of groups of the others' coins
LEAST = 1e-3  # smallest theta: below it float64 cannot resolve the divergence of a coin


def poisson_binomial_rdp(
    orders: npt.ArrayLike, event: BinomialCounts, honest: int, adjacency: Adjacency
) -> Floats:
    """RDP, ``(k,)``, of one round whose observed sum is that of ``honest`` clients.

    ``zero-out`` moves a client's ``y`` to 0: by ``B`` in all, by at most ``theta`` per coordinate.
    ``replace-one`` moves it by twice as much.

    Args:
        orders: Rényi orders above 1, ``(k,)``.
        event: Message of one client.
        honest: Clients in the sum whose coins the adversary does not know, the changed one
            included: honest clients of a round with secure aggregation, 1 if single messages are
            seen. At most 257 of them count, see `counted`.
        adjacency: ``replace-one`` or ``zero-out``. Under ``add-remove`` the coins would change too.
    """
    times = distances(adjacency)
    require("honest", honest, honest >= 1, ">= 1")
    require("theta", event.reach, LEAST <= event.reach < 0.5, f"in [{LEAST:g}, 1/2)")
    alpha = check_orders(orders)
    theta = event.reach
    step = times * theta
    squared = min((times * event.norm) ** 2 / event.d, step**2)
    g = step * np.append(np.geomspace(0.04, 1, 83)[:-1], 1.0)
    g = np.unique(np.append(g, max(np.sqrt(squared), g[0])))
    left = 0.5 - theta if times == 2 else 0.5
    largest = one_coin(alpha, left, g, theta, min(honest, counted(theta)))
    hulls = [concave_hull(g**2, row, squared) for row in largest]
    return event.d * event.coins * (1 + SLACK) * np.array(hulls)


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
    bases = []
    for high in range(groups + 1):
        up = high * size
        down = (groups - high) * size
        bases.append(np.convolve(_binomial(up, 0.5 + theta), _binomial(down, 0.5 - theta)))
    return bases


def _binomial(n: int, p: float) -> Floats:
    heads = np.arange(n + 1)
    return np.asarray(comb(n, heads) * p**heads * (1 - p) ** (n - heads))


def _renyi(a: float, p: Floats, q: Floats) -> Floats:
    """``D_a(p || q)`` over the last axis."""
    t = a - 1
    ratio = np.log(p) - np.log(q)
    largest = ratio.max(axis=-1, keepdims=True)
    if t * float(largest.max()) < 500:  # exact also near order 1
        return np.asarray(np.log1p((p * np.expm1(t * ratio)).sum(axis=-1)) / t)
    moment = (p * np.exp(t * (ratio - largest))).sum(axis=-1)
    return np.asarray(np.log(moment) / t + largest[..., 0])
