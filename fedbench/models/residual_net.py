"""Residual networks for small images, with group norm."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedbench.core.rng import Key
from fedbench.core.trees import Tree
from fedbench.models.gaussian_init import kaiming_normal
from fedbench.models.network import Image, Network, Step, convolution


def shortcut(x: Tensor, channels: int, stride: int) -> Tensor:
    """Every ``stride``-th pixel of ``x (B, C, H, W)``, with zeros for the missing channels.

    References:
        He et al., "Deep Residual Learning for Image Recognition", CVPR 2016,
        https://arxiv.org/abs/1512.03385, section 4.1, option A.
    """
    x = x[:, :, ::stride, ::stride]
    return F.pad(x, (0, 0, 0, 0, 0, channels - x.shape[1]))


@dataclass(frozen=True)
class ResidualNet(Network):
    """3x3 convolution, stages of residual blocks, mean over the pixels, one linear layer.

    A block is two bias-free 3x3 convolutions, each normalised in groups of channels, with ReLU
    after the first one and after the sum with the `shortcut`. The first block of a stage, but not
    that of the first stage, halves the image, rounding up.
    """

    image: Image
    stages: tuple[int, ...]  # channels; the first convolution has as many as the first stage
    blocks: int  # residual blocks of each stage
    groups: int  # of a normalisation
    classes: int

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Parameter name to shape: convolutions, linear layer, normalisations, bias.

        >>> shapes = ResidualNet((3, 32, 32), (16, 32, 64), 3, 2, 100).shapes
        >>> shapes["conv19"], shapes["fc1"], shapes["norm19.shift"], shapes["fc1.bias"]
        ((64, 64, 3, 3), (100, 64), (64,), (100,))
        """
        outs = [self.stages[0], *(c for c, _ in self._plan() for _ in range(2))]
        ins = [self.image[0], *outs]
        shapes: dict[str, tuple[int, ...]] = {
            f"conv{i}": (out, ins[i - 1], 3, 3) for i, out in enumerate(outs, start=1)
        }
        shapes["fc1"] = (self.classes, outs[-1])
        for i, out in enumerate(outs, start=1):
            shapes[f"norm{i}.scale"] = shapes[f"norm{i}.shift"] = (out,)
        shapes["fc1.bias"] = (self.classes,)
        return shapes

    def _plan(self) -> Iterator[tuple[int, int]]:
        """Yield channels and stride of every block."""
        for number, channels in enumerate(self.stages):
            for block in range(self.blocks):
                yield channels, 2 if number and not block else 1

    def logits(self, params: Tree, x: Tensor, step: Step | None = None) -> Tensor:
        """Compute the logits, in training as in use: groups are normalised image by image."""

        def conv(x: Tensor, i: int, stride: int = 1) -> Tensor:
            x = convolution(step)(x, params[f"conv{i}"], stride=stride, padding=1)
            scale, shift = params[f"norm{i}.scale"], params[f"norm{i}.shift"]
            return F.group_norm(x, self.groups, scale, shift)

        x = F.relu(conv(x, 1))
        for number, (channels, stride) in enumerate(self._plan(), start=1):
            residual = conv(F.relu(conv(x, 2 * number, stride)), 2 * number + 1)
            x = F.relu(shortcut(x, channels, stride) + residual)
        return F.linear(x.mean(dim=(2, 3)), params["fc1"], params["fc1.bias"])

    def init(self, key: Key, device: torch.device | str = "cpu") -> Tree:
        return kaiming_normal(self, key, device)
