"""A vector, and how much of it belongs to each of several means."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from fedbench.core.errors import IllegalPayloadError
from fedbench.payload.base import Payload, Spec, require_width
from fedbench.payload.fields import cut, float_bytes, floats_of
from fedbench.payload.packets import Packet, join

_TOLERANCE = 1e-3  # how far from 1 rounding may bring a sum of responsibilities


@dataclass(frozen=True, eq=False)
class MixtureVectors(Payload):
    """``r (n, k)`` responsibilities that sum to 1, and ``x (n, d)``, a vector times the largest.

    The mean of `values` over clients is what the M-step of a mixture needs: ``r_j`` and ``r_j``
    times the vector. The vector travels multiplied by ``max_j r_j``, so that one block of `values`
    is what was sent, bit by bit. On the wire 32 (k + d) bits.

    Args:
        r: Responsibilities, at least 0.
        x: ``max_j r_j`` times the vector.
    """

    r: Tensor
    x: Tensor

    def check(self) -> None:
        """Responsibilities are a distribution, up to rounding."""
        require_width("MixtureVectors.r", self.r, self.r.shape[1], torch.float32)
        require_width("MixtureVectors.x", self.x, self.x.shape[1], torch.float32)
        if not bool(_is_distribution(self.r).all()):
            raise IllegalPayloadError("MixtureVectors.r must be at least 0 and sum to 1 in a row")

    @property
    def aligned(self) -> bool:
        """False: updates have no responsibilities."""
        return False

    def origin(self) -> Tensor:
        """Equal responsibilities, and 0 for floats."""
        origin = super().origin()
        origin[: self.r.shape[1]] = 1 / self.r.shape[1]
        return origin

    def opposite(self, values: Tensor, scale: float = 1.0) -> Tensor:
        """The same responsibilities, and the vector mirrored at 0."""
        k = self.r.shape[1]
        return torch.cat([values[:, :k], -scale * values[:, k:]], dim=1)

    def vectors(self) -> Tensor:
        """``(n, d)``: what the rows of ``x`` are multiples of."""
        return self.x / self.r.max(dim=1, keepdim=True).values

    def values(self) -> Tensor:
        """``(n, k + k d)`` float32: the responsibilities, then each times the vector."""
        ratios = self.r / self.r.max(dim=1, keepdim=True).values  # exactly 1 for the largest
        return torch.cat([self.r, (ratios[:, :, None] * self.x[:, None]).flatten(1)], dim=1)

    def nearest(self, values: Tensor) -> Self:
        """Responsibilities clipped and divided by their sum; the block of the largest of them.

        The other blocks follow from that one, and are not looked at.
        """
        k = self.r.shape[1]
        r = values[:, :k].to(torch.float32)
        clipped = r.nan_to_num(0.0).clamp(0, 1).double()  # of 1e-45 a float32 has no half
        total = clipped.sum(dim=1, keepdim=True)
        fallback = torch.where(total > 0, clipped / total, torch.full_like(clipped, 1 / k))
        r = torch.where(_is_distribution(r)[:, None], r, fallback.to(torch.float32))
        blocks = values[:, k:].reshape(len(values), k, self.x.shape[1])
        rows = torch.arange(len(values), device=values.device)
        return type(self)(r, blocks[rows, r.argmax(dim=1)].to(torch.float32))

    def encode(self) -> list[Packet]:
        """Responsibilities, then the vector."""
        return [join([r, x]) for r, x in zip(float_bytes(self.r), float_bytes(self.x), strict=True)]

    @classmethod
    def decode_row(cls, packet: Packet, spec: Spec) -> Self:
        """Rejects a wrong length and responsibilities that are none."""
        (k,), (d,) = spec["r"], spec["x"]
        r, x = cut(packet, 4 * k)
        if len(x) != 4 * d:
            raise IllegalPayloadError(
                f"a mixture vector must have {4 * (k + d)} bytes, got {len(packet.data)}"
            )
        row = cls(floats_of(r)[None], floats_of(x)[None])
        row.check()
        return row


def _is_distribution(r: Tensor) -> Tensor:
    """``(n,)`` bool; NaN is none."""
    return (r >= 0).all(dim=1) & ((r.sum(dim=1) - 1).abs() <= _TOLERANCE)
