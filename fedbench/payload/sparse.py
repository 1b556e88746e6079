"""A few coordinates with their values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from fedbench.errors import IllegalPayloadError
from fedbench.payload.base import Payload, Spec, require_width
from fedbench.wire import Packet, join, split


@dataclass(frozen=True, eq=False)
class SparseVectors(Payload):
    """``kept`` coordinates of ``d`` and their float32 values; the others are 0.

    On the wire a bitmap of d bits, then ``kept`` values of 32 bits in the order of their
    coordinates: 32 K d + d bits, the count of the FSL paper's Table 1 (see F6).

    Args:
        indices: ``(n, kept)`` int64, ascending in each row, no index twice.
        entries: ``(n, kept)`` float32.
        d: Coordinates of the dense vector.
    """

    indices: Tensor
    entries: Tensor
    d: int

    def check(self) -> None:
        """Ascending indices below ``d``, one value each."""
        kept = self.indices.shape[1]
        require_width("SparseVectors.indices", self.indices, kept, torch.int64)
        require_width("SparseVectors.entries", self.entries, kept, torch.float32)
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
        """Dense rows ``(n, d)``."""
        dense = self.entries.new_zeros(len(self.entries), self.d)
        return dense.scatter_(1, self.indices, self.entries)

    def nearest(self, values: Tensor) -> Self:
        """The ``kept`` largest magnitudes; among equals the lowest index."""
        kept = self.indices.shape[1]
        order = torch.sort(values.abs(), dim=1, descending=True, stable=True).indices
        indices = order[:, :kept].sort(dim=1).values
        return type(self)(indices, values.gather(1, indices).to(torch.float32), self.d)

    def encode(self) -> list[Packet]:
        """Bitmap, then values; NaN and infinity are legal bit patterns here."""
        packets = []
        rows = zip(self.indices.cpu().numpy(), self.entries.cpu().numpy(), strict=True)
        for index, entry in rows:
            bitmap = np.zeros(self.d, dtype=np.bool_)
            bitmap[index] = True
            data = entry.astype("<f4").view(np.uint8)
            packets.append(join([(data, 32 * len(entry)), (np.packbits(bitmap), self.d)]))
        return packets

    @classmethod
    def decode_row(cls, packet: Packet, spec: Spec) -> Self:
        """Rejects a wrong length, non-zero padding, and a bitmap with another count than agreed."""
        (kept,), d = spec["indices"], spec["d"]
        values, bitmap = split(packet, [32 * kept, d])
        index = np.flatnonzero(np.unpackbits(bitmap, count=d))
        if len(index) != kept:
            raise IllegalPayloadError(f"a sparse vector must keep {kept} of {d}, got {len(index)}")
        entry = np.frombuffer(values.tobytes(), dtype="<f4").astype(np.float32)
        return cls(torch.from_numpy(index.astype(np.int64))[None], torch.from_numpy(entry)[None], d)
