"""Trees (``dict[str, Tensor]``, inside a client) and matrices ``(n, d)`` (between clients)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

Tree = dict[str, Tensor]


@dataclass(frozen=True)
class Layout:
    """Position of each layer of a network in a flat vector of ``d`` coordinates."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, shapes: Mapping[str, tuple[int, ...]]) -> Layout:
        """Make the layout of a network's parameter shapes, in their order."""
        return cls(tuple(shapes), tuple(shapes.values()))

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Number of coordinates of each layer."""
        return tuple(math.prod(shape) for shape in self.shapes)

    @property
    def d(self) -> int:
        """Number of coordinates of all layers.

        >>> Layout.of({"conv": (32, 1, 3, 3), "fc": (10, 128)}).d
        1568
        """
        return sum(self.sizes)

    def layers(self, x: Tensor) -> list[Tensor]:
        """Cut ``x (..., d)`` at the layer boundaries: views ``(..., n_l)``."""
        return list(torch.split(x, list(self.sizes), dim=-1))

    def flatten(self, tree: Tree) -> Tensor:
        """Concatenate a tree to ``(d,)``, in the order of ``names``."""
        parts = [tree[name].reshape(-1) for name in self.names]
        return torch.cat(parts) if parts else torch.empty(0)

    def flatten_into(self, out: Tensor, tree: Tree) -> None:
        """Write what `flatten` returns to ``out (d,)``; raise `RuntimeError` for another size."""
        parts = [tree[name].detach().reshape(-1) for name in self.names]
        size = sum(map(len, parts))
        if size != len(out):
            raise RuntimeError(f"the size of a trained tree must be {len(out)}, got {size}")
        if parts:
            torch.cat(parts, out=out)

    def unflatten(self, x: Tensor) -> Tree:
        """Return views into ``x (..., d)`` as a tree; leading dimensions stay."""
        parts = self.layers(x)
        return {
            name: part.reshape((*x.shape[:-1], *shape))
            for name, shape, part in zip(self.names, self.shapes, parts, strict=True)
        }
