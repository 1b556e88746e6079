"""Rankings: per layer a permutation of its edges, least important first, or the end of one."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedbench.core.devices import accelerated
from fedbench.core.errors import IllegalPayloadError
from fedbench.core.scatter import scatter_distinct
from fedbench.core.threads import each
from fedbench.payload.base import Spec, require_form
from fedbench.payload.packed_rows import PackedRows, stacked_bytes, strings_of, unpack_rows
from fedbench.payload.packets import Packet, index_width, split, unpack


def argsort(x: Tensor) -> Tensor:
    """Return the stable ascending argsort of each row, ``(n, d)`` int32: of equals the first first.

    On a CPU an integer of 32 bits and, below it, its index are one of 64 bits, which NumPy sorts by
    vector instructions: faster than to move indices beside values (benchmarks/shortcuts.py). A NaN
    of positive sign comes last.
    """
    if len(x) > 1 and x.stride(0) == 0:  # all colluders send the same: sort it once
        return argsort(x[:1]).expand(len(x), -1)
    x = _ordered_integers(x)
    if accelerated(x.device) or x.dtype != torch.int32:
        return torch.sort(x, dim=1, stable=True).indices.to(torch.int32)
    out = torch.empty(x.shape, dtype=torch.int32)
    indices = np.arange(x.shape[1])

    def sort_row(values: npt.NDArray[np.int32], order: npt.NDArray[np.int32]) -> None:
        keys = values.astype(np.int64)
        keys <<= 32
        keys |= indices
        keys.sort()
        np.copyto(order, keys, casting="unsafe")  # the lower halves

    each(lambda row: sort_row(*row), zip(x.numpy(), out.numpy(), strict=True))
    return out


def _ordered_integers(x: Tensor) -> Tensor:
    """Return integers in the order of the values: int32 but for float64, or where they differ more.

    On an accelerator other integers stay as they are, since nobody knows how much they differ.
    """
    if x.is_floating_point():
        x = x if x.dtype == torch.float64 else x.to(torch.float32)
        integer = torch.int64 if x.dtype == torch.float64 else torch.int32
        bits = (x + 0.0).contiguous().view(integer)  # adding turns -0.0 into 0.0
        form = torch.iinfo(integer)
        return bits ^ (bits >> form.bits - 1 & form.max)  # of negative ones all but the sign
    if x.dtype == torch.int64 and x.numel() and not accelerated(x.device):
        low = int(x.min())
        if int(x.max()) - low < 1 << 32:
            return (x - low - (1 << 31)).to(torch.int32)
    return x


def ranking(x: Tensor, sizes: tuple[int, ...], kept: tuple[int, ...] | None = None) -> Tensor:
    """Return ``R (n, d)`` int32, layer by layer: ``R[i]`` is the edge at position ``i``.

    With ``kept`` the last so many of each layer: the edges of the largest values, the best last.

    References:
        FSL, Algorithm 2 lines 4 and 12; equations 6 to 8 of that paper read R as its own inverse
        (F1), this is the reading of its Figure 1.

    >>> ranking(torch.tensor([[2, 12, 3, 11, 8, 9]]), (6,)).tolist()
    [[0, 2, 4, 5, 3, 1]]
    """
    layers = zip(torch.split(x, list(sizes), dim=-1), kept or sizes, strict=True)
    edges = [argsort(part)[..., part.shape[-1] - count :] for part, count in layers]
    return torch.cat(edges, dim=-1)


def reputation(
    symbols: Tensor, sizes: tuple[int, ...], kept: tuple[int, ...] | None = None
) -> Tensor:
    """Return every edge's position in its layer, ``(n, d)`` int32, the inverse of `ranking`.

    Edges that are not among the ``kept`` have 0.

    >>> reputation(torch.tensor([[4, 0, 2, 3, 5, 1]]), (6,)).tolist()
    [[1, 5, 2, 3, 0, 4]]
    """
    out = torch.zeros(len(symbols), sum(sizes), dtype=torch.int32, device=symbols.device)
    layers = torch.split(symbols, list(kept or sizes), dim=1)
    for layer, positions in zip(layers, torch.split(out, list(sizes), dim=1), strict=True):
        size = positions.shape[1]
        count = layer.shape[1]
        ends = torch.arange(size - count, size, dtype=torch.int32, device=symbols.device)
        scatter_distinct(positions, 1, layer.to(torch.int64), ends.expand_as(layer))
    return out


class EdgeLayer(NamedTuple):
    """Edges of a layer that are sent: out of so many, how many, and the bits of each."""

    size: int
    kept: int
    width: int

    @property
    def bits(self) -> int:
        """Bits of the layer in a message."""
        return self.kept * self.width


def edge_layers(spec: Spec) -> list[EdgeLayer]:
    """Return the layers of messages of that form, in order."""
    sizes = spec["sizes"]
    counts = ({"kept": sizes} | spec)["kept"]  # a whole ranking has no such field
    layers = zip(sizes, counts, strict=True)
    return [EdgeLayer(size, count, index_width(size)) for size, count in layers]


def all_distinct(edges: Tensor, size: int) -> Tensor:
    """Return the rows ``(n,)`` bool of ``edges (n, count)`` that differ and are in ``0..size - 1``.

    >>> all_distinct(torch.tensor([[2, 0], [1, 1], [0, 3], [-1, 1]]), 3).tolist()
    [True, False, False, False]
    """
    n, count = edges.shape
    named = torch.zeros(n, size, dtype=torch.bool, device=edges.device)
    places = edges.clamp(0, max(size - 1, 0)).to(torch.int64)
    # Equal places are told apart by their number: all writes are True, in whatever order.
    scatter_distinct(named, 1, places, torch.ones_like(places, dtype=torch.bool))
    in_range = ((edges >= 0) & (edges < size)).all(dim=1)
    return in_range & (named.sum(dim=1, dtype=torch.int32) == count)


@dataclass(frozen=True, eq=False)
class _EdgeLists(PackedRows):
    """``symbols (n, sum counts)`` int32: the last edges of a permutation of each layer."""

    bounded = True
    shared_out = True
    packed_field = "symbols"

    symbols: Tensor
    sizes: tuple[int, ...]

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of edges of each layer that are sent."""
        return self.sizes

    def check(self) -> None:
        require_form(self, symbols=(sum(self.counts), torch.int32))
        layers = torch.split(self.symbols, list(self.counts), dim=1)
        checks = [all_distinct(x, size).all() for x, size in zip(layers, self.sizes, strict=True)]
        if not checks or bool(torch.stack(checks).all()):  # one wait for all layers
            return
        number = [bool(check) for check in checks].index(False)
        size = self.sizes[number]
        whole = f"a permutation of 0..{size - 1}"
        requirement = whole if self.counts[number] == size else f"distinct edges below {size}"
        raise IllegalPayloadError(
            f"{type(self).__name__}.symbols must be {requirement} in this layer"
        )

    def values(self) -> Tensor:
        """Return the reputations ``(n, d)``, exact int32."""
        return reputation(self.symbols, self.sizes, self.counts)

    def origin(self) -> Tensor:
        middles = [torch.full((size,), (size - 1) / 2) for size in self.sizes]
        return torch.cat(middles).to(self.symbols.device)

    def nearest(self, values: Tensor) -> Self:
        """Sort the values: by the rearrangement inequality no permutation is closer."""
        return dataclasses.replace(self, symbols=ranking(values, self.sizes, self.counts))

    def columns(self) -> list[tuple[int, int]]:
        return list(zip(self.counts, map(index_width, self.sizes), strict=True))

    @classmethod
    def decode(
        cls, packets: Sequence[Packet], spec: Spec, device: torch.device | str = "cpu"
    ) -> tuple[Self | None, Tensor]:
        """Return the legal messages and which they are; an accelerator unpacks and checks rows."""
        device = torch.device(device)
        if not accelerated(device):
            return super().decode(packets, spec, device)
        layers = edge_layers(spec)
        coded = strings_of(packets, [layer.bits for layer in layers])
        accepted = torch.tensor([strings is not None for strings in coded], dtype=torch.bool)
        if not accepted.any():
            return None, accepted
        rows = [strings for strings in coded if strings is not None]
        lengths = [-(-layer.bits // 8) for layer in layers]
        data = torch.split(stacked_bytes(rows, device), lengths, dim=1)
        edges = [
            unpack_rows(string, layer.kept, layer.width)
            for string, layer in zip(data, layers, strict=True)
        ]
        received = cls(**spec | {"symbols": torch.cat(edges, dim=1)})
        checks = [all_distinct(x, layer.size) for x, layer in zip(edges, layers, strict=True)]
        legal = torch.stack(checks).all(dim=0).cpu()
        accepted[accepted.clone()] = legal
        if not legal.any():
            return None, accepted
        return received if legal.all() else received.take(legal.nonzero()[:, 0]), accepted

    @classmethod
    def decode_row(cls, packet: Packet, spec: Spec) -> Self:
        """Return the row; an edge that is out of range or named twice is illegal."""
        layers = []
        described = edge_layers(spec)
        strings = split(packet, [layer.bits for layer in described])
        for data, (size, count, width) in zip(strings, described, strict=True):
            layer = unpack(data, count, width)
            if count and int(layer.max()) >= size:
                raise IllegalPayloadError(f"an edge must be below {size}, got {int(layer.max())}")
            named = np.zeros(size, dtype=np.bool_)
            named[layer] = True
            if np.count_nonzero(named) < count:
                raise IllegalPayloadError(f"a ranking of {size} edges must not name an edge twice")
            layers.append(layer)
        return cls(**spec | {"symbols": torch.from_numpy(np.concatenate(layers))[None]})


@dataclass(frozen=True, eq=False)
class Rankings(_EdgeLists):
    """``symbols (n, d)`` int32: per layer a permutation ``R`` of its edges, least important first.

    On the wire ``ceil(log2 n_l)`` bits an index: Table 1 of the FSL paper (F6).
    """


@dataclass(frozen=True, eq=False)
class TopRankings(_EdgeLists):
    """``symbols (n, sum kept)`` int32: per layer its ``kept[l]`` best edges, the best one last.

    An edge that is sent has its position in the *full* ranking as reputation, ``n_l - m_l + i``;
    the others have 0. The FSL paper does not say which index counts (F7): in the truncated list
    the weakest edge that is sent would tie with the absent ones.

    On the wire ``m_l * ceil(log2 n_l)`` bits a layer.
    """

    kept: tuple[int, ...]

    @property
    def counts(self) -> tuple[int, ...]:
        return self.kept
