"""Signs with one bit per coordinate, of one size or with a scale per layer."""

import dataclasses
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from fedbench.core.blocks import spread
from fedbench.payload.base import Payload, Spec, require_form
from fedbench.payload.packets import Packet, Part, bits_of, floats_of, number_bytes, pack, split


@dataclass(frozen=True, eq=False)
class SignBits(Payload):
    """``positive (n, d)`` bool: True stands for +1, False for -1; on the wire d bits."""

    bounded = True

    positive: Tensor

    def check(self) -> None:
        require_form(self, positive=("d", torch.bool))

    def values(self) -> Tensor:
        """Return -1 and +1, ``(n, d)`` float32."""
        return self.positive.to(torch.float32) * 2 - 1

    def nearest(self, values: Tensor) -> Self:
        """Return the signs; 0 is as close to both and becomes +1."""
        return type(self)(values >= 0)

    def encode(self) -> list[Packet]:
        """Return eight signs per byte, the first one in the highest bit."""
        packed = np.packbits(self.positive.cpu().numpy(), axis=1)
        return [Packet(row.tobytes(), self.positive.shape[1]) for row in packed]

    @classmethod
    def decode_row(cls, packet: Packet, spec: Spec) -> Self:
        (d,) = spec["positive"]
        (data,) = split(packet, [d])
        return cls(bits_of(data, d))


@dataclass(frozen=True, eq=False)
class ScaledSigns(Payload):
    """``positive (n, d)`` bool, ``scales (n, parts)`` and ``rest (n, p)`` float32.

    A coordinate is plus or minus the scale of its part. On the wire the scales, the floats, d bits.
    """

    positive: Tensor  # False stands for minus the scale
    scales: Tensor  # at least 0 for an honest client; a forged one may be anything
    rest: Tensor  # floats that are always sent; often ``p = 0``
    sizes: tuple[int, ...]  # coordinates of each part, layers for instance

    def check(self) -> None:
        scales = (len(self.sizes), torch.float32)
        positive = (sum(self.sizes), torch.bool)
        require_form(self, positive=positive, scales=scales, rest=("p", torch.float32))

    def headers(self) -> dict[str, Tensor]:
        return {"scales": self.scales}

    def in_range(self) -> Tensor:
        """Return rows without a negative scale, which no mean of magnitudes is; 0 is positive."""
        silent = spread(self.scales, self.sizes) == 0
        return (self.scales >= 0).all(dim=1) & (self.positive | ~silent).all(dim=1)

    def values(self) -> Tensor:
        """Return scaled signs, then the floats, ``(n, d + p)`` float32."""
        signs = self.positive.to(torch.float32).mul_(2).sub_(1)
        return torch.cat([signs.mul_(spread(self.scales, self.sizes)), self.rest], dim=1)

    def nearest(self, values: Tensor) -> Self:
        """Return the signs; 0 is as close to both and becomes positive, as does all at scale 0."""
        d = self.positive.shape[1]
        still = spread(self.scales, self.sizes) == 0
        positive = (values[:, :d] >= 0) | still
        return dataclasses.replace(self, positive=positive, rest=values[:, d:].to(torch.float32))

    def parts(self) -> list[list[Part]]:
        signs = [pack(positive, 1) for positive in self.positive.cpu().numpy()]
        return [number_bytes(self.scales), number_bytes(self.rest), signs]

    @classmethod
    def decode_row(cls, packet: Packet, spec: Spec) -> Self:
        (d,), (b,), (p,) = spec["positive"], spec["scales"], spec["rest"]
        scales, rest, data = split(packet, [32 * b, 32 * p, d])
        return cls(bits_of(data, d), floats_of(scales), floats_of(rest), spec["sizes"])
