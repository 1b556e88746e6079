"""Leaving out masks that are denser or sparser than the others."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedbench.api import Defense, Prefilter, ServerView, Traits
from fedbench.core.errors import require
from fedbench.core.tiling import row_sums
from fedbench.payload import BinaryMasks, Payload, SignBits

from .bits import bits_of, deviation


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
        """Declare it not sharp: the rule may tolerate more than claimed."""
        return Traits(detects=True, shift=False, scale=False, sharp=False)

    def rows(self, n: int) -> int:
        """Return half: so many rows are no farther from the median than the median distance."""
        return (n + 1) // 2

    def rows_needed(self, rule: Defense[Any]) -> int:
        return 2 * rule.rows_needed() - 1

    def tolerates(self, n: int, rule: Defense[Any]) -> int:
        """Return the rule's, if only benign rows are left out, and as many as can be."""
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
        """Count exactly: of two shares that differ by one bit the difference is one bit."""
        ones = row_sums(bits_of(received), torch.int32).to(torch.float64)
        off, deviates = deviation(ones, floor=1.0)
        rows = (off.abs() <= self.width * deviates).nonzero()[:, 0]
        return received.take(rows), rows
