"""DRIVE: the signs of a rotated update, and one scale."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from fedbench.api import Shared
from fedbench.core.rng import Key
from fedbench.payload import Payload, RotatedLevels
from fedbench.protocols.compressed import CompressedUpdates, public_seeds
from fedbench.protocols.eden import Scale, require_block, rotated


@dataclass(frozen=True, kw_only=True)
class DRIVE(CompressedUpdates):
    """Send ``sign(R x)`` and a scale: ``x_hat = S R^-1 sign(R x)``, R a random Hadamard rotation.

    ``S = |x|**2 / |R x|_1`` is unbiased for a uniform rotation, with a relative squared error of
    ``pi / 2 - 1``; ``S = |R x|_1 / d`` has the least error, ``1 - 2 / pi``, but shrinks:
    ``E[x_hat]`` is near ``2 x / pi``. Public code has only the former. With error feedback,
    ``min-mse`` is the scale that surely leaves a smaller residual than came in. The sign of 0 is
    +1.

    This is `EDEN` at one bit, rotated in blocks as there; the scale on the wire is that of its
    centroids ``+-sqrt(2 / pi)``, so ``S sqrt(pi / 2)``.

    Args:
        scale: ``unbiased``, or ``min-mse`` for the least error.
        block: Length of the longest block that is rotated by itself, a power of two.

    References:
        Vargaftik et al., "DRIVE: One-bit Distributed Mean Estimation", NeurIPS 2021,
        https://arxiv.org/abs/2105.08339, Algorithm 1; the scales are those of its theorems on the
        least error and on unbiasedness.
    """

    sends = RotatedLevels

    scale: Scale = "unbiased"
    block: int = 4096

    def __post_init__(self) -> None:
        super().__post_init__()
        require_block("DRIVE.block", self.block)

    def compress(self, shared: Shared, x: Tensor, rest: Tensor, keys: Sequence[Key]) -> Payload:
        seeds = public_seeds(keys, "rotation", x.device)
        return rotated(x, rest, seeds, 1.0, self.block, self.scale)
