"""Vectors with responsibilities of the means of a mixture."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from fedbench.core.errors import IllegalPayloadError
from fedbench.payload.base import Payload, Spec, require_form
from fedbench.payload.packets import Packet, Part, floats_of, number_bytes, split

_TOLERANCE = 1e-3  # how far from 1 rounding may bring a sum of responsibilities


@dataclass(frozen=True, eq=False)
class MixtureVectors(Payload):
    """``r (n, k)`` responsibilities that sum to 1, and ``x (n, d)``, a vector times the largest.

    The mean of `values` over clients is what the M-step of a mixture needs. One block of them is
    what was sent, bit by bit: 32 (k + d) bits on the wire.
    """

    aligned = False

    r: Tensor
    x: Tensor

    def check(self) -> None:
        require_form(self, r=("k", torch.float32), x=("d", torch.float32))
        if not bool(_is_distribution(self.r).all()):
            raise IllegalPayloadError("MixtureVectors.r must be at least 0 and sum to 1 in a row")

    def fixed(self) -> tuple[int, float]:
        return self.r.shape[1], 1 / self.r.shape[1]

    def vectors(self) -> Tensor:
        """Return the vectors ``(n, d)`` that the rows of ``x`` are multiples of."""
        return self.x / self.r.max(dim=1, keepdim=True).values

    def values(self) -> Tensor:
        """Return the responsibilities, then each times the vector, ``(n, k + k d)`` float32."""
        ratios = self.r / self.r.max(dim=1, keepdim=True).values  # exactly 1 for the largest
        return torch.cat([self.r, (ratios[:, :, None] * self.x[:, None]).flatten(1)], dim=1)

    def nearest(self, values: Tensor) -> Self:
        """Return responsibilities clipped and divided by their sum, and the block of the largest.

        The other blocks follow from that one, and are not read.
        """
        k = self.r.shape[1]
        r = values[:, :k].to(torch.float32)
        clipped = r.nan_to_num(0.0).clamp(0, 1).double()  # half of 1e-45 is no float32
        total = clipped.sum(dim=1, keepdim=True)
        fallback = torch.where(total > 0, clipped / total, torch.full_like(clipped, 1 / k))
        r = torch.where(_is_distribution(r)[:, None], r, fallback.to(torch.float32))
        blocks = values[:, k:].reshape(len(values), k, self.x.shape[1])
        rows = torch.arange(len(values), device=values.device)
        return type(self)(r, blocks[rows, r.argmax(dim=1)].to(torch.float32))

    def parts(self) -> list[list[Part]]:
        return [number_bytes(self.r), number_bytes(self.x)]

    @classmethod
    def decode_row(cls, packet: Packet, spec: Spec) -> Self:
        (k,), (d,) = spec["r"], spec["x"]
        r, x = split(packet, [32 * k, 32 * d])
        row = cls(floats_of(r), floats_of(x))
        row.check()
        return row


def _is_distribution(r: Tensor) -> Tensor:
    """Return which rows are distributions, ``(n,)``; NaN is none."""
    return (r >= 0).all(dim=1) & ((r.sum(dim=1) - 1).abs() <= _TOLERANCE)
