"""The signs of a rotated update, and one scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedbench.api import Shared
from fedbench.core.rng import Key
from fedbench.payload import Payload, RotatedLevels
from fedbench.protocols.compressed import CompressedUpdates
from fedbench.protocols.eden import Scale, require_block, rotated, rotation_seeds


@dataclass(frozen=True, kw_only=True)
class DRIVE(CompressedUpdates):
    """``x_hat = S R^-1 sign(R x)``, where R is a randomized Hadamard transform drawn from a seed.

    ``S = |x|**2 / |R x|_1`` is unbiased for a uniform rotation and has a relative squared error of
    ``pi / 2 - 1``; ``S = |R x|_1 / d`` has the least, ``1 - 2 / pi``, and shrinks: ``E[x_hat]`` is
    near ``2 x / pi``. Public code has the former alone. The sign of 0 is +1.

    For error feedback ``min-mse`` is the scale that surely leaves less than came in.

    Rotated in blocks, as `EDEN` is, whose one-bit case this is: the scale on the wire is that of
    EDEN's centroids ``+-sqrt(2 / pi)``, so ``S sqrt(pi / 2)``.

    Args:
        scale: Without bias, or with the least error.
        block: The longest block that is rotated by itself, a power of two.

    References:
        Vargaftik et al., "DRIVE: One-bit Distributed Mean Estimation", NeurIPS 2021,
        https://arxiv.org/abs/2105.08339, Algorithm 1; the two scales are those of its theorems on
        the least error and on unbiasedness.
    """

    sends: ClassVar[type[Payload]] = RotatedLevels

    scale: Scale = "unbiased"
    block: int = 4096

    def __post_init__(self) -> None:
        super().__post_init__()
        require_block("DRIVE.block", self.block)

    def compress(self, shared: Shared, x: Tensor, rest: Tensor, keys: Sequence[Key]) -> Payload:
        """See the class."""
        return rotated(x, rest, rotation_seeds(keys, x), 1.0, self.block, self.scale)
