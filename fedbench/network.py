"""A network is a pure function of a tree: no module, no hidden state."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from fedbench.layout import Tree
from fedbench.rng import Key

Image = tuple[int, int, int]
Blocks = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Network:
    """Bias-free: 3x3 same convolutions + ReLU, 2x2 max pools, fully connected + ReLU, last linear.

    On other image sizes the first fully-connected layer follows the input; a pool drops an odd
    last row or column (28 -> 14 -> 7 -> 3).

    Args:
        image: Channels, height, width.
        blocks: Output channels of the convolutions before each pool.
        hidden: Widths of the fully-connected layers before the last one.
        classes: Width of the last one.
    """

    image: Image
    blocks: Blocks
    hidden: tuple[int, ...]
    classes: int

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Parameter name to shape, in layer order.

        >>> Network((1, 28, 28), ((32, 64),), (128,), 10).shapes["fc1"]
        (128, 12544)
        """
        channels, height, width = self.image
        convs = [channels, *(c for block in self.blocks for c in block)]
        pools = len(self.blocks)
        dense = [convs[-1] * (height >> pools) * (width >> pools), *self.hidden, self.classes]
        shapes: dict[str, tuple[int, ...]] = {}
        for i, (ins, outs) in enumerate(pairwise(convs), start=1):
            shapes[f"conv{i}"] = (outs, ins, 3, 3)
        for i, (ins, outs) in enumerate(pairwise(dense), start=1):
            shapes[f"fc{i}"] = (outs, ins)
        return shapes

    def logits(self, params: Tree, x: Tensor) -> Tensor:
        """``x (B, C, H, W)`` to ``(B, classes)``."""
        i = 0
        for block in self.blocks:
            for _ in block:
                i += 1
                x = F.relu(F.conv2d(x, params[f"conv{i}"], padding=1))
            x = F.max_pool2d(x, 2)
        x = x.flatten(1)
        last = len(self.hidden) + 1
        for i in range(1, last):
            x = F.relu(F.linear(x, params[f"fc{i}"]))
        return F.linear(x, params[f"fc{last}"])

    def fan_in(self, name: str) -> int:
        """How many inputs one output of the layer sums: channels x 9, or features."""
        return math.prod(self.shapes[name][1:])

    def init(self, key: Key, device: torch.device | str = "cpu") -> Tree:
        """Kaiming uniform with ``a = sqrt(5)``: U(-b, b) with ``b = 1 / sqrt(fan_in)``.

        References:
            He et al., "Delving Deep into Rectifiers", ICCV 2015, https://arxiv.org/abs/1502.01852,
            eq. 15, with the ``a`` that torch.nn gives its layers.
        """
        return {
            name: (key.fold(name).uniform(*shape, device=device) * 2 - 1)
            * (1 / math.sqrt(math.prod(shape[1:])))
            for name, shape in self.shapes.items()
        }
