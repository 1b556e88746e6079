"""One bit a coordinate, read as a sign."""

from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from fedbench.core.errors import IllegalPayloadError
from fedbench.payload.base import Payload, Spec
from fedbench.payload.packets import Packet, split


@dataclass(frozen=True, eq=False)
class SignBits(Payload):
    """``positive (n, d)`` bool: True stands for +1, False for -1; on the wire d bits."""

    positive: Tensor

    def check(self) -> None:
        """Bool rows."""
        if self.positive.ndim != 2 or self.positive.dtype != torch.bool:
            raise IllegalPayloadError(
                "SignBits.positive must be (n, d) bool, "
                f"got {tuple(self.positive.shape)} {self.positive.dtype}"
            )

    @property
    def bounded(self) -> bool:
        """True."""
        return True

    def values(self) -> Tensor:
        """``(n, d)`` of -1 and +1, float32."""
        return self.positive.to(torch.float32) * 2 - 1

    def nearest(self, values: Tensor) -> Self:
        """The sign; 0 is as close to both and becomes +1."""
        return type(self)(values >= 0)

    def encode(self) -> list[Packet]:
        """Eight signs a byte, the first one in the highest bit."""
        d = self.positive.shape[1]
        packed = np.packbits(self.positive.cpu().numpy(), axis=1)
        return [Packet(row.tobytes(), d) for row in packed]

    @classmethod
    def decode_row(cls, packet: Packet, spec: Spec) -> Self:
        """Rejects a wrong length and non-zero padding."""
        (d,) = spec["positive"]
        (data,) = split(packet, [d])
        bits = np.unpackbits(data, count=d).astype(np.bool_)
        return cls(torch.from_numpy(bits)[None])
