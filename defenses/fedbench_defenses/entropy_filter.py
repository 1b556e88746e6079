"""Leaving out masks that are surprising, given the others."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedbench.api import ServerView
from fedbench.core.tiling import tiles
from fedbench.payload import Payload

from .bits import bits_of, deviation, ones_of
from .density_filter import BitFilter


def surprises(received: Payload) -> Tensor:
    """Return each row's mean over coordinates of ``-log2 p(b_ij)``, in bits, by the *other* rows.

    Of ``n - 1`` others ``s_j - b_ij`` say 1, and with Laplace's rule ``p(1) = (s_j - b_ij + 1) /
    (n + 1)``. That is ``s_j / (n + 1)`` for a 1 and ``1 - p(1) = (n - s_j) / (n + 1)`` for a 0,
    for every sender: two vectors, one product with the bits.
    """
    bits = bits_of(received)
    ones = ones_of(received)
    n, d = bits.shape
    of_one = math.log2(n + 1) - ones.clamp_min(1).log2()
    of_zero = math.log2(n + 1) - (n - ones).clamp_min(1).log2()
    total = of_zero.sum().expand(n).clone()
    for tile, extra in tiles(bits, of_one - of_zero):
        total += tile.to(torch.float64) @ extra
    return total / d


@dataclass(frozen=True, kw_only=True)
class EntropyFilter(BitFilter):
    """Leave out rows whose surprise is ``> width`` median deviations above the median surprise.

    A row's surprise is the cross-entropy of its bits under the shares of the other rows, see
    `surprises`. The complement of a mask has its density and its own entropy, but not this. The
    deviation is the median of ``|surprise_i - median|``, at least ``log2(n + 1)`` bits over the
    whole message, what one bit against all others costs. A row that agrees with everyone is never
    left out.

    References:
        None: proposed here.
    """

    def transform(self, received: Payload, view: ServerView) -> tuple[Payload, Tensor]:
        """Look at one side only: nobody is too typical."""
        surprise = surprises(received)
        n, d = bits_of(received).shape
        above, deviates = deviation(surprise, floor=math.log2(n + 1) / d)
        rows = (above <= self.width * deviates).nonzero()[:, 0]
        return received.take(rows), rows
