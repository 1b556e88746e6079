"""Real vectors with 32 bits per coordinate."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from fedbench.core.errors import IllegalPayloadError
from fedbench.payload.base import Payload, Spec, require_form
from fedbench.payload.packets import Packet


@dataclass(frozen=True, eq=False)
class FloatVectors(Payload):
    """``x (n, d)`` float32; on the wire little-endian IEEE 754, 32 d bits, no header.

    A server that checks nothing accepts every bit pattern, NaN and infinity included.
    """

    x: Tensor

    def check(self) -> None:
        """Require float32 rows; any value is structurally legal."""
        require_form(self, x=("d", torch.float32))

    def values(self) -> Tensor:
        """Return the rows themselves."""
        return self.x

    def nearest(self, values: Tensor) -> Self:
        """Return the values rounded to float32."""
        return type(self)(values.to(torch.float32))

    def encode(self) -> list[Packet]:
        """Return ``4 d`` bytes per row, without a copy in between."""
        rows = self.x.cpu().contiguous().numpy().astype("<f4", copy=False)
        return [Packet(row.tobytes(), 32 * len(row)) for row in rows]

    @classmethod
    def decode(
        cls, packets: Sequence[Packet], spec: Spec, device: torch.device | str = "cpu"
    ) -> tuple[Self | None, Tensor]:
        """Decode rows of the right length; each is copied once, to where it stays."""
        (d,) = spec["x"]
        right = torch.tensor([len(p.data) == 4 * d for p in packets], dtype=torch.bool)
        rows = [p.data for p, fits in zip(packets, right, strict=True) if fits]
        if not rows:
            return None, right
        x = np.empty((len(rows), d), dtype=np.float32)
        for row, data in zip(x, rows, strict=True):
            row[:] = np.frombuffer(data, dtype="<f4")
        return cls(torch.from_numpy(x).to(device)), right

    @classmethod
    def decode_row(cls, packet: Packet, spec: Spec) -> Self:
        """Return the row; only a wrong length is illegal."""
        row, _ = cls.decode([packet], spec)
        if row is None:
            raise IllegalPayloadError(
                f"a float vector must have {4 * spec['x'][0]} bytes, got {len(packet.data)}"
            )
        return row
