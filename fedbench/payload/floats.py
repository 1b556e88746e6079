"""Real vectors with 32 or 16 bits per coordinate, and those of a mixture of means."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Self

import numpy as np
import torch
from torch import Tensor

from fedbench.core.copies import copied_to, fetched, staging
from fedbench.core.errors import IllegalPayloadError
from fedbench.payload.base import Payload, Spec, require_form
from fedbench.payload.packets import BitString, Packet, floats_of, number_bytes, split

Half = Literal["fp16", "bf16"]
DTYPES: dict[Half, torch.dtype] = {"fp16": torch.float16, "bf16": torch.bfloat16}
_TOLERANCE = 1e-3  # how far from 1 rounding may bring a sum of responsibilities


@dataclass(frozen=True, eq=False)
class FloatVectors(Payload):
    """``x (n, d)`` float32; on the wire little-endian IEEE 754, 32 d bits, no header.

    A server that checks nothing accepts every bit pattern, NaN and infinity included.
    """

    x: Tensor

    def check(self) -> None:
        require_form(self, x=("d", torch.float32))

    def values(self) -> Tensor:
        return self.x

    def nearest(self, values: Tensor) -> Self:
        return type(self)(values.to(torch.float32))

    def encode(self) -> list[Packet]:
        """Return ``4 d`` bytes per row, without a copy in between."""
        rows = fetched(self.x).contiguous().numpy().astype("<f4", copy=False)
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
        x = staging(torch.Size((len(rows), d)), torch.float32, torch.device(device))
        for row, data in zip(x.numpy(), rows, strict=True):
            row[:] = np.frombuffer(data, dtype="<f4")
        return cls(copied_to(x, device)), right

    @classmethod
    def decode_row(cls, packet: Packet, spec: Spec) -> Self:
        (data,) = split(packet, [32 * spec["x"][0]])
        return cls(floats_of(data))


@dataclass(frozen=True, eq=False)
class HalfVectors(Payload):
    """``x (n, d)`` in 16-bit floats; on the wire little-endian, 16 d bits, no header.

    ``fp16`` is IEEE 754 binary16: 11 significant bits, at most 65504. ``bf16`` is the upper half of
    a float32: 8 significant bits and its whole range.
    """

    x: Tensor
    form: Half

    def check(self) -> None:
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
        rows = fetched(self.x).contiguous().view(torch.int16).numpy().astype("<i2", copy=False)
        return [Packet(row.tobytes(), 16 * len(row)) for row in rows]

    @classmethod
    def decode_row(cls, packet: Packet, spec: Spec) -> Self:
        (data,) = split(packet, [16 * spec["x"][0]])
        row = torch.from_numpy(data.view("<i2").astype(np.int16))
        return cls(row.view(DTYPES[spec["form"]])[None], spec["form"])


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

    def parts(self) -> list[BitString]:
        return [number_bytes(self.r), number_bytes(self.x)]

    @classmethod
    def decode_row(cls, packet: Packet, spec: Spec) -> Self:
        (k,) = spec["r"]
        (d,) = spec["x"]
        r, x = split(packet, [32 * k, 32 * d])
        row = cls(floats_of(r), floats_of(x))
        row.check()
        return row


def _is_distribution(r: Tensor) -> Tensor:
    """Return which rows are distributions, ``(n,)``; NaN is none."""
    return (r >= 0).all(dim=1) & ((r.sum(dim=1) - 1).abs() <= _TOLERANCE)
