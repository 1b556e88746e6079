"""Quantized coordinates of a vector that a seed has rotated, and a scale for each block."""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from fedbench.core.blocks import block_sizes, block_sums, centroids, edges, rotate, spread, unrotate
from fedbench.core.choices import Checks
from fedbench.core.copies import copied_to
from fedbench.core.errors import IllegalPayloadError
from fedbench.core.rng import Key
from fedbench.payload import packets as wire
from fedbench.payload.base import Payload, Spec, require_form
from fedbench.payload.packets import BitString, Packet

_SHORT = 64  # shorter blocks have no coordinates with fewer bits: too few would be left


@lru_cache(maxsize=64)
def widths(sizes: tuple[int, ...], bits: float) -> Tensor:
    """Return the bits of each rotated coordinate, ``floor(bits)`` or one more, ``(d,)`` uint8.

    Of a block of B coordinates ``round((bits - floor(bits)) B)`` have one more: the same ones for
    every client, spread at random. In a block of fewer than 64 all of them have it.

    >>> sorted(widths((64,), 0.25).tolist()).index(1)
    48
    """
    whole = math.floor(bits)
    of_size = {}
    for size in dict.fromkeys(sizes):
        share = bits - whole if size >= _SHORT else math.ceil(bits - whole)
        order = Key(0).fold("widths", size).permutation(size)
        of_size[size] = (order < round(share * size)).to(torch.uint8) + whole
    return torch.cat([torch.empty(0, dtype=torch.uint8), *(of_size[size] for size in sizes)])


@lru_cache(maxsize=64)
def positions(sizes: tuple[int, ...], bits: float) -> dict[int, Any]:
    """Return an index into ``(d,)`` of the coordinates of each width that is sent."""
    if bits == math.floor(bits):
        return {math.floor(bits): slice(None)}
    wide = widths(sizes, bits).numpy()
    return {width: np.flatnonzero(wide == width) for width in _used(bits)}


@dataclass(frozen=True, eq=False)
class RotatedLevels(Payload):
    """``levels (n, d)`` uint8 of a rotated vector, ``scales (n, b)``, ``seeds (n, 1)``, ``rest``.

    A level is the index of a `centroids` of as many bits as its coordinate has (`widths`); those
    times the scale of their block, rotated back by the seed, are `values`. On the wire 64 bits of
    seed, 32 of each scale and of each of the rest, then the levels, first those of fewer bits. The
    seed and the scales are the client's choice: every seed is legal, and every scale from 0 on.
    """

    levels: Tensor  # indices of centroids
    scales: Tensor  # float32, by which the centroids of a block are multiplied
    seeds: Tensor  # int64, whose 64 bits name the stream of the rotation's signs
    rest: Tensor  # running statistics of normalisation; often ``p = 0``
    bits: float  # of a coordinate, on average
    block: int  # longest block that is rotated by itself, see `block_sizes`

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of coordinates of each block."""
        return block_sizes(self.levels.shape[1], self.block)

    def check(self) -> None:
        require_form(
            self,
            levels=("d", torch.uint8),
            scales=(len(self.sizes), torch.float32),
            seeds=(1, torch.int64),
            rest=("p", torch.float32),
        )
        if bool((self.levels.int() >> self._widths()).any()):
            raise IllegalPayloadError("RotatedLevels.levels must have a centroid each")

    def headers(self) -> dict[str, Tensor]:
        return {"scales": self.scales, "seeds": self.seeds}

    def in_range(self) -> Tensor:
        """Return rows whose scales are at least 0 and fit the norm that their levels allow.

        An honest client quantizes a block whose coordinates have mean square 1, so the ends of its
        cells that are nearer to 0 have at most that. A block with scale 0 says nothing.
        """
        counts = torch.tensor(self.sizes, device=self.levels.device)
        near = block_sums(self._look_up(_nearer_ends).square(), self.sizes)
        used = block_sums(self.levels, self.sizes)
        fits = torch.where(self.scales == 0, used == 0, near <= counts * (1 + 1e-3))
        return (fits & (self.scales >= 0)).all(dim=1)

    def passes(self, checks: Checks) -> Tensor:
        """Require beside finite fields a finite rotation, unless nothing is checked.

        No sum on the way back is larger than a block's norm if all its centroids were outermost.
        """
        rows = super().passes(checks)
        if checks == "none":
            return rows
        roots = copied_to(torch.tensor(self.sizes), self.scales.device).sqrt()
        outermost = float(centroids(math.ceil(self.bits)).max())
        return rows & torch.isfinite(self.scales * outermost * roots).all(dim=1).cpu()

    def values(self) -> Tensor:
        """Return scaled centroids rotated back, then the floats, ``(n, d + p)`` float32."""
        y = self._look_up(centroids).mul_(spread(self.scales, self.sizes))
        return torch.cat([unrotate(y, self.seeds, self.sizes), self.rest], dim=1)

    def nearest(self, values: Tensor) -> Self:
        """Return the closest centroid of each rotated coordinate; level 0 without a scale."""
        d = self.levels.shape[1]
        y = rotate(values[:, :d].to(torch.float32), self.seeds, self.sizes)
        scales = spread(self.scales, self.sizes)
        usable = (scales > 0) & torch.isfinite(scales)
        levels = torch.where(usable, quantized(y / scales, self._widths(), self.bits), 0)
        return dataclasses.replace(self, levels=levels, rest=values[:, d:].to(torch.float32))

    def parts(self) -> list[BitString]:
        row = self.levels[0].numpy()
        where = positions(self.sizes, self.bits).items()
        levels = [wire.pack(row[index], width) for width, index in where]
        return [wire.number_bytes(x) for x in (self.seeds, self.scales, self.rest)] + levels

    @classmethod
    def decode_row(cls, packet: Packet, spec: Spec) -> Self:
        (d,) = spec["levels"]
        (p,) = spec["rest"]
        bits = spec["bits"]
        block = spec["block"]
        sizes = block_sizes(d, block)
        levels = np.zeros(d, dtype=np.uint8)
        where = positions(sizes, bits).items()
        lengths = [width * len(levels[index]) for width, index in where]
        seed, scales, rest, *coded = wire.split(packet, [64, 32 * len(sizes), 32 * p, *lengths])
        for (width, index), data in zip(where, coded, strict=True):
            levels[index] = wire.unpack(data, len(levels[index]), width)
        return cls(
            torch.from_numpy(levels)[None],
            scales=wire.floats_of(scales),
            seeds=wire.seeds_of(seed),
            rest=wire.floats_of(rest),
            bits=bits,
            block=block,
        )

    def _widths(self) -> Tensor:
        return copied_to(widths(self.sizes, self.bits), self.levels.device)

    def _look_up(self, table: Callable[[int], Tensor]) -> Tensor:
        return looked_up(table, self.levels, self._widths(), self.bits)


def quantized(y: Tensor, wide: Tensor, bits: float) -> Tensor:
    """Return the levels of ``y (n, d)``, each in a quantizer of its width; 0 goes up.

    >>> quantized(torch.tensor([[-2.0, 0.0, 0.3, 2.0]]), widths((4,), 2.0), 2.0).tolist()
    [[0, 2, 2, 3]]
    """
    levels = torch.zeros(y.shape, dtype=torch.uint8, device=y.device)
    for width in _used(bits):
        inner = copied_to(edges(width), y.device).to(y)
        cells = (y >= inner) if width == 1 else torch.bucketize(y, inner, right=True)
        cells = cells.to(torch.uint8)
        levels = cells if bits == width else torch.where(wide == width, cells, levels)
    return levels


def looked_up(table: Callable[[int], Tensor], levels: Tensor, wide: Tensor, bits: float) -> Tensor:
    """Return what the ``table`` of its width has for each of ``levels (n, d)``, float32."""
    out = torch.zeros(levels.shape, device=levels.device)
    for width in _used(bits):
        entries = copied_to(table(width), levels.device)
        if width == 1:
            numbers = levels.to(torch.float32).mul_(entries[1] - entries[0]).add_(entries[0])
        else:
            numbers = entries[levels.clamp_max(len(entries) - 1).int()]
        out = numbers if bits == width else torch.where(wide == width, numbers, out)
    return out


def _used(bits: float) -> list[int]:
    """Return the widths that are sent: ``floor(bits)``, and one more where that is not all."""
    whole = math.floor(bits)
    return [width for width in dict.fromkeys((whole, math.ceil(bits))) if width]


def _nearer_ends(bits: int) -> Tensor:
    """Return how near to 0 the cell of each level comes, ``(2**bits,)``."""
    inner = edges(bits)
    far = torch.tensor([torch.inf])
    low = torch.cat([-far, inner])
    high = torch.cat([inner, far])
    return torch.maximum(low, -high).clamp_min(0)
