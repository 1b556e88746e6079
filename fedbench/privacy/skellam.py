"""Rényi differential privacy of sums under Skellam noise."""

import math

import numpy as np
import numpy.typing as npt

from fedbench.api import Adjacency
from fedbench.core.errors import require
from fedbench.privacy.conversion import Floats, check_orders
from fedbench.privacy.events import SkellamShare


def skellam_rdp(
    orders: npt.ArrayLike, event: SkellamShare, honest: int, adjacency: Adjacency
) -> Floats:
    """RDP, ``(k,)``, of one round whose observed sum holds ``honest`` shares of the noise.

    `shifted_rdp` of variance ``mu = honest v`` and of integers at an L2 distance of ``r B``, with
    ``B`` the norm of a client's vector: ``r = 1`` if the vector may become 0 (``zero-out``; the
    client still adds its noise), 2 if it may become any other (``replace-one``). Their L1 distance
    is at most ``r min{sqrt(d) B, B**2}``, since an integer is at most its square. The bound holds
    for every rounding of the vector, so for random ones; wrapping the sum is a post-processing.

    Args:
        orders: Rényi orders above 1, ``(k,)``.
        event: Message of one client.
        honest: Shares of noise in the sum, the client's own included: the honest clients of a round
            with secure aggregation, 1 if single messages are seen.
        adjacency: ``replace-one`` or ``zero-out``. Under ``add-remove`` the noise would change too.
    """
    times = distances(adjacency)
    require("honest", honest, honest >= 1, ">= 1")
    l2 = times * event.norm
    l1 = times * min(math.sqrt(event.d) * event.norm, event.norm**2)
    return shifted_rdp(orders, l2, l1, honest * event.variance)


def distances(adjacency: Adjacency) -> int:
    """Return the distance of neighbours in units of the largest norm of a client's vector."""
    norms = {"zero-out": 1, "replace-one": 2}
    require("adjacency", adjacency, adjacency in norms, " or ".join(norms))
    return norms[adjacency]


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
