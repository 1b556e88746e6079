"""Sparse vectors: coordinates that a client names, a seed chooses, pruning leaves or gates open."""

import dataclasses
import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Self
from zlib import crc32

import numpy as np
import torch
from torch import Tensor

from fedbench.core.devices import accelerated
from fedbench.core.errors import IllegalPayloadError
from fedbench.core.order_statistics import largest
from fedbench.core.rng import Key
from fedbench.core.scatter import scatter_distinct
from fedbench.payload import packets as wire
from fedbench.payload.base import Payload, Spec, require_form
from fedbench.payload.packets import BitString, Packet

Governor = tuple[int, int, int]  # axis, first gate, coordinates a gate
Gating = tuple[tuple[tuple[int, ...], tuple[Governor, ...]], ...]  # of layers: shape, governors


@dataclass(frozen=True, eq=False)
class SparseVectors(Payload):
    """``K`` coordinates of ``d`` and their float32 values, the others are 0; ``rest (n, p)``.

    On the wire ``K`` values of 32 bits in the order of their coordinates, the rest, then a bitmap
    of d bits: 32 K + d bits, as in the FSL paper's Table 1 (F6, with K d values). If ``coded`` the
    bitmap is entropy-coded instead (`code_bits`): about ``d H2(K / d)`` bits.
    """

    indices: Tensor  # ``(n, K)`` int64, ascending in each row, no index twice
    entries: Tensor  # ``(n, K)`` float32
    rest: Tensor  # floats that are always sent; often ``p = 0``
    d: int  # coordinates of the dense vector
    coded: bool = False

    def check(self) -> None:
        indices, floats = torch.int64, torch.float32
        width = self.entries.shape[-1]
        require_form(self, indices=(width, indices), entries=("K", floats), rest=("p", floats))
        if not bool((self.indices[:, :-1] < self.indices[:, 1:]).all()):
            raise IllegalPayloadError(
                "SparseVectors.indices must ascend, got a duplicate or a descent; sort each row"
            )
        if bool(((self.indices < 0) | (self.indices >= self.d)).any()):
            raise IllegalPayloadError(f"SparseVectors.indices must lie in [0, {self.d})")

    def values(self) -> Tensor:
        """Return dense rows ``(n, d + p)``."""
        dense = self.entries.new_zeros(len(self.entries), self.d)
        filled = scatter_distinct(dense, 1, self.indices, self.entries)
        return torch.cat([filled, self.rest], dim=1)

    def headers(self) -> dict[str, Tensor]:
        return {"indices": self.indices}

    def nearest(self, values: Tensor) -> Self:
        """Return the ``K`` largest magnitudes; among equals the lowest index."""
        width = self.indices.shape[1]
        x = values[:, : self.d]
        rest = values[:, self.d :].to(torch.float32)
        indices = largest(x.abs(), width).nonzero()[:, 1].reshape(len(x), width)
        entries = x.gather(1, indices).to(torch.float32)
        return dataclasses.replace(self, indices=indices, entries=entries, rest=rest)

    def parts(self) -> list[BitString]:
        bitmap = np.zeros(self.d, dtype=np.bool_)
        bitmap[self.indices[0].numpy()] = True
        where = wire.code_bits(bitmap) if self.coded else wire.pack(bitmap, 1)
        return [wire.number_bytes(self.entries), wire.number_bytes(self.rest), where]

    @classmethod
    def decode_row(cls, packet: Packet, spec: Spec) -> Self:
        (width,) = spec["indices"]
        (p,) = spec["rest"]
        d = spec["d"]
        if spec["coded"]:
            entries, rest, data = wire.cut(packet, 4 * width, 4 * p)
            bitmap = wire.decode_bits(data, d)
        else:
            entries, rest, data = wire.split(packet, [32 * width, 32 * p, d])
            bitmap = wire.unpacked_bits(data, d)[0].numpy()
        index = np.flatnonzero(bitmap)
        if len(index) != width:
            raise IllegalPayloadError(f"a sparse vector must keep {width} of {d}, got {len(index)}")
        indices = torch.from_numpy(index.astype(np.int64))[None]
        return cls(indices, wire.floats_of(entries), wire.floats_of(rest), d, spec["coded"])


@lru_cache(maxsize=64)
def chosen(seed: int, d: int, kept: int, device: str = "cpu") -> Tensor:
    """Return a uniform choice of ``kept`` of ``d`` coordinates, ascending int64.

    Those with the smallest of d random words; an index in the low bits makes all words differ.
    """
    mask = (1 << max(d - 1, 1).bit_length()) - 1
    words = (Key(seed).bits(d, device) & ~mask) | torch.arange(d, device=device)
    if not accelerated(words.device) and kept < d:  # NumPy's partition is faster
        smallest = torch.from_numpy(np.partition(words.numpy(), kept)[:kept])
    else:
        smallest = torch.topk(words, kept, largest=False, sorted=False).values
    return (smallest & mask).sort().values


@dataclass(frozen=True, eq=False)
class SeededSparse(Payload):
    """``entries (n, K)`` float32 at coordinates that ``seeds (n, 1)`` choose; the others are 0.

    On the wire 64 bits of seed, then ``32 (K + p)`` bits: no bit is spent on indices. A client
    chooses its own seed, and every seed is legal.
    """

    entries: Tensor  # of the `chosen` coordinates, in their order
    seeds: Tensor  # int64, whose 64 bits name the stream of the choice
    rest: Tensor  # floats that are always sent; often ``p = 0``
    d: int  # coordinates of the dense vector

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
        filled = scatter_distinct(dense, 1, self.indices(), self.entries)
        return torch.cat([filled, self.rest], dim=1)

    def nearest(self, values: Tensor) -> Self:
        """Return the values at the chosen coordinates."""
        x = values[:, : self.d]
        rest = values[:, self.d :]
        entries = x.gather(1, self.indices()).to(torch.float32)
        return dataclasses.replace(self, entries=entries, rest=rest.to(torch.float32))

    def parts(self) -> list[BitString]:
        return [wire.number_bytes(x) for x in (self.seeds, self.entries, self.rest)]

    @classmethod
    def decode_row(cls, packet: Packet, spec: Spec) -> Self:
        (width,) = spec["entries"]
        (p,) = spec["rest"]
        seed, entries, rest = wire.split(packet, [64, 32 * width, 32 * p])
        return cls(wire.floats_of(entries), wire.seeds_of(seed), wire.floats_of(rest), spec["d"])


class Alive(bytes):
    """Coordinates that may be kept, as packed bits; no bytes at all: every one.

    >>> Alive.of(torch.tensor([True, False, True])).mask(3).tolist(), Alive().mask(2).tolist()
    ([True, False, True], [True, True])
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
    """

    aligned = False

    mask: Tensor  # exactly ``kept`` coordinates that are alive
    x: Tensor  # zero where nothing is kept
    rest: Tensor  # floats that are always sent; often ``p = 0``
    kept: int
    alive: Alive  # coordinates that a row may keep, as both ends know

    def check(self) -> None:
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

    def parts(self) -> list[BitString]:
        entries = wire.number_bytes(wire.entries_at(self.mask, self.x))
        alive = self.alive.mask(self.mask.shape[1]).numpy()
        coded = wire.code_bits(np.compress(alive, self.mask[0].numpy()))
        return [entries, wire.number_bytes(self.rest), coded]

    @classmethod
    def decode_row(cls, packet: Packet, spec: Spec) -> Self:
        (d,) = spec["mask"]
        (p,) = spec["rest"]
        kept = spec["kept"]
        entries, rest, code = wire.cut(packet, 4 * kept, 4 * p)
        alive = spec["alive"].mask(d).numpy()
        bits = wire.decode_bits(code, int(np.count_nonzero(alive)))
        if (ones := np.count_nonzero(bits)) != kept:
            raise IllegalPayloadError(
                f"a pruned vector must keep {kept} of {len(bits)}, got {ones}"
            )
        mask = torch.zeros(1, d, dtype=torch.bool)
        mask.numpy()[0, np.flatnonzero(alive)] = bits
        x = wire.placed(mask, wire.floats_of(entries))
        return cls(mask, x, wire.floats_of(rest), kept, spec["alive"])


def governed(gates: Tensor, layers: Gating) -> Tensor:
    """Return for each coordinate the product of the ``gates (n, G)`` that govern it, ``(n, d)``.

    Of bools that is "all open", of independent probabilities the probability of that. A governor
    ``(axis, start, repeat)`` puts coordinate ``i`` along ``axis`` behind gate
    ``start + i // repeat``; a layer without governors is always open.

    >>> two_by_three = ((2, 3), ((0, 0, 1), (1, 2, 1)))  # a gate each row, then one each column
    >>> governed(torch.tensor([[1, 0, 1, 0, 1]]).bool(), (two_by_three,)).int().tolist()
    [[1, 0, 1, 0, 0, 0]]
    """
    n = len(gates)
    parts = []
    for shape, governors in layers:
        product = gates.new_ones(n, *(1 for _ in shape))
        for axis, start, repeat in governors:
            own = gates[:, start : start + shape[axis] // repeat].repeat_interleave(repeat, dim=1)
            along = [1] * len(shape)
            along[axis] = shape[axis]
            product = product * own.reshape(n, *along)
        parts.append(product.expand(n, *shape).reshape(n, math.prod(shape)))
    return torch.cat(parts, dim=1) if parts else gates[:, :0]


@dataclass(frozen=True, eq=False)
class GatedVectors(Payload):
    """``gates (n, G)`` bool, ``x (n, d)`` float32 behind them, ``rest (n, p)`` float32 behind none.

    On the wire 32 bits for each open coordinate of ``x`` and each of ``rest``, then G of gates.
    """

    aligned = False

    gates: Tensor  # True where a gate is open
    x: Tensor  # zero where a gate is closed
    rest: Tensor  # parameters that have no gate; often ``p = 0``
    layers: Gating  # of ``x``, see `governed`

    def is_open(self) -> Tensor:
        """Return the coordinates ``(n, d)`` bool behind open gates."""
        return governed(self.gates, self.layers)

    def check(self) -> None:
        d = sum(math.prod(shape) for shape, _ in self.layers)
        rest = ("p", torch.float32)
        require_form(self, gates=("G", torch.bool), x=(d, torch.float32), rest=rest)
        if bool(((self.x != 0) & ~self.is_open()).any()):
            raise IllegalPayloadError("GatedVectors.x must be 0 behind a closed gate")

    def fixed(self) -> tuple[int, float]:
        return self.gates.shape[1], 0.5

    def values(self) -> Tensor:
        """Return gates as 0 or 1, then the floats, ``(n, G + d + p)`` float32."""
        return torch.cat([self.gates.to(torch.float32), self.x, self.rest], dim=1)

    def nearest(self, values: Tensor) -> Self:
        """Open the gates above 1/2, then return what is behind open gates.

        Gates first: what is closest in L2 over both is a combinatorial problem where two gates
        govern a coordinate, and would weigh gates by the scale of the weights. NaN closes.
        """
        g, d = self.gates.shape[1], self.x.shape[1]
        gates = values[:, :g] > 0.5
        x = values[:, g : g + d].to(torch.float32)
        x = torch.where(governed(gates, self.layers), x, torch.zeros_like(x))
        return type(self)(gates, x, values[:, g + d :].to(torch.float32), self.layers)

    def parts(self) -> list[BitString]:
        sent = wire.number_bytes(wire.entries_at(self.is_open(), self.x))
        gates = wire.pack(self.gates[0].numpy(), 1)
        return [sent, wire.number_bytes(self.rest), gates]

    @classmethod
    def decode_row(cls, packet: Packet, spec: Spec) -> Self:
        (g,) = spec["gates"]
        (p,) = spec["rest"]
        layers = spec["layers"]
        floats = len(packet.data) - -(-g // 8)
        if floats < 4 * p:
            raise IllegalPayloadError(f"a gated vector must have {p} floats and {g} gates")
        entries, rest, bitmap = wire.split(packet, [8 * floats - 32 * p, 32 * p, g])
        gates = wire.unpacked_bits(bitmap, g)
        is_open = governed(gates, layers)
        if (size := 4 * int(is_open.sum())) != len(entries):
            raise IllegalPayloadError(f"open gates must have {size} bytes, got {len(entries)}")
        x = wire.placed(is_open, wire.floats_of(entries))
        return cls(gates, x, wire.floats_of(rest), layers)
