"""Networks of convolutions with batch norm, and one fully-connected layer."""

from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from fedbench.core.rng import Key
from fedbench.core.trees import Tree
from fedbench.models.gaussian_init import gaussian_init
from fedbench.models.network import Blocks, Image, Network, Step, convolution

_EPS = 1e-5
_MOMENTUM = 0.1


def batch_norm(x: Tensor, params: Tree, name: str, step: Step | None) -> Tensor:
    """``(x - mean) / sqrt(var + 1e-5) * scale + shift`` for each channel of ``x (B, C, H, W)``.

    Without a ``step``, mean and variance are the running ones. In training they are those of the
    batch without its padding, and the running ones move a tenth of the way to them; there the
    variance is the unbiased one, as in torch.nn, and stays if the batch holds a single value.

    References:
        Ioffe and Szegedy, "Batch Normalization", ICML 2015, https://arxiv.org/abs/1502.03167,
        Algorithms 1 and 2.
    """
    mean, var = params[f"{name}.mean"], params[f"{name}.var"].clamp_min(0)  # a client may forge it
    if step is not None:
        count = step.real.sum() * x.shape[2] * x.shape[3]
        share = step.real.to(x.dtype) / step.real.sum()
        running = mean, var
        mean = share @ x.mean(dim=(2, 3))
        var = share @ (x - mean[:, None, None]).square().mean(dim=(2, 3))
        unbiased = torch.where(count > 1, var * count / (count - 1).clamp_min(1), running[1])
        for part, old, new in zip(("mean", "var"), running, (mean, unbiased), strict=True):
            moved = old + _MOMENTUM * (new - old)
            step.statistics[f"{name}.{part}"] = moved.detach()
    slope = params[f"{name}.scale"] * (var + _EPS).rsqrt()
    return x * slope[:, None, None] + (params[f"{name}.shift"] - mean * slope)[:, None, None]


@dataclass(frozen=True)
class BatchNormNet(Network):
    """Bias-free: 3x3 same convolutions + batch norm + ReLU, 2x2 max pools, one linear layer."""

    image: Image
    blocks: Blocks  # output channels of the convolutions of each block
    pools: int  # how many blocks, from the first, end in a pool
    classes: int

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Parameter name to shape: convolutions, linear layer, normalisations, statistics.

        >>> shapes = BatchNormNet((1, 28, 28), ((32,), (64,)), 2, 10).shapes
        >>> shapes["conv2"], shapes["fc1"], shapes["norm2.mean"]
        ((64, 32, 3, 3), (10, 3136), (64,))
        """
        channels, height, width = self.image
        convs = [channels, *(c for block in self.blocks for c in block)]
        shapes: dict[str, tuple[int, ...]] = {}
        for i, (ins, outs) in enumerate(pairwise(convs), start=1):
            shapes[f"conv{i}"] = (outs, ins, 3, 3)
        features = convs[-1] * (height >> self.pools) * (width >> self.pools)
        shapes["fc1"] = (self.classes, features)
        for first, second in (("scale", "shift"), ("mean", "var")):
            for i, outs in enumerate(convs[1:], start=1):
                shapes[f"norm{i}.{first}"] = shapes[f"norm{i}.{second}"] = (outs,)
        return shapes

    def logits(self, params: Tree, x: Tensor, step: Step | None = None) -> Tensor:
        i = 0
        for number, block in enumerate(self.blocks, start=1):
            for _ in block:
                i += 1
                x = convolution(step)(x, params[f"conv{i}"], padding=1)
                x = F.relu(batch_norm(x, params, f"norm{i}", step))
            if number <= self.pools:
                x = F.max_pool2d(x, 2)
        return F.linear(x.flatten(1), params["fc1"])

    def init(self, key: Key, device: torch.device | str = "cpu") -> Tree:
        """Weights ``N(0, 0.01**2)``, as FedMRN's public code; normalisation makes up for it."""
        return gaussian_init(self, lambda _: 0.01, key, device)
