"""One bit a coordinate, and how large the coordinates of a layer are."""

import dataclasses
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from fedbench.core.blocks import spread
from fedbench.payload.base import Payload, Spec, require_width
from fedbench.payload.fields import float_bytes, floats_of
from fedbench.payload.packets import Packet, join, pack, split


@dataclass(frozen=True, eq=False)
class ScaledSigns(Payload):
    """``positive (n, d)`` bool, ``scales (n, parts)`` and ``rest (n, p)`` float32.

    A coordinate is plus or minus the scale of its part. On the wire the scales, the floats, d bits.

    Args:
        positive: False stands for minus the scale.
        scales: At least 0 for an honest client; a forged one may be anything.
        rest: Floats that are always sent; often ``p = 0``.
        sizes: Coordinates of each part, layers for instance.
    """

    positive: Tensor
    scales: Tensor
    rest: Tensor
    sizes: tuple[int, ...]

    def check(self) -> None:
        """Shapes and types."""
        require_width("ScaledSigns.positive", self.positive, sum(self.sizes), torch.bool)
        require_width("ScaledSigns.scales", self.scales, len(self.sizes), torch.float32)
        require_width("ScaledSigns.rest", self.rest, self.rest.shape[1], torch.float32)

    def headers(self) -> dict[str, Tensor]:
        """The scales."""
        return {"scales": self.scales}

    def in_range(self) -> Tensor:
        """No scale is negative, a mean of magnitudes cannot be; beside one of 0 all is positive."""
        silent = spread(self.scales, self.sizes) == 0
        return (self.scales >= 0).all(dim=1) & (self.positive | ~silent).all(dim=1)

    def values(self) -> Tensor:
        """``(n, d + p)`` float32."""
        signs = self.positive.to(torch.float32).mul_(2).sub_(1)
        return torch.cat([signs.mul_(spread(self.scales, self.sizes)), self.rest], dim=1)

    def nearest(self, values: Tensor) -> Self:
        """The sign; 0 is as close to both and becomes positive, as does all at a scale of 0."""
        d = self.positive.shape[1]
        still = spread(self.scales, self.sizes) == 0
        positive = (values[:, :d] >= 0) | still
        return dataclasses.replace(self, positive=positive, rest=values[:, d:].to(torch.float32))

    def encode(self) -> list[Packet]:
        """Scales, floats, signs."""
        floats = zip(float_bytes(self.scales), float_bytes(self.rest), strict=True)
        rows = zip(floats, self.positive.cpu().numpy(), strict=True)
        return [join([*parts, pack(positive, 1)]) for parts, positive in rows]

    @classmethod
    def decode_row(cls, packet: Packet, spec: Spec) -> Self:
        """Rejects a wrong length and non-zero padding."""
        (d,), (b,), (p,) = spec["positive"], spec["scales"], spec["rest"]
        scales, rest, data = split(packet, [32 * b, 32 * p, d])
        bits = np.unpackbits(data, count=d).astype(np.bool_)
        floats = floats_of(scales)[None], floats_of(rest)[None]
        return cls(torch.from_numpy(bits)[None], *floats, spec["sizes"])
