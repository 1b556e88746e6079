"""A permutation per layer: edges from the least to the most important."""

from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from fedbench.core.errors import IllegalPayloadError
from fedbench.payload.base import Payload, Spec, require_width
from fedbench.payload.packets import Packet, index_width, join, pack, split, unpack


def argsort(x: Tensor) -> Tensor:
    """Stable ascending argsort of each row ``(n, d)``, int64: among equals the lower index first.

    Floats are sorted as order-preserving integers: on a CPU torch sorts *one* row of integers by
    radix, several times faster than a matrix of them (benchmarks/shortcuts.py). A NaN of positive
    sign comes last.
    """
    if len(x) > 1 and x.stride(0) == 0:  # colluders who all send the same: sort it once
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
    """``R (n, d)`` int32, layer by layer: ``R[i]`` is the edge at position ``i``.

    References:
        FSL, Algorithm 2 lines 4 and 12; equations 6 to 8 of that paper read R as its own inverse
        (F1), this is the reading of its Figure 1.

    >>> ranking(torch.tensor([[2, 12, 3, 11, 8, 9]]), (6,)).tolist()
    [[0, 2, 4, 5, 3, 1]]
    """
    return torch.cat([argsort(part) for part in torch.split(x, list(sizes), dim=-1)], dim=-1).to(
        torch.int32
    )


def reputation(symbols: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """``(n, d)`` int32: every edge's position in its layer, the inverse of `ranking`.

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


@dataclass(frozen=True, eq=False)
class Rankings(Payload):
    """``symbols (n, d)`` int32: per layer a permutation ``R`` of its edges, least important first.

    On the wire ``ceil(log2 n_l)`` bits an index: Table 1 of the FSL paper (F6).
    """

    symbols: Tensor
    sizes: tuple[int, ...]

    def check(self) -> None:
        """Every layer of every row is a permutation."""
        require_width("Rankings.symbols", self.symbols, sum(self.sizes), torch.int32)
        for layer, size in zip(
            torch.split(self.symbols, list(self.sizes), dim=1), self.sizes, strict=True
        ):
            expected = torch.arange(size, dtype=torch.int32, device=layer.device)
            if not bool((layer.sort(dim=1).values == expected).all()):
                raise IllegalPayloadError(
                    f"Rankings.symbols must be a permutation of 0..{size - 1} in this layer"
                )

    @property
    def bounded(self) -> bool:
        """True."""
        return True

    def values(self) -> Tensor:
        """Reputations ``(n, d)``, exact int32."""
        return reputation(self.symbols, self.sizes)

    def origin(self) -> Tensor:
        """Every edge at the middle position of its layer."""
        halves = [torch.full((size,), (size - 1) / 2) for size in self.sizes]
        return torch.cat(halves).to(self.symbols.device)

    def nearest(self, values: Tensor) -> Self:
        """Sort: by the rearrangement inequality no permutation of positions is closer."""
        return type(self)(ranking(values, self.sizes), self.sizes)

    def encode(self) -> list[Packet]:
        """Layer by layer, index by index."""
        rows = self.symbols.cpu().numpy()
        ends = np.cumsum(self.sizes)[:-1]
        return [
            join([pack(layer, index_width(len(layer))) for layer in np.split(row, ends)])
            for row in rows
        ]

    @classmethod
    def decode_row(cls, packet: Packet, spec: Spec) -> Self:
        """Rejects a wrong length, padding, and anything that is no permutation."""
        sizes = spec["sizes"]
        widths = [index_width(size) for size in sizes]
        lengths = [size * width for size, width in zip(sizes, widths, strict=True)]
        layers = []
        for data, size, width in zip(split(packet, lengths), sizes, widths, strict=True):
            layer = unpack(data, size, width)
            require_distinct(layer, size)
            layers.append(layer)
        return cls(torch.from_numpy(np.concatenate(layers))[None], sizes)


def require_distinct(layer: np.ndarray[tuple[int], np.dtype[np.int32]], size: int) -> None:
    """Raise `IllegalPayloadError` unless the indices are distinct and below ``size``."""
    seen = np.zeros(size, dtype=np.bool_)
    if len(layer) and int(layer.max()) >= size:
        raise IllegalPayloadError(f"an edge must be below {size}, got {int(layer.max())}")
    seen[layer] = True
    if int(seen.sum()) != len(layer):
        raise IllegalPayloadError(f"a ranking of {size} edges must not name an edge twice")
