"""Whole numbers for the coordinates, and a scale for each bucket of them."""

import dataclasses
import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, Self

import numpy as np
import torch
from torch import Tensor

from fedbench.core.blocks import block_norms, spread
from fedbench.core.devices import accelerated
from fedbench.core.errors import IllegalPayloadError
from fedbench.payload.base import Payload, Spec, require_form
from fedbench.payload.entropy_coding import code_elias, code_entropy, decode_elias, decode_entropy
from fedbench.payload.packets import BitString, Packet, cut, floats_of, number_bytes

Norm = Literal["l2", "max"]
Code = Literal["elias", "entropy"]


@lru_cache(maxsize=64)
def bucket_lengths(sizes: tuple[int, ...], bucket: int) -> tuple[int, ...]:
    """Return the length of each bucket: ``bucket``, or 0 for a whole part; the last may be shorter.

    >>> bucket_lengths((5, 2), 2), bucket_lengths((5, 2), 0)
    ((2, 2, 1, 2), (5, 2))
    """
    return tuple(
        min(bucket or size, size - start)
        for size in sizes
        for start in range(0, size, bucket or size or 1)
    )


def bucket_norms(x: Tensor, lengths: tuple[int, ...], norm: Norm) -> Tensor:
    """Return the L2 norm or largest magnitude of each bucket of ``x``, ``(n, B)`` float64."""
    return block_norms(x, lengths, 2 if norm == "l2" else math.inf)


def scales_of(x: Tensor, lengths: tuple[int, ...], norm: Norm) -> Tensor:
    """Return the scales ``(n, B)`` float32 that an honest client sends with ``x (n, d)``.

    Norms are rounded up, so that no coordinate is larger than its scale. NaN is the scale of a
    bucket that is not finite; infinity that of one whose norm is more than a float32 can be.
    """
    norms = bucket_norms(x, lengths, norm)
    scales = norms.to(torch.float32)
    up = torch.nextafter(scales, torch.full_like(scales, torch.inf))
    scales = torch.where(scales < norms, up, scales)
    return torch.where(torch.isfinite(norms), scales, torch.nan)


def histograms(levels: Tensor, top: int) -> Tensor:
    """Return ``(n, 2 top + 1)`` int64 on the CPU: how often each of ``-top .. top`` is in a row.

    On a CPU row by row, which needs less memory; elsewhere all at once, which is read once.

    >>> histograms(torch.tensor([[0, 1, 1], [-1, -1, 0]]), 1).tolist()
    [[0, 1, 2], [2, 1, 0]]
    """
    at_once = max(len(levels), 1) if accelerated(levels.device) else 1
    counted = [together(part, top) for part in torch.split(levels, at_once)]
    return torch.cat(counted)


def together(levels: Tensor, top: int) -> Tensor:
    """Return `histograms` of all rows from one count."""
    width = 2 * top + 1
    starts = torch.arange(len(levels), device=levels.device)[:, None] * width + top
    places = (levels.to(torch.int64) + starts).reshape(-1)
    return torch.bincount(places, minlength=width * len(levels)).reshape(-1, width).cpu()


@dataclass(frozen=True, eq=False)
class Levels(Payload):
    """``levels (n, d)`` int16 times ``scales (n, B)`` over ``top``, and ``rest (n, p)`` float32.

    On the wire 32 bits of each scale and of each of the rest, then the levels as `code_elias` or
    `code_entropy` codes them: about ``d H`` bits, with the entropy H of their histogram. A client
    chooses its scales, and every float is legal: `values` have no bound.
    """

    levels: Tensor  # whole numbers of magnitude ``top`` or less
    scales: Tensor  # what a level ``top`` stands for in each bucket
    rest: Tensor  # floats that are always sent; often ``p = 0``
    top: int  # number of levels above 0; below it are as many
    sizes: tuple[int, ...]  # lengths of the parts of the vector; no bucket has coordinates of two
    bucket: int  # coordinates with one scale, 0 for a whole part; the last one may have fewer
    norm: Norm  # meaning of a scale: L2 norm of its bucket, or largest magnitude
    code: Code

    @property
    def lengths(self) -> tuple[int, ...]:
        """Number of coordinates of each bucket."""
        return bucket_lengths(self.sizes, self.bucket)

    def check(self) -> None:
        levels = (sum(self.sizes), torch.int16)
        scales = (len(self.lengths), torch.float32)
        require_form(self, levels=levels, scales=scales, rest=("p", torch.float32))
        if bool((self.levels.int().abs() > self.top).any()):
            raise IllegalPayloadError(f"Levels.levels must be of magnitude <= {self.top}")

    def values(self) -> Tensor:
        """Return the scaled levels, then the floats, ``(n, d + p)`` float32."""
        x = self.levels.to(torch.float32)
        x.div_(x.new_full((), self.top))  # by a number CUDA multiplies with its rounded inverse
        x.mul_(spread(self.scales, self.lengths))
        return torch.cat([x, self.rest], dim=1)

    def nearest(self, values: Tensor) -> Self:
        """Return the nearest levels for the same scales; 0 where a scale is 0 or not finite.

        Halfway between two levels it is the even one. Scales below ``2**-126 top`` have values
        that float32 cannot tell apart.
        """
        d = self.levels.shape[1]
        wide = spread(self.scales, self.lengths)
        levels = (values[:, :d] / wide).mul_(self.top).clamp_(-self.top, self.top).round_()
        levels = torch.where(wide == 0, 0.0, levels).nan_to_num_(0.0)  # NaN is no int16
        rest = values[:, d:].to(torch.float32)
        return dataclasses.replace(self, levels=levels.to(torch.int16), rest=rest)

    def entropy(self) -> Tensor:
        """Return ``d H`` bits with the entropy H of a row's levels, and 32 per scale and float."""
        floats = 32 * (self.scales.shape[1] + self.rest.shape[1])
        bits = []
        for histogram in histograms(self.levels, self.top):
            counts = histogram[histogram > 0].double()
            bits.append(-(counts * torch.log2(counts / self.levels.shape[1])).sum() + floats)
        return torch.stack(bits) if bits else torch.zeros(0, dtype=torch.float64)

    def headers(self) -> dict[str, Tensor]:
        return {"scales": self.scales}

    def in_range(self) -> Tensor:
        """Return rows whose scales are at least 0 and whose levels can be those of such a scale.

        A scale 0 has levels 0. The largest magnitude of a bucket is sent as ``top`` for sure. With
        L2 an honest ``|level| < top |v_i| / ||v|| + 1`` where it is not 0, so by the triangle
        inequality the norm of a bucket's levels is below ``top + sqrt(levels that are not 0)``.
        """
        norms = bucket_norms(self.levels.float(), self.lengths, self.norm)
        if self.norm == "max":
            fits = norms == self.top
        else:
            used = bucket_norms(self.levels.sign().float(), self.lengths, "l2")
            fits = norms <= (self.top + used) * (1 + 1e-6)
        fits = torch.where(self.scales == 0, norms == 0, fits)
        return (fits & (self.scales >= 0)).all(dim=1)

    def parts(self) -> list[BitString]:
        row = self.levels[0].numpy()
        coded = code_elias(row) if self.code == "elias" else code_entropy(row, self.top)
        return [number_bytes(self.scales), number_bytes(self.rest), coded]

    @classmethod
    def decode_row(cls, packet: Packet, spec: Spec) -> Self:
        (d,) = spec["levels"]
        (count,) = spec["scales"]
        (p,) = spec["rest"]
        top = spec["top"]
        scales, rest, data = cut(packet, 4 * count, 4 * p)
        decode = decode_elias if spec["code"] == "elias" else decode_entropy
        levels = torch.from_numpy(decode(data, d, top).astype(np.int16))[None]
        return cls(
            levels,
            floats_of(scales),
            floats_of(rest),
            top,
            spec["sizes"],
            spec["bucket"],
            spec["norm"],
            spec["code"],
        )
