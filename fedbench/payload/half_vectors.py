"""Real vectors with 16 bits per coordinate."""

from dataclasses import dataclass
from typing import Literal, Self

import numpy as np
import torch
from torch import Tensor

from fedbench.core.errors import IllegalPayloadError
from fedbench.payload.base import Payload, Spec, require_form
from fedbench.payload.packets import Packet

Half = Literal["fp16", "bf16"]
DTYPES: dict[Half, torch.dtype] = {"fp16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True, eq=False)
class HalfVectors(Payload):
    """``x (n, d)`` in 16-bit floats; on the wire little-endian, 16 d bits, no header.

    ``fp16`` is IEEE 754 binary16: 11 significant bits, at most 65504. ``bf16`` is the upper half of
    a float32: 8 significant bits and its whole range.

    Args:
        x: Rows of float16 or bfloat16.
        form: ``fp16`` or ``bf16``.
    """

    x: Tensor
    form: Half

    def check(self) -> None:
        """Require rows of the 16-bit type; any value is structurally legal."""
        require_form(self, x=("d", DTYPES[self.form]))

    def values(self) -> Tensor:
        """Return the rows in float32, exact."""
        return self.x.to(torch.float32)

    def nearest(self, values: Tensor) -> Self:
        """Round to nearest even; what is finite stays finite, at most the largest number."""
        dtype = DTYPES[self.form]
        most = torch.finfo(dtype).max
        x = torch.where(torch.isfinite(values), values.clamp(-most, most), values)
        return type(self)(x.to(dtype), self.form)

    def encode(self) -> list[Packet]:
        """Return ``2 d`` bytes per row."""
        rows = self.x.cpu().contiguous().view(torch.int16).numpy().astype("<i2", copy=False)
        return [Packet(row.tobytes(), 16 * len(row)) for row in rows]

    @classmethod
    def decode_row(cls, packet: Packet, spec: Spec) -> Self:
        """Return the row; only a wrong length is illegal."""
        (d,) = spec["x"]
        if len(packet.data) != 2 * d:
            raise IllegalPayloadError(
                f"a vector of 16-bit floats must have {2 * d} bytes, got {len(packet.data)}"
            )
        row = torch.from_numpy(np.frombuffer(packet.data, dtype="<i2").astype(np.int16))
        return cls(row.view(DTYPES[spec["form"]])[None], spec["form"])
