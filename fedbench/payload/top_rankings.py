"""Rankings of the most important edges per layer."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from fedbench.core.errors import IllegalPayloadError
from fedbench.payload.base import Payload, Spec, require_form
from fedbench.payload.packets import Packet, Part
from fedbench.payload.rankings import argsort, edge_parts, edges_of, middle_positions


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
        """Return the middle position of its layer for every edge."""
        return middle_positions(self.sizes).to(self.symbols.device)

    def nearest(self, values: Tensor) -> Self:
        """Return the ``m_l`` largest values of each layer in order; of equals the higher index."""
        parts = torch.split(values, list(self.sizes), dim=1)
        best = [
            argsort(part)[:, part.shape[1] - m :] for part, m in zip(parts, self.kept, strict=True)
        ]
        return type(self)(torch.cat(best, dim=1).to(torch.int32), self.sizes, self.kept)

    def parts(self) -> list[list[Part]]:
        return edge_parts(self.symbols, self.kept, self.sizes)

    @classmethod
    def decode_row(cls, packet: Packet, spec: Spec) -> Self:
        """Return the row; a wrong length, padding and an edge named twice are illegal."""
        sizes, kept = spec["sizes"], spec["kept"]
        return cls(edges_of(packet, kept, sizes), sizes, kept)
