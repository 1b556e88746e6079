"""Coordinates that pruning has left, and a mask of which these are."""

from dataclasses import dataclass
from typing import Self
from zlib import crc32

import numpy as np
import torch
from torch import Tensor

from fedbench.core.errors import IllegalPayloadError
from fedbench.core.order_statistics import largest
from fedbench.payload.base import Payload, Spec, require_form
from fedbench.payload.fields import behind, cut, floats_of, number_bytes, placed
from fedbench.payload.packets import Packet, Part, code_bits, decode_bits


class Alive(bytes):
    """Coordinates that may be kept, as packed bits; no bytes at all: every one.

    >>> Alive.of(torch.tensor([True, False, True])).mask(3).tolist()
    [True, False, True]
    >>> Alive().mask(2).tolist()
    [True, True]
    """

    @classmethod
    def of(cls, mask: Tensor) -> Self:
        """Return the coordinates of ``mask (d,)`` bool."""
        return cls(np.packbits(mask.cpu().numpy()).tobytes())

    def mask(self, d: int, device: torch.device | str = "cpu") -> Tensor:
        """Return the coordinates as ``(d,)`` bool."""
        if not self:
            return torch.ones(d, dtype=torch.bool, device=device)
        bits = np.unpackbits(np.frombuffer(self, dtype=np.uint8), count=d)
        return torch.from_numpy(bits.astype(np.bool_)).to(device)

    def __repr__(self) -> str:
        """Return a short text: a public form is printed where two of them differ."""
        return f"Alive({crc32(self):08x})"


def largest_alive(scores: Tensor, kept: int, alive: Tensor) -> Tensor:
    """Return the ``kept`` `largest` of each row among ``alive (d,)``, as ``(n, d)`` bool.

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
        mask: Coordinates that are kept: exactly ``kept`` that are alive.
        x: Floats, zero where nothing is kept.
        rest: Floats that are always sent; often ``p = 0``.
        kept: Number of coordinates that a row keeps.
        alive: Coordinates that it may keep, as both ends know.
    """

    aligned = False

    mask: Tensor
    x: Tensor
    rest: Tensor
    kept: int
    alive: Alive

    def check(self) -> None:
        """Require the agreed number of coordinates that are alive, and nothing elsewhere."""
        d = self.mask.shape[1]
        floats = torch.float32
        require_form(self, mask=(d, torch.bool), x=(d, floats), rest=("p", floats))
        if bool((self.mask & ~self.alive.mask(d, self.mask.device)).any()):
            raise IllegalPayloadError("PrunedVectors.mask must be 0 where nothing is alive")
        counts = self.mask.sum(dim=1)
        if bool((counts != self.kept).any()):
            raise IllegalPayloadError(
                f"PrunedVectors.mask must keep {self.kept} of {d}, got {counts.tolist()}"
            )
        if bool(((self.x != 0) & ~self.mask).any()):
            raise IllegalPayloadError("PrunedVectors.x must be 0 where the mask is 0")

    def fixed(self) -> tuple[int, float]:
        return self.mask.shape[1], 0.5

    def values(self) -> Tensor:
        """Return the mask as 0 or 1, then the floats, ``(n, 2 d + p)`` float32."""
        return torch.cat([self.mask.to(torch.float32), self.x, self.rest], dim=1)

    def nearest(self, values: Tensor) -> Self:
        """Keep where ``2 mask + x**2`` is largest, by which keeping is closer than pruning."""
        d = self.mask.shape[1]
        bits, x, rest = torch.split(values, [d, d, values.shape[1] - 2 * d], dim=1)
        gain = 2 * bits.to(torch.float64) + x.to(torch.float64).square()
        mask = largest_alive(gain, self.kept, self.alive.mask(d, values.device))
        x = torch.where(mask, x.to(torch.float32), 0.0)
        return type(self)(mask, x, rest.to(torch.float32), self.kept, self.alive)

    def headers(self) -> dict[str, Tensor]:
        return {"indices": self.mask}

    def parts(self) -> list[list[Part]]:
        rows = zip(self.mask, self.x, strict=True)
        entries = [number_bytes(behind(mask, x)[None])[0] for mask, x in rows]
        alive = self.alive.mask(self.mask.shape[1]).numpy()
        coded = [code_bits(np.compress(alive, mask)) for mask in self.mask.cpu().numpy()]
        return [entries, number_bytes(self.rest), coded]

    @classmethod
    def decode_row(cls, packet: Packet, spec: Spec) -> Self:
        """Return the row; a wrong length and another number of kept coordinates are illegal."""
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
        x = placed(mask, floats_of(entries))
        return cls(mask, x, floats_of(rest), kept, spec["alive"])
