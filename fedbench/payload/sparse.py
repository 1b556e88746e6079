"""Sparse vectors: a few coordinates with their values."""

from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from fedbench.core.errors import IllegalPayloadError
from fedbench.core.order_statistics import largest
from fedbench.payload.base import Payload, Spec, require_form
from fedbench.payload.fields import bits_of, cut, floats_of, number_bytes
from fedbench.payload.packets import Packet, Part, code_bits, decode_bits, split


@dataclass(frozen=True, eq=False)
class SparseVectors(Payload):
    """``K`` coordinates of ``d`` and their float32 values, the others are 0; ``rest (n, p)``.

    On the wire ``K`` values of 32 bits in the order of their coordinates, the rest, then a bitmap
    of d bits: 32 K + d bits, as in the FSL paper's Table 1 (F6, with K d values). If ``coded`` the
    bitmap is entropy-coded instead (`code_bits`): about ``d H2(K / d)`` bits.

    Args:
        indices: ``(n, K)`` int64, ascending in each row, no index twice.
        entries: ``(n, K)`` float32.
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
        indices, floats = torch.int64, torch.float32
        width = self.entries.shape[-1]
        require_form(self, indices=(width, indices), entries=("K", floats), rest=("p", floats))
        if not bool((self.indices[:, :-1] < self.indices[:, 1:]).all()):
            raise IllegalPayloadError(
                "SparseVectors.indices must ascend, got a duplicate or a descent; sort each row"
            )
        if bool(((self.indices < 0) | (self.indices >= self.d)).any()):
            raise IllegalPayloadError(f"SparseVectors.indices must lie in [0, {self.d})")

    def values(self) -> Tensor:
        """Return dense rows ``(n, d + p)``."""
        dense = self.entries.new_zeros(len(self.entries), self.d)
        return torch.cat([dense.scatter_(1, self.indices, self.entries), self.rest], dim=1)

    def headers(self) -> dict[str, Tensor]:
        return {"indices": self.indices}

    def nearest(self, values: Tensor) -> Self:
        """Return the ``K`` largest magnitudes; among equals the lowest index."""
        width = self.indices.shape[1]
        x = values[:, : self.d]
        rest = values[:, self.d :].to(torch.float32)
        indices = largest(x.abs(), width).nonzero()[:, 1].reshape(len(x), width)
        entries = x.gather(1, indices).to(torch.float32)
        return type(self)(indices, entries, rest, self.d, self.coded)

    def parts(self) -> list[list[Part]]:
        where = []
        for index in self.indices.cpu().numpy():
            bitmap = np.zeros(self.d, dtype=np.bool_)
            bitmap[index] = True
            where.append(code_bits(bitmap) if self.coded else (np.packbits(bitmap), self.d))
        return [number_bytes(self.entries), number_bytes(self.rest), where]

    @classmethod
    def decode_row(cls, packet: Packet, spec: Spec) -> Self:
        """Return the row; a wrong length, padding, code or number of coordinates is illegal."""
        (width,), (p,), d = spec["indices"], spec["rest"], spec["d"]
        if spec["coded"]:
            entries, rest, data = cut(packet, 4 * width, 4 * p)
            bitmap = decode_bits(data, d)
        else:
            entries, rest, data = split(packet, [32 * width, 32 * p, d])
            bitmap = bits_of(data, d)[0].numpy()
        index = np.flatnonzero(bitmap)
        if len(index) != width:
            raise IllegalPayloadError(f"a sparse vector must keep {width} of {d}, got {len(index)}")
        indices = torch.from_numpy(index.astype(np.int64))[None]
        return cls(indices, floats_of(entries), floats_of(rest), d, spec["coded"])
