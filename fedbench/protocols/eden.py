"""Rotated updates, quantized for a Gaussian: EDEN at any number of bits, DRIVE at one."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedbench.api import Keys, Shared
from fedbench.core.blocks import block_norms, block_sizes, block_sums, centroids, rotate, spread
from fedbench.core.copies import copied_to
from fedbench.core.errors import require
from fedbench.payload import Payload, RotatedLevels
from fedbench.payload.rotated_levels import looked_up, quantized, widths
from fedbench.protocols.compressed import CompressedUpdates, public_seeds

Scale = Literal["unbiased", "min-mse"]


@dataclass(frozen=True, kw_only=True)
class EDEN(CompressedUpdates):
    """Rotate, quantize with the Lloyd-Max centroids of a Gaussian, and scale without bias.

    ``x_hat = R^-1 (S c)``, where ``c`` are the centroids of ``y = R x`` over its root mean square
    and ``S = |x|**2 / <c, y>``, so that ``<x_hat, x> = |x|**2`` in every draw. For a uniform
    rotation ``E[x_hat] = x``, and the relative squared error is 0.571, 0.133, 0.0358 and 0.0096 at
    1, 2, 3 and 4 bits. A randomized Hadamard transform is only nearly uniform: sparse vectors have
    another error, and blocks shorter than about 64 are biased. With error feedback the scale is
    that of the least error, ``<c, y> / |c|**2``.

    Public code pads the vector to a power of two. Here blocks of powers of two are rotated, each
    with a scale of 32 bits; vectors with few large coordinates lose the mixing between blocks.
    Fractional bits are our reading (A6): a share of the rotated coordinates of every block, the
    same for all clients, gets one bit more than the others (`widths`), and coordinates with no bit
    count as 0.

    Args:
        bits: Bits a parameter, on average, without scales.
        block: Length of the longest block that is rotated by itself, a power of two.

    References:
        Vargaftik et al., "EDEN: Communication-Efficient and Robust Distributed Mean Estimation for
        Federated Learning", ICML 2022, https://arxiv.org/abs/2108.08842, Algorithm 1.
    """

    sends = RotatedLevels

    bits: float = 1.0
    block: int = 4096

    def __post_init__(self) -> None:
        super().__post_init__()
        require("EDEN.bits", self.bits, 0.05 <= self.bits <= 8, "in [0.05, 8]")
        require_block("EDEN.block", self.block)
        fits = self.block >= 64 or self.bits == int(self.bits)
        require("EDEN.block", self.block, fits, ">= 64 for a fraction of a bit")

    def compress(self, shared: Shared, x: Tensor, rest: Tensor, keys: Keys) -> Payload:
        scale: Scale = "min-mse" if self.error_feedback else "unbiased"
        seeds = public_seeds(keys, "rotation", x.device)
        return rotated(x, rest, seeds, self.bits, self.block, scale)


def require_block(name: str, block: int) -> None:
    """Raise `ConfigError` unless blocks of this length can be rotated."""
    fits = 1 <= block <= 1 << 20 and block & (block - 1) == 0
    require(name, block, fits, "a power of two in [1, 2**20]")


def rotated(
    x: Tensor, rest: Tensor, seeds: Tensor, bits: float, block: int, scale: Scale
) -> RotatedLevels:
    """Encode ``x (n, d)``, with ``rest (n, p)`` uncompressed beside it.

    ``seeds (n, 1)`` int64 are those of the rotations. The scale is ``unbiased``,
    ``|y|**2 / <c, y>``, or ``min-mse``, ``<c, y> / |c|**2``. Norms are summed in float64.
    """
    sizes = block_sizes(x.shape[1], block)
    wide = copied_to(widths(sizes, bits), x.device)
    y = rotate(x, seeds, sizes)
    norms = block_norms(y, sizes)
    roots = copied_to(torch.tensor(sizes, dtype=torch.float64).sqrt(), x.device)
    y = y * spread((roots / norms).to(y.dtype), sizes)  # mean square 1 in every block
    levels = quantized(y, wide, bits)
    c = looked_up(centroids, levels, wide, bits)
    inner = block_sums(c * y, sizes)
    if scale == "unbiased":
        scales = norms * roots / inner
    else:
        scales = norms / roots * inner / block_sums(c.square_(), sizes)
    silent = (norms < 1e-30) | (inner < 1e-4 * roots.square())
    scales = torch.where(silent, 0.0, scales)
    scales = torch.where(torch.isfinite(norms), scales, torch.nan).to(torch.float32)
    levels = torch.where(spread(scales > 0, sizes), levels, 0)
    return RotatedLevels(levels, scales, seeds, rest, bits, block)


@dataclass(frozen=True, kw_only=True)
class DRIVE(CompressedUpdates):
    """Send ``sign(R x)`` and a scale: ``x_hat = S R^-1 sign(R x)``, R a random Hadamard rotation.

    ``S = |x|**2 / |R x|_1`` is unbiased for a uniform rotation, with a relative squared error of
    ``pi / 2 - 1``; ``S = |R x|_1 / d`` has the least error, ``1 - 2 / pi``, but shrinks:
    ``E[x_hat]`` is near ``2 x / pi``. With error feedback it surely leaves a smaller residual than
    came in. The sign of 0 is +1. This is `EDEN` at one bit, rotated in blocks as there; the scale
    on the wire is ``S sqrt(pi / 2)``, because centroids are ``+-sqrt(2 / pi)``.

    Args:
        scale: ``unbiased``, or ``min-mse`` for the least error.
        block: Length of the longest block that is rotated by itself, a power of two.

    References:
        Vargaftik et al., "DRIVE: One-bit Distributed Mean Estimation", NeurIPS 2021,
        https://arxiv.org/abs/2105.08339, Algorithm 1 and the theorems on its scales.
    """

    sends = RotatedLevels

    scale: Scale = "unbiased"
    block: int = 4096

    def __post_init__(self) -> None:
        super().__post_init__()
        require_block("DRIVE.block", self.block)

    def compress(self, shared: Shared, x: Tensor, rest: Tensor, keys: Keys) -> Payload:
        seeds = public_seeds(keys, "rotation", x.device)
        return rotated(x, rest, seeds, 1.0, self.block, self.scale)
