"""The coordinates that pruning has left, and which ones these are."""

from dataclasses import dataclass
from typing import Self
from zlib import crc32

import numpy as np
import torch
from torch import Tensor

from fedbench.core.errors import IllegalPayloadError
from fedbench.core.order_statistics import largest
from fedbench.payload.base import Payload, Spec, require_width
from fedbench.payload.fields import behind, cut, float_bytes, floats_of, placed
from fedbench.payload.packets import Packet, code_bits, decode_bits, join


class Alive(bytes):
    """Which coordinates may be kept, as packed bits; no bytes at all: every one.

    >>> Alive.of(torch.tensor([True, False, True])).mask(3).tolist()
    [True, False, True]
    >>> Alive().mask(2).tolist()
    [True, True]
    """

    @classmethod
    def of(cls, mask: Tensor) -> Self:
        """From ``mask (d,)`` bool."""
        return cls(np.packbits(mask.cpu().numpy()).tobytes())

    def mask(self, d: int, device: torch.device | str = "cpu") -> Tensor:
        """``(d,)`` bool."""
        if not self:
            return torch.ones(d, dtype=torch.bool, device=device)
        bits = np.unpackbits(np.frombuffer(self, dtype=np.uint8), count=d)
        return torch.from_numpy(bits.astype(np.bool_)).to(device)

    def __repr__(self) -> str:
        """Short: a public form is printed where two of them differ."""
        return f"Alive({crc32(self):08x})"


def largest_alive(scores: Tensor, kept: int, alive: Tensor) -> Tensor:
    """``(n, d)`` bool: of each row the ``kept`` `largest` among ``alive (d,)``.

    >>> scores, alive = torch.tensor([[9.0, 1.0, 2.0, 1.0, 1.0]]), torch.tensor([0, 1, 1, 1, 1])
    >>> largest_alive(scores, 3, alive.bool()).int().tolist()
    [[0, 1, 1, 1, 0]]
    """
    if bool(alive.all()):
        return largest(scores, kept)
    mask = torch.zeros(scores.shape, dtype=torch.bool, device=scores.device)
    columns = alive.nonzero()[:, 0]
    mask[:, columns] = largest(scores[:, columns], kept)
    return mask


@dataclass(frozen=True, eq=False)
class PrunedVectors(Payload):
    """``mask (n, d)`` bool, ``x (n, d)`` float32 where it is 1, ``rest (n, p)`` float32.

    On the wire 32 bits for each kept coordinate of ``x`` in their order and each of ``rest``, then
    the mask among what is alive, as `code_bits` codes it. A mask that keeps all of it costs 32.

    Args:
        mask: What is kept: exactly ``kept`` coordinates that are alive.
        x: Zero where nothing is kept.
        rest: Floats that are always sent; often ``p = 0``.
        kept: How many a row keeps.
        alive: Which coordinates it may keep, as both ends know.
    """

    mask: Tensor
    x: Tensor
    rest: Tensor
    kept: int
    alive: Alive

    def check(self) -> None:
        """Shapes, the agreed number of coordinates that are alive, and nothing elsewhere."""
        d = self.mask.shape[1]
        require_width("PrunedVectors.mask", self.mask, d, torch.bool)
        require_width("PrunedVectors.x", self.x, d, torch.float32)
        require_width("PrunedVectors.rest", self.rest, self.rest.shape[1], torch.float32)
        if bool((self.mask & ~self.alive.mask(d, self.mask.device)).any()):
            raise IllegalPayloadError("PrunedVectors.mask must be 0 where nothing is alive")
        counts = self.mask.sum(dim=1)
        if bool((counts != self.kept).any()):
            raise IllegalPayloadError(
                f"PrunedVectors.mask must keep {self.kept} of {d}, got {counts.tolist()}"
            )
        if bool(((self.x != 0) & ~self.mask).any()):
            raise IllegalPayloadError("PrunedVectors.x must be 0 where the mask is 0")

    @property
    def aligned(self) -> bool:
        """False: masks come first, and updates have none."""
        return False

    def origin(self) -> Tensor:
        """1/2 for the mask, and 0 for floats."""
        origin = super().origin()
        origin[: self.mask.shape[1]] = 0.5
        return origin

    def opposite(self, values: Tensor, scale: float = 1.0) -> Tensor:
        """The same mask, and the floats mirrored at 0."""
        d = self.mask.shape[1]
        return torch.cat([values[:, :d], -scale * values[:, d:]], dim=1)

    def values(self) -> Tensor:
        """``(n, 2 d + p)`` float32: the mask as 0 or 1, then the floats."""
        return torch.cat([self.mask.to(torch.float32), self.x, self.rest], dim=1)

    def nearest(self, values: Tensor) -> Self:
        """Keeps where ``2 mask + x**2`` is largest, by which keeping is closer than pruning."""
        d = self.mask.shape[1]
        bits, x, rest = torch.split(values, [d, d, values.shape[1] - 2 * d], dim=1)
        gain = 2 * bits.to(torch.float64) + x.to(torch.float64).square()
        mask = largest_alive(gain, self.kept, self.alive.mask(d, values.device))
        x = torch.where(mask, x.to(torch.float32), 0.0)
        return type(self)(mask, x, rest.to(torch.float32), self.kept, self.alive)

    def headers(self) -> dict[str, Tensor]:
        """The mask."""
        return {"indices": self.mask}

    def encode(self) -> list[Packet]:
        """Floats, then the coded mask; NaN and infinity are legal bit patterns here."""
        rows = zip(self.mask, self.x, self.rest.cpu(), strict=True)
        entries = [torch.cat([behind(mask, x), rest])[None] for mask, x, rest in rows]
        floats = [float_bytes(row)[0] for row in entries]
        alive = self.alive.mask(self.mask.shape[1]).numpy()
        masks = self.mask.cpu().numpy()
        return [
            join([x, code_bits(np.compress(alive, mask))])
            for mask, x in zip(masks, floats, strict=True)
        ]

    @classmethod
    def decode_row(cls, packet: Packet, spec: Spec) -> Self:
        """Rejects a wrong length, and a mask that keeps another number than agreed."""
        (d,), (p,), kept = spec["mask"], spec["rest"], spec["kept"]
        entries, rest, code = cut(packet, 4 * kept, 4 * p)
        alive = spec["alive"].mask(d)
        bits = torch.from_numpy(decode_bits(code, int(alive.sum())))
        if int(bits.sum()) != kept:
            raise IllegalPayloadError(
                f"a pruned vector must keep {kept} of {len(bits)}, got {int(bits.sum())}"
            )
        mask = torch.zeros(1, d, dtype=torch.bool)
        mask.numpy()[0, np.flatnonzero(alive.numpy())] = bits.numpy()
        x = placed(mask[0], floats_of(entries))
        return cls(mask, x, floats_of(rest)[None], kept, spec["alive"])
