"""Rényi differential privacy of sums under Skellam noise."""

import math

import numpy as np
import numpy.typing as npt

from fedbench.api import Adjacency
from fedbench.core.errors import require
from fedbench.privacy.conversion import Floats, check_orders
from fedbench.privacy.sum_events import SkellamShare


def skellam_rdp(
    orders: npt.ArrayLike, event: SkellamShare, honest: int, adjacency: Adjacency
) -> Floats:
    """``(k,)``, of one round in which the sum that is seen holds ``honest`` shares of the noise.

    `shifted_rdp` of variance ``mu = honest v`` and of whole numbers at an L2 distance of ``r B``,
    with ``B`` the norm of a client's vector: ``r = 1`` if it may become 0 (``zero-out``; the client
    still adds its noise), 2 if any other (``replace-one``). Their L1 distance is at most ``r min{
    sqrt(d) B, B**2}``, for whole numbers are no larger than their squares. How the vector was
    rounded is no help to the adversary: it holds for every rounding, so for any mixture of them.
    What is done to the sum afterwards, wrapping for one, costs nothing.

    Args:
        orders: Above 1.
        event: Of one client.
        honest: Shares of noise in the sum, the client's own among them: honest clients of a round
            with secure aggregation, 1 if single messages are seen.
        adjacency: ``replace-one`` or ``zero-out``; without the client its noise were missing too.
    """
    times = distances(adjacency)
    require("honest", honest, honest >= 1, ">= 1")
    l2 = times * event.norm
    l1 = times * min(math.sqrt(event.d) * event.norm, event.norm**2)
    return shifted_rdp(orders, l2, l1, honest * event.variance)


def distances(adjacency: Adjacency) -> int:
    """How many norms of a client's vector lie between neighbours."""
    known = {"zero-out": 1, "replace-one": 2}
    require("adjacency", adjacency, adjacency in known, " or ".join(known))
    return known[adjacency]


def shifted_rdp(orders: npt.ArrayLike, l2: float, l1: float, mu: float) -> Floats:
    """``(k,)``, of whole numbers under Skellam noise of variance ``mu`` on each.

    For whole orders ``a l2**2 / (2 mu) + min{((2 a - 1) l2**2 + 6 l1) / (4 mu**2), 3 l1 / (2 mu)}``
    at distances ``l2`` and ``l1`` at most; the first term is that of a Gaussian. The theorem speaks
    of whole orders only. ``(a - 1) D_a`` is convex in ``a`` and 0 at 1, so between two of them it
    is at most what lies on the line between theirs; below 2 that is ``D_2``.

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
