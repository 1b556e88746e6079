"""Signs with one bit per coordinate."""

from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from fedbench.payload.base import Payload, Spec, require_form
from fedbench.payload.fields import bits_of
from fedbench.payload.packets import Packet, split


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
        d = self.positive.shape[1]
        packed = np.packbits(self.positive.cpu().numpy(), axis=1)
        return [Packet(row.tobytes(), d) for row in packed]

    @classmethod
    def decode_row(cls, packet: Packet, spec: Spec) -> Self:
        """Return the row; a wrong length and non-zero padding are illegal."""
        (d,) = spec["positive"]
        (data,) = split(packet, [d])
        return cls(bits_of(data, d))
