"""Rankings: per layer a permutation of its edges, least important first, or the end of one."""

from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from fedbench.core.errors import IllegalPayloadError
from fedbench.payload.base import Payload, Spec, require_form
from fedbench.payload.packets import Packet, Part, index_width, pack, split, unpack


def argsort(x: Tensor) -> Tensor:
    """Return the stable ascending argsort of each row ``(n, d)``: of equals the lower index first.

    Floats are sorted as order-preserving integers: on a CPU torch sorts *one* row of integers by
    radix, several times faster than a matrix of them (benchmarks/shortcuts.py). A NaN of positive
    sign comes last.
    """
    if len(x) > 1 and x.stride(0) == 0:  # all colluders send the same: sort it once
        return argsort(x[:1]).expand(len(x), -1)
    if x.is_floating_point():
        integer = torch.int64 if x.dtype == torch.float64 else torch.int32
        x = x if x.dtype == torch.float64 else x.to(torch.float32)
        bits = (x + 0.0).contiguous().view(integer)  # adding turns -0.0 into 0.0
        x = torch.where(bits < 0, bits ^ torch.iinfo(integer).max, bits)
    if len(x) and x.device.type == "cpu":
        return torch.stack([torch.sort(row, stable=True).indices for row in x])
    return torch.sort(x, dim=1, stable=True).indices


def ranking(x: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """Return ``R (n, d)`` int32, layer by layer: ``R[i]`` is the edge at position ``i``.

    References:
        FSL, Algorithm 2 lines 4 and 12; equations 6 to 8 of that paper read R as its own inverse
        (F1), this is the reading of its Figure 1.

    >>> ranking(torch.tensor([[2, 12, 3, 11, 8, 9]]), (6,)).tolist()
    [[0, 2, 4, 5, 3, 1]]
    """
    layers = [argsort(part) for part in torch.split(x, list(sizes), dim=-1)]
    return torch.cat(layers, dim=-1).to(torch.int32)


def reputation(symbols: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """Return every edge's position in its layer, ``(n, d)`` int32, the inverse of `ranking`.

    >>> reputation(torch.tensor([[4, 0, 2, 3, 5, 1]]), (6,)).tolist()
    [[1, 5, 2, 3, 0, 4]]
    """
    out = torch.empty_like(symbols, dtype=torch.int32)
    start = 0
    for size in sizes:
        layer = symbols[:, start : start + size].to(torch.int64)
        position = torch.arange(size, dtype=torch.int32, device=symbols.device).expand_as(layer)
        out[:, start : start + size].scatter_(1, layer, position)
        start += size
    return out


def middle_positions(sizes: tuple[int, ...]) -> Tensor:
    """Return the middle position of its layer for every edge, ``(d,)``."""
    return torch.cat([torch.full((size,), (size - 1) / 2) for size in sizes])


def edge_parts(
    symbols: Tensor, counts: tuple[int, ...], sizes: tuple[int, ...]
) -> list[list[Part]]:
    """Return ``counts`` indices per layer of ``symbols (n, sum counts)``, packed layer by layer."""
    layers = np.split(symbols.cpu().numpy(), np.cumsum(counts)[:-1], axis=1)
    pairs = zip(layers, map(index_width, sizes), strict=True)
    return [[pack(row, width) for row in layer] for layer, width in pairs]


def edges_of(packet: Packet, counts: tuple[int, ...], sizes: tuple[int, ...]) -> Tensor:
    """Return the row ``(1, sum counts)`` that `edge_parts` packed: ``counts`` edges per layer.

    Raises:
        IllegalPayloadError: a wrong length, padding, an edge that is out of range or named twice.
    """
    widths = [index_width(size) for size in sizes]
    lengths = [count * width for count, width in zip(counts, widths, strict=True)]
    layers = []
    for data, count, width, size in zip(split(packet, lengths), counts, widths, sizes, strict=True):
        layer = unpack(data, count, width)
        if count and int(layer.max()) >= size:
            raise IllegalPayloadError(f"an edge must be below {size}, got {int(layer.max())}")
        if count and int(np.bincount(layer).max()) > 1:
            raise IllegalPayloadError(f"a ranking of {size} edges must not name an edge twice")
        layers.append(layer)
    return torch.from_numpy(np.concatenate(layers))[None]


@dataclass(frozen=True, eq=False)
class Rankings(Payload):
    """``symbols (n, d)`` int32: per layer a permutation ``R`` of its edges, least important first.

    On the wire ``ceil(log2 n_l)`` bits an index: Table 1 of the FSL paper (F6).
    """

    bounded = True

    symbols: Tensor
    sizes: tuple[int, ...]

    def check(self) -> None:
        require_form(self, symbols=(sum(self.sizes), torch.int32))
        layers = torch.split(self.symbols, list(self.sizes), dim=1)
        for layer, size in zip(layers, self.sizes, strict=True):
            expected = torch.arange(size, dtype=torch.int32, device=layer.device)
            if not bool((layer.sort(dim=1).values == expected).all()):
                raise IllegalPayloadError(
                    f"Rankings.symbols must be a permutation of 0..{size - 1} in this layer"
                )

    def values(self) -> Tensor:
        """Return the reputations ``(n, d)``, exact int32."""
        return reputation(self.symbols, self.sizes)

    def origin(self) -> Tensor:
        return middle_positions(self.sizes).to(self.symbols.device)

    def nearest(self, values: Tensor) -> Self:
        """Sort the values: by the rearrangement inequality no permutation is closer."""
        return type(self)(ranking(values, self.sizes), self.sizes)

    def parts(self) -> list[list[Part]]:
        return edge_parts(self.symbols, self.sizes, self.sizes)

    @classmethod
    def decode_row(cls, packet: Packet, spec: Spec) -> Self:
        return cls(edges_of(packet, spec["sizes"], spec["sizes"]), spec["sizes"])


@dataclass(frozen=True, eq=False)
class TopRankings(Payload):
    """``symbols (n, sum kept)`` int32: per layer its ``kept[l]`` best edges, the best one last.

    An edge that is sent has its position in the *full* ranking as reputation, ``n_l - m_l + i``;
    the others have 0. The FSL paper does not say which index counts (F7): in the truncated list
    the weakest edge that is sent would tie with the absent ones.

    On the wire ``m_l * ceil(log2 n_l)`` bits a layer.
    """

    bounded = True

    symbols: Tensor
    sizes: tuple[int, ...]
    kept: tuple[int, ...]

    def check(self) -> None:
        require_form(self, symbols=(sum(self.kept), torch.int32))
        for layer, size in self._layers():
            ordered = layer.sort(dim=1).values
            distinct = bool((ordered[:, 1:] > ordered[:, :-1]).all())
            if not distinct or bool(((ordered < 0) | (ordered >= size)).any()):
                raise IllegalPayloadError(
                    f"TopRankings.symbols must be distinct edges below {size} in this layer"
                )

    def _layers(self) -> list[tuple[Tensor, int]]:
        layers = torch.split(self.symbols, list(self.kept), dim=1)
        return list(zip(layers, self.sizes, strict=True))

    def values(self) -> Tensor:
        """Return the reputations ``(n, d)``, exact int32; 0 for edges that were not sent."""
        layers = []
        for layer, size in self._layers():
            n, m = layer.shape
            position = torch.arange(size - m, size, dtype=torch.int32, device=layer.device)
            out = position.new_zeros(n, size)
            layers.append(out.scatter_(1, layer.to(torch.int64), position.expand(n, m)))
        return torch.cat(layers, dim=1)

    def origin(self) -> Tensor:
        return middle_positions(self.sizes).to(self.symbols.device)

    def nearest(self, values: Tensor) -> Self:
        """Return the ``m_l`` largest values of each layer in order; of equals the higher index."""
        parts = torch.split(values, list(self.sizes), dim=1)
        pairs = zip(parts, self.kept, strict=True)
        best = [argsort(part)[:, part.shape[1] - m :] for part, m in pairs]
        return type(self)(torch.cat(best, dim=1).to(torch.int32), self.sizes, self.kept)

    def parts(self) -> list[list[Part]]:
        return edge_parts(self.symbols, self.kept, self.sizes)

    @classmethod
    def decode_row(cls, packet: Packet, spec: Spec) -> Self:
        sizes, kept = spec["sizes"], spec["kept"]
        return cls(edges_of(packet, kept, sizes), sizes, kept)
