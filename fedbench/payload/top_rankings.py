"""The most important edges per layer, in order."""

from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from fedbench.core.errors import IllegalPayloadError
from fedbench.payload.base import Payload, Spec, require_width
from fedbench.payload.packets import Packet, index_width, join, pack, split, unpack
from fedbench.payload.rankings import argsort, require_distinct


@dataclass(frozen=True, eq=False)
class TopRankings(Payload):
    """``symbols (n, sum kept)`` int32: per layer its ``kept[l]`` best edges, the best one last.

    An edge that is sent has its position in the *full* ranking as reputation, ``n_l - m_l + i``;
    the others have 0. The FSL paper does not say which index counts (F7): in the truncated list
    the weakest edge that is sent would tie with the absent ones.

    On the wire ``m_l * ceil(log2 n_l)`` bits a layer.
    """

    symbols: Tensor
    sizes: tuple[int, ...]
    kept: tuple[int, ...]

    def check(self) -> None:
        """Distinct edges of each layer."""
        require_width("TopRankings.symbols", self.symbols, sum(self.kept), torch.int32)
        for layer, size in zip(
            torch.split(self.symbols, list(self.kept), dim=1), self.sizes, strict=True
        ):
            ordered = layer.sort(dim=1).values
            distinct = bool((ordered[:, 1:] > ordered[:, :-1]).all())
            if not distinct or bool(((ordered < 0) | (ordered >= size)).any()):
                raise IllegalPayloadError(
                    f"TopRankings.symbols must be distinct edges below {size} in this layer"
                )

    @property
    def bounded(self) -> bool:
        """True."""
        return True

    def values(self) -> Tensor:
        """Reputations ``(n, d)``, exact int32; 0 for edges that were not sent."""
        layers = []
        for layer, size in zip(
            torch.split(self.symbols, list(self.kept), dim=1), self.sizes, strict=True
        ):
            n, m = layer.shape
            position = torch.arange(size - m, size, dtype=torch.int32, device=layer.device)
            out = position.new_zeros(n, size)
            layers.append(out.scatter_(1, layer.to(torch.int64), position.expand(n, m)))
        return torch.cat(layers, dim=1)

    def origin(self) -> Tensor:
        """Every edge at the middle position of its layer."""
        halves = [torch.full((size,), (size - 1) / 2) for size in self.sizes]
        return torch.cat(halves).to(self.symbols.device)

    def nearest(self, values: Tensor) -> Self:
        """The ``m_l`` largest values of each layer in order; among equals the higher index."""
        parts = torch.split(values, list(self.sizes), dim=1)
        best = [
            argsort(part)[:, part.shape[1] - m :] for part, m in zip(parts, self.kept, strict=True)
        ]
        return type(self)(torch.cat(best, dim=1).to(torch.int32), self.sizes, self.kept)

    def encode(self) -> list[Packet]:
        """Layer by layer, index by index."""
        ends = np.cumsum(self.kept)[:-1]
        return [
            join(
                [
                    pack(layer, index_width(size))
                    for layer, size in zip(np.split(row, ends), self.sizes, strict=True)
                ]
            )
            for row in self.symbols.cpu().numpy()
        ]

    @classmethod
    def decode_row(cls, packet: Packet, spec: Spec) -> Self:
        """Rejects a wrong length, padding, an edge out of range or named twice."""
        sizes, kept = spec["sizes"], spec["kept"]
        lengths = [m * index_width(size) for m, size in zip(kept, sizes, strict=True)]
        layers = []
        for data, size, m in zip(split(packet, lengths), sizes, kept, strict=True):
            layer = unpack(data, m, index_width(size))
            require_distinct(layer, size)
            layers.append(layer)
        return cls(torch.from_numpy(np.concatenate(layers))[None], sizes, kept)
