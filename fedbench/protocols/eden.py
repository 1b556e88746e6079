"""Rotated updates, quantized for a Gaussian, at any number of bits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedbench.api import Shared
from fedbench.core.blocks import block_norms, block_sizes, block_sums, spread
from fedbench.core.errors import require
from fedbench.core.hadamard import rotate
from fedbench.core.lloyd_max import centroids
from fedbench.core.rng import Key
from fedbench.payload import Payload, RotatedLevels
from fedbench.payload.rotated_levels import looked_up, quantized, widths
from fedbench.protocols.compressed import CompressedUpdates

Scale = Literal["unbiased", "min-mse"]


@dataclass(frozen=True, kw_only=True)
class EDEN(CompressedUpdates):
    """Rotate, quantize what then looks Gaussian as Lloyd and Max do, and scale without bias.

    ``x_hat = R^-1 (S c)``, where ``c`` are the centroids of ``y = R x`` over its root mean square,
    and ``S = |x|**2 / <c, y>``. So ``<x_hat, x> = |x|**2`` in every draw, and if R were a uniform
    rotation, ``E[x_hat] = x`` and ``E|x_hat - x|**2 / |x|**2`` would be 0.571, 0.133, 0.0358 and
    0.0096 at 1, 2, 3 and 4 bits. A randomized Hadamard transform is one only nearly: a vector with
    few coordinates that are not 0 has another error, and blocks shorter than about 64 are biased.
    With error feedback the scale is that of the least error, ``<c, y> / |c|**2``: what is kept must
    be less than what came in, and below a bit the unbiased message has more error than signal.

    Where public code pads the whole vector to a power of two (up to 1.85 bits a parameter), blocks
    of powers of two that need no padding are rotated, each with a scale of 32 bits: 1.0078 bits at
    a block of 4096. Errors of blocks add up to the error of the vector, so its constant stays the
    same; what is lost is mixing between blocks, which matters for vectors with few large
    coordinates.

    Fractional bits are our reading: a share of the rotated coordinates of every block, the same for
    all clients, has one bit more than the others (`widths`); those with none count 0. Public code
    samples before it rotates, or after, and does not run above 1 bit (A6). A block whose norm, or
    all that is sent of it, is as good as 0 has scale 0; one that holds NaN or infinity has scale
    NaN, and the server rejects the message unless it checks nothing.

    Args:
        bits: Of a parameter, on average, without scales.
        block: The longest block that is rotated by itself, a power of two.

    References:
        Vargaftik et al., "EDEN: Communication-Efficient and Robust Distributed Mean Estimation for
        Federated Learning", ICML 2022, https://arxiv.org/abs/2108.08842, Algorithm 1.
    """

    sends: ClassVar[type[Payload]] = RotatedLevels

    bits: float = 1.0
    block: int = 4096

    def __post_init__(self) -> None:
        super().__post_init__()
        require("EDEN.bits", self.bits, 0.05 <= self.bits <= 8, "in [0.05, 8]")
        require_block("EDEN.block", self.block)
        fits = self.block >= 64 or self.bits == int(self.bits)
        require("EDEN.block", self.block, fits, ">= 64 for a fraction of a bit")

    def compress(self, shared: Shared, x: Tensor, rest: Tensor, keys: Sequence[Key]) -> Payload:
        """See the class."""
        scale: Scale = "min-mse" if self.error_feedback else "unbiased"
        return rotated(x, rest, rotation_seeds(keys, x), self.bits, self.block, scale)


def require_block(name: str, block: int) -> None:
    """Raise `ConfigError` unless blocks of this length can be rotated."""
    fits = 1 <= block <= 1 << 20 and block & (block - 1) == 0
    require(name, block, fits, "a power of two in [1, 2**20]")


def rotation_seeds(keys: Sequence[Key], like: Tensor) -> Tensor:
    """``(n, 1)`` int64 on the device of ``like``: one seed a client."""
    return torch.stack([key.public("rotation").tensor(like.device) for key in keys])[:, None]


def rotated(
    x: Tensor, rest: Tensor, seeds: Tensor, bits: float, block: int, scale: Scale
) -> RotatedLevels:
    """The messages of ``x (n, d)``, with ``rest (n, p)`` beside them.

    Norms are summed in float64: a block overflows only where its norm is no float32.

    Args:
        x: Rows, one a client.
        rest: What is not compressed.
        seeds: ``(n, 1)`` int64 of the rotations.
        bits: Of a coordinate.
        block: The longest block.
        scale: ``unbiased``, ``|y|**2 / <c, y>``, or ``min-mse``, ``<c, y> / |c|**2``.
    """
    sizes = block_sizes(x.shape[1], block)
    wide = widths(sizes, bits).to(x.device)
    y = rotate(x, seeds, sizes)
    norms = block_norms(y, sizes)
    roots = torch.tensor(sizes, dtype=torch.float64, device=x.device).sqrt()
    y = y * spread((roots / norms).to(y.dtype), sizes)  # of mean square 1 in every block
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
