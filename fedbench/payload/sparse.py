"""A few coordinates with their values."""

from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from fedbench.core.errors import IllegalPayloadError
from fedbench.core.order_statistics import largest
from fedbench.payload.base import Payload, Spec, require_width
from fedbench.payload.fields import cut, float_bytes, floats_of
from fedbench.payload.packets import Packet, code_bits, decode_bits, join, split


@dataclass(frozen=True, eq=False)
class SparseVectors(Payload):
    """``kept`` coordinates of ``d`` and their float32 values, the others are 0; ``rest (n, p)``.

    On the wire ``kept`` values of 32 bits in the order of their coordinates, the rest, then a
    bitmap of d bits: 32 K d + d bits, the count of the FSL paper's Table 1 (F6). If ``coded`` the
    bitmap is entropy-coded instead (`code_bits`): about ``d H2(K)`` bits.

    Args:
        indices: ``(n, kept)`` int64, ascending in each row, no index twice.
        entries: ``(n, kept)`` float32.
        rest: Floats that are always sent; often ``p = 0``.
        d: Coordinates of the dense vector.
        coded: Is the bitmap entropy-coded?
    """

    indices: Tensor
    entries: Tensor
    rest: Tensor
    d: int
    coded: bool = False

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
        if bool(((self.indices < 0) | (self.indices >= self.d)).any()):
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
        indices = largest(x.abs(), kept).nonzero()[:, 1].reshape(len(x), kept)
        entries = x.gather(1, indices).to(torch.float32)
        return type(self)(indices, entries, rest, self.d, self.coded)

    def encode(self) -> list[Packet]:
        """Floats, then the bitmap; NaN and infinity are legal bit patterns here."""
        packets = []
        floats = zip(float_bytes(self.entries), float_bytes(self.rest), strict=True)
        for index, parts in zip(self.indices.cpu().numpy(), floats, strict=True):
            bitmap = np.zeros(self.d, dtype=np.bool_)
            bitmap[index] = True
            where = code_bits(bitmap) if self.coded else (np.packbits(bitmap), self.d)
            packets.append(join([*parts, where]))
        return packets

    @classmethod
    def decode_row(cls, packet: Packet, spec: Spec) -> Self:
        """Rejects a wrong length, non-zero padding, no code, and another count than agreed."""
        (kept,), (p,), d = spec["indices"], spec["rest"], spec["d"]
        if spec["coded"]:
            entries, rest, data = cut(packet, 4 * kept, 4 * p)
            bitmap = decode_bits(data, d)
        else:
            entries, rest, data = split(packet, [32 * kept, 32 * p, d])
            bitmap = np.unpackbits(data, count=d).astype(np.bool_)
        index = np.flatnonzero(bitmap)
        if len(index) != kept:
            raise IllegalPayloadError(f"a sparse vector must keep {kept} of {d}, got {len(index)}")
        indices = torch.from_numpy(index.astype(np.int64))[None]
        floats = floats_of(entries)[None], floats_of(rest)[None]
        return cls(indices, *floats, d, spec["coded"])
