"""Sparse vectors whose coordinates a seed has chosen."""

import dataclasses
from dataclasses import dataclass
from functools import lru_cache
from typing import Self

import numpy as np
import torch
from torch import Tensor

from fedbench.core.errors import IllegalPayloadError
from fedbench.core.rng import Key
from fedbench.payload.base import Payload, Spec, require_form
from fedbench.payload.fields import floats_of, number_bytes, seeds_of
from fedbench.payload.packets import Packet, Part, split


@lru_cache(maxsize=64)
def chosen(seed: int, d: int, kept: int, device: str = "cpu") -> Tensor:
    """Return a uniform choice of ``kept`` of ``d`` coordinates, ascending int64.

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
    """``entries (n, K)`` float32 at coordinates that ``seeds (n, 1)`` choose; the others are 0.

    On the wire 64 bits of seed, then ``32 (K + p)`` bits: no bit is spent on indices. A client
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
        floats = torch.float32
        require_form(self, entries=("K", floats), seeds=(1, torch.int64), rest=("p", floats))
        if self.entries.shape[1] > self.d:
            raise IllegalPayloadError(
                f"SeededSparse.entries must be at most d = {self.d}, got {self.entries.shape[1]}"
            )

    def headers(self) -> dict[str, Tensor]:
        return {"seeds": self.seeds}

    def indices(self) -> Tensor:
        """Return the chosen coordinates ``(n, K)`` int64."""
        out = torch.empty(self.entries.shape, dtype=torch.int64, device=self.entries.device)
        for row, seed in zip(out, self.seeds[:, 0].tolist(), strict=True):
            row[:] = chosen(seed % 2**64, self.d, len(row), str(out.device))
        return out

    def values(self) -> Tensor:
        """Return dense rows ``(n, d + p)``."""
        dense = self.entries.new_zeros(len(self.entries), self.d)
        dense.scatter_(1, self.indices(), self.entries)
        return torch.cat([dense, self.rest], dim=1)

    def nearest(self, values: Tensor) -> Self:
        """Return the values at the chosen coordinates."""
        entries = values[:, : self.d].gather(1, self.indices()).to(torch.float32)
        return dataclasses.replace(
            self, entries=entries, rest=values[:, self.d :].to(torch.float32)
        )

    def parts(self) -> list[list[Part]]:
        return [number_bytes(x) for x in (self.seeds, self.entries, self.rest)]

    @classmethod
    def decode_row(cls, packet: Packet, spec: Spec) -> Self:
        """Return the row; only a wrong length is illegal."""
        (width,), (p,) = spec["entries"], spec["rest"]
        seed, entries, rest = split(packet, [64, 32 * width, 32 * p])
        return cls(floats_of(entries), seeds_of(seed), floats_of(rest), spec["d"])
