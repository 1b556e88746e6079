"""A few coordinates that a seed has chosen."""

import dataclasses
from dataclasses import dataclass
from functools import lru_cache
from typing import Self

import numpy as np
import torch
from torch import Tensor

from fedbench.core.errors import IllegalPayloadError
from fedbench.core.rng import Key
from fedbench.payload.base import Payload, Spec, require_width
from fedbench.payload.fields import float_bytes, floats_of, seed_bytes, seeds_of
from fedbench.payload.packets import Packet, join, split


@lru_cache(maxsize=64)
def chosen(seed: int, d: int, kept: int, device: str = "cpu") -> Tensor:
    """``(kept,)`` int64, ascending: a uniform choice of ``kept`` of ``d`` coordinates.

    Those with the smallest of d random words; an index in the low bits makes all words differ.
    """
    mask = (1 << max(d - 1, 1).bit_length()) - 1
    words = (Key(seed).bits(d, device) & ~mask) | torch.arange(d, device=device)
    if words.device.type == "cpu" and kept < d:  # NumPy's partition is faster
        smallest = torch.from_numpy(np.partition(words.numpy(), kept)[:kept])
    else:
        smallest = torch.topk(words, kept, largest=False, sorted=False).values
    return (smallest & mask).sort().values


@dataclass(frozen=True, eq=False)
class SeededSparse(Payload):
    """``entries (n, kept)`` float32 at coordinates that ``seeds (n, 1)`` choose; the others are 0.

    On the wire 64 bits of seed, then ``32 (kept + p)`` bits: no bit is spent on indices. A client
    chooses its own seed, and every seed is legal.

    Args:
        entries: Values of the `chosen` coordinates, in their order.
        seeds: int64, whose 64 bits name the stream of the choice.
        rest: Floats that are always sent; often ``p = 0``.
        d: Coordinates of the dense vector.
    """

    entries: Tensor
    seeds: Tensor
    rest: Tensor
    d: int

    def check(self) -> None:
        """Shapes and types, and no more entries than coordinates."""
        kept = self.entries.shape[1]
        require_width("SeededSparse.entries", self.entries, kept, torch.float32)
        require_width("SeededSparse.seeds", self.seeds, 1, torch.int64)
        require_width("SeededSparse.rest", self.rest, self.rest.shape[1], torch.float32)
        if kept > self.d:
            raise IllegalPayloadError(
                f"SeededSparse.entries must be at most d = {self.d}, got {kept}"
            )

    def headers(self) -> dict[str, Tensor]:
        """The seeds."""
        return {"seeds": self.seeds}

    def indices(self) -> Tensor:
        """``(n, kept)`` int64."""
        device, kept = str(self.entries.device), self.entries.shape[1]
        seeds = [seed % 2**64 for seed in self.seeds[:, 0].tolist()]
        rows = [chosen(seed, self.d, kept, device) for seed in seeds]
        return torch.stack(rows) if rows else torch.zeros(0, kept, dtype=torch.int64, device=device)

    def values(self) -> Tensor:
        """Dense rows ``(n, d + p)``."""
        dense = self.entries.new_zeros(len(self.entries), self.d)
        dense.scatter_(1, self.indices(), self.entries)
        return torch.cat([dense, self.rest], dim=1)

    def nearest(self, values: Tensor) -> Self:
        """What the values are where the seed looks."""
        x, rest = values[:, : self.d], values[:, self.d :].to(torch.float32)
        entries = x.gather(1, self.indices()).to(torch.float32)
        return dataclasses.replace(self, entries=entries, rest=rest)

    def encode(self) -> list[Packet]:
        """Seed, entries, floats."""
        rows = zip(
            seed_bytes(self.seeds), float_bytes(self.entries), float_bytes(self.rest), strict=True
        )
        return [join(list(row)) for row in rows]

    @classmethod
    def decode_row(cls, packet: Packet, spec: Spec) -> Self:
        """Rejects a wrong length."""
        (kept,), (p,) = spec["entries"], spec["rest"]
        seed, entries, rest = split(packet, [64, 32 * kept, 32 * p])
        return cls(floats_of(entries)[None], seeds_of(seed)[None], floats_of(rest)[None], spec["d"])
