"""A few coordinates with their values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from fedbench.errors import IllegalPayloadError
from fedbench.payload.base import Payload, Spec, require_width
from fedbench.payload.masks import float_bytes, floats_of
from fedbench.wire import Packet, join, split


@dataclass(frozen=True, eq=False)
class SparseVectors(Payload):
    """``kept`` coordinates of ``d`` and their float32 values, the others are 0; ``rest (n, p)``.

    On the wire ``kept`` values of 32 bits in the order of their coordinates, the rest, then a
    bitmap of d bits: 32 K d + d bits, the count of the FSL paper's Table 1 (see F6).

    Args:
        indices: ``(n, kept)`` int64, ascending in each row, no index twice.
        entries: ``(n, kept)`` float32.
        rest: Floats that are always sent; often ``p = 0``.
        d: Coordinates of the dense vector.
    """

    indices: Tensor
    entries: Tensor
    rest: Tensor
    d: int

    def check(self) -> None:
        """Ascending indices below ``d``, one value each."""
        kept = self.indices.shape[1]
        require_width("SparseVectors.indices", self.indices, kept, torch.int64)
        require_width("SparseVectors.entries", self.entries, kept, torch.float32)
        require_width("SparseVectors.rest", self.rest, self.rest.shape[1], torch.float32)
        low, high = self.indices[:, :-1], self.indices[:, 1:]
        if not bool((low < high).all()):
            raise IllegalPayloadError(
                "SparseVectors.indices must ascend, got a duplicate or a descent; sort each row"
            )
        if (
            kept
            and not 0 <= int(self.indices[:, 0].min()) <= int(self.indices[:, -1].max()) < self.d
        ):
            raise IllegalPayloadError(f"SparseVectors.indices must lie in [0, {self.d})")

    def values(self) -> Tensor:
        """Dense rows ``(n, d + p)``."""
        dense = self.entries.new_zeros(len(self.entries), self.d)
        return torch.cat([dense.scatter_(1, self.indices, self.entries), self.rest], dim=1)

    def headers(self) -> dict[str, Tensor]:
        """The indices."""
        return {"indices": self.indices}

    def nearest(self, values: Tensor) -> Self:
        """The ``kept`` largest magnitudes; among equals the lowest index."""
        kept = self.indices.shape[1]
        x, rest = values[:, : self.d], values[:, self.d :].to(torch.float32)
        order = torch.sort(x.abs(), dim=1, descending=True, stable=True).indices
        indices = order[:, :kept].sort(dim=1).values
        return type(self)(indices, x.gather(1, indices).to(torch.float32), rest, self.d)

    def encode(self) -> list[Packet]:
        """Floats, then the bitmap; NaN and infinity are legal bit patterns here."""
        packets = []
        floats = zip(float_bytes(self.entries), float_bytes(self.rest), strict=True)
        for index, parts in zip(self.indices.cpu().numpy(), floats, strict=True):
            bitmap = np.zeros(self.d, dtype=np.bool_)
            bitmap[index] = True
            packets.append(join([*parts, (np.packbits(bitmap), self.d)]))
        return packets

    @classmethod
    def decode_row(cls, packet: Packet, spec: Spec) -> Self:
        """Rejects a wrong length, non-zero padding, and a bitmap with another count than agreed."""
        (kept,), (p,), d = spec["indices"], spec["rest"], spec["d"]
        entries, rest, bitmap = split(packet, [32 * kept, 32 * p, d])
        index = np.flatnonzero(np.unpackbits(bitmap, count=d))
        if len(index) != kept:
            raise IllegalPayloadError(f"a sparse vector must keep {kept} of {d}, got {len(index)}")
        indices = torch.from_numpy(index.astype(np.int64))[None]
        return cls(indices, floats_of(entries)[None], floats_of(rest)[None], d)
