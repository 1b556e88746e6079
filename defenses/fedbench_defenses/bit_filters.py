"""Leaving out masks that are denser, sparser or more surprising than the others."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedbench.api import Defense, Prefilter, ServerView, Traits
from fedbench.core.errors import require
from fedbench.core.tiling import row_sums, tiles
from fedbench.payload import BinaryMasks, Payload, SignBits

from .bit_votes import bits_of, ones_of
from .distances import middle


def deviation(x: Tensor, floor: float) -> tuple[Tensor, Tensor]:
    """Return the distances ``(n,)`` above the median, and their median size, at least ``floor``."""
    from_middle = x - middle(x)
    return from_middle, middle(from_middle.abs()).clamp_min(floor)


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
class BitFilter(Prefilter):
    """Filter that leaves out rows of bits, fewer than half, and changes none.

    Args:
        width: Limit in median absolute deviations; 1.5 are a normal's standard deviation.
    """

    accepts = (BinaryMasks, SignBits)
    mixes = False
    real = False
    width: float = 4.0

    def __post_init__(self) -> None:
        require(f"{type(self).__name__}.width", self.width, self.width >= 1, ">= 1")

    def traits(self) -> Traits:
        return Traits(detects=True, shift=False, scale=False, sharp=False)

    def rows(self, n: int) -> int:
        return (n + 1) // 2  # so many are no farther from the median than the median distance

    def rows_needed(self, rule: Defense[Any]) -> int:
        return 2 * rule.rows_needed() - 1

    def tolerates(self, n: int, rule: Defense[Any]) -> int:
        return min(rule.tolerates(left) for left in range(self.rows(n), n + 1))


@dataclass(frozen=True, kw_only=True)
class DensityFilter(BitFilter):
    """Leave out rows whose share of ones is ``> width`` median deviations off the median share.

    The deviation is the median of ``|share_i - median|``, at least one bit of the message: where
    most are equally dense the others may differ by ``width`` bits. The complement of a mask that
    is half full is as dense as the mask, and passes.

    References:
        None: proposed here.
    """

    def transform(self, received: Payload, view: ServerView) -> tuple[Payload, Tensor]:
        ones = row_sums(bits_of(received), torch.int32).to(torch.float64)
        off, deviates = deviation(ones, floor=1.0)
        rows = (off.abs() <= self.width * deviates).nonzero()[:, 0]
        return received.take(rows), rows


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
        n, d = bits_of(received).shape
        above, deviates = deviation(surprises(received), floor=math.log2(n + 1) / d)
        rows = (above <= self.width * deviates).nonzero()[:, 0]
        return received.take(rows), rows
