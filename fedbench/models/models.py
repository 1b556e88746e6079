"""Architectures that the papers train, each after its network."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedbench.core.errors import ConfigError, require
from fedbench.core.registry import UNWRITTEN
from fedbench.core.rng import Key
from fedbench.core.trees import Tree
from fedbench.models import network as networks
from fedbench.models.network import (
    Blocks,
    ConvNet,
    Image,
    Network,
    Step,
    convolution,
    torch_init,
)

Start = Literal["kaiming-normal", "torch"]


def gaussian_init(
    network: Network, std: Callable[[str], float], key: Key, device: torch.device | str
) -> Tree:
    """Draw weights ``N(0, std(name)**2)``; scales and variances 1, shifts, means and biases 0."""
    return {
        name: key.fold(name).normal(*shape, device=device) * std(name)
        if name in network.weights
        else torch.full(shape, float(name.endswith((".scale", ".var"))), device=device)
        for name, shape in network.shapes.items()
    }


def kaiming_normal(network: Network, key: Key, device: torch.device | str) -> Tree:
    """Draw weights ``N(0, 2 / fan_in)``, the rest as in `gaussian_init`.

    References:
        He et al., "Delving Deep into Rectifiers", https://arxiv.org/abs/1502.01852, eq. 10.
    """
    return gaussian_init(network, lambda name: math.sqrt(2 / network.fan_in(name)), key, device)


_EPS = 1e-5
_MOMENTUM = 0.1  # how far running statistics move to those of a batch


def batch_norm(x: Tensor, params: Tree, name: str, step: Step | None) -> Tensor:
    """``(x - mean) / sqrt(var + 1e-5) * scale + shift`` for each channel of ``x (B, C, H, W)``.

    In training, mean and variance are those of the batch without its padding, and the running ones
    move towards them; there the variance is the unbiased one, as in torch.nn, and stays if the
    batch holds a single value.

    References:
        Ioffe and Szegedy, "Batch Normalization", ICML 2015, https://arxiv.org/abs/1502.03167,
        Algorithms 1 and 2.
    """
    mean = params[f"{name}.mean"]
    var = params[f"{name}.var"].clamp_min(0)  # a client may forge it
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
        """Convolutions, linear layer, normalisations, statistics."""
        channels, height, width = self.image
        convs = [channels, *(c for block in self.blocks for c in block)]
        features = convs[-1] * (height >> self.pools) * (width >> self.pools)
        shapes = networks.conv_shapes(convs) | {"fc1": (self.classes, features)}
        for first, second in (("scale", "shift"), ("mean", "var")):
            for i, outs in enumerate(convs[1:], start=1):
                shapes[f"norm{i}.{first}"] = shapes[f"norm{i}.{second}"] = (outs,)
        return shapes

    def features(self, params: Tree, x: Tensor, step: Step | None = None) -> Tensor:
        i = 0
        for number, block in enumerate(self.blocks, start=1):
            for _ in block:
                i += 1
                x = convolution(step)(x, params[f"conv{i}"], padding=1)
                x = F.relu(batch_norm(x, params, f"norm{i}", step))
            if number <= self.pools:
                x = F.max_pool2d(x, 2)
        return x.flatten(1)

    def init(self, key: Key, device: torch.device | str = "cpu") -> Tree:
        """Draw weights ``N(0, 0.01**2)``, as FedMRN's public code."""
        return gaussian_init(self, lambda _: 0.01, key, device)


def dropout(x: Tensor, rate: float, layer: str, step: Step | None) -> Tensor:
    """Set each value of ``x`` to 0 with probability ``rate`` in training, else scale it up.

    References:
        Srivastava et al., "Dropout: A Simple Way to Prevent Neural Networks from Overfitting", JMLR
        2014, https://jmlr.org/papers/v15/srivastava14a.html, section 10.
    """
    if step is None:
        return x
    mask = step.key.fold(layer).uniform(*x.shape, device=x.device) >= rate
    return x * mask / (1 - rate)


@dataclass(frozen=True)
class DropoutNet(Network):
    """Two 5x5 convolutions + ReLU + 2x2 max pool, hidden layer + ReLU, last linear; all biased."""

    image: Image
    convs: tuple[int, int]  # output channels
    padding: int  # pixels of zeros around the input of a convolution
    hidden: int  # width of the first fully-connected layer
    classes: int
    conv_dropout: float  # rate after the convolutions
    dense_dropout: float  # rate after the first fully-connected layer
    start: Start = "kaiming-normal"  # distribution of the first weights

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Weights, then biases, in layer order."""
        channels, *sides = self.image
        first, second = self.convs
        for _ in self.convs:  # a convolution, and a pool
            sides = [(side + 2 * self.padding - 4) // 2 for side in sides]
        weights = {
            "conv1": (first, channels, 5, 5),
            "conv2": (second, first, 5, 5),
            "fc1": (self.hidden, second * math.prod(sides)),
            "fc2": (self.classes, self.hidden),
        }
        return weights | {f"{name}.bias": shape[:1] for name, shape in weights.items()}

    def features(self, params: Tree, x: Tensor, step: Step | None = None) -> Tensor:
        for name in ("conv1", "conv2"):
            x = convolution(step)(x, params[name], params[f"{name}.bias"], padding=self.padding)
            x = F.max_pool2d(F.relu(x), 2)
        x = dropout(x, self.conv_dropout, "conv2", step).flatten(1)
        x = F.relu(F.linear(x, params["fc1"], params["fc1.bias"]))
        return dropout(x, self.dense_dropout, "fc1", step)

    def init(self, key: Key, device: torch.device | str = "cpu") -> Tree:
        draw = kaiming_normal if self.start == "kaiming-normal" else torch_init
        return draw(self, key, device)


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
    after the first one and after the sum with the `shortcut`.
    """

    image: Image
    stages: tuple[int, ...]  # channels; the first convolution has as many as the first stage
    blocks: int  # residual blocks of each stage
    groups: int  # of a normalisation
    classes: int

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Convolutions, linear layer, normalisations, bias."""
        outs = [self.stages[0], *(c for c, _ in self._plan() for _ in range(2))]
        shapes = networks.conv_shapes([self.image[0], *outs]) | {"fc1": (self.classes, outs[-1])}
        for i, out in enumerate(outs, start=1):
            shapes[f"norm{i}.scale"] = shapes[f"norm{i}.shift"] = (out,)
        shapes["fc1.bias"] = (self.classes,)
        return shapes

    def _plan(self) -> Iterator[tuple[int, int]]:
        """Yield channels and stride of every block: the first of later stages halves the image."""
        for number, channels in enumerate(self.stages):
            for block in range(self.blocks):
                yield channels, 2 if number and not block else 1

    def features(self, params: Tree, x: Tensor, step: Step | None = None) -> Tensor:
        """Compute the same in training as in use: groups are normalised image by image."""

        def conv(x: Tensor, i: int, stride: int = 1) -> Tensor:
            x = convolution(step)(x, params[f"conv{i}"], stride=stride, padding=1)
            scale, shift = params[f"norm{i}.scale"], params[f"norm{i}.shift"]
            return F.group_norm(x, self.groups, scale, shift)

        x = F.relu(conv(x, 1))
        for number, (channels, stride) in enumerate(self._plan(), start=1):
            residual = conv(F.relu(conv(x, 2 * number, stride)), 2 * number + 1)
            x = F.relu(shortcut(x, channels, stride) + residual)
        return x.mean(dim=(2, 3))

    def init(self, key: Key, device: torch.device | str = "cpu") -> Tree:
        return kaiming_normal(self, key, device)


@dataclass(frozen=True, kw_only=True)
class Model(ABC):
    """An architecture, before it knows the size of the images."""

    @abstractmethod
    def build(self, image: Image, classes: int) -> Network:
        """Build the network for images of (channels, height, width); `ConfigError` if too small."""


def _require(
    model: Model, image: Image, classes: int, side: int = 1, why: str = "", remedy: str = "resnet20"
) -> None:
    require("classes", classes, classes >= 1, ">= 1")
    if len(image) != 3:
        grey = "write x[:, None] if they are grey images, or " if len(image) == 2 else ""
        raise ConfigError(
            f"{type(model).__name__.lower()} needs images (channels, height, width), got samples "
            f"{image}; {grey}use a torch.nn.Module that takes them, Scenario(model=...)"
        )
    require("image", image, min(image) >= 1, "one pixel or more, (channels, height, width)")
    if min(image[1:]) < side:
        raise ConfigError(
            f"{type(model).__name__.lower()} needs images of at least {side} x {side} {why}, "
            f"got {image}; use {remedy}"
        )


class _Pooled(Model):
    """An architecture given by a table: `blocks` of convolutions, then `hidden` layers."""

    blocks: ClassVar[Blocks]
    hidden: ClassVar[tuple[int, ...]] = (256, 256)

    def build(self, image: Image, classes: int) -> Network:
        """Build the network; every pool halves the image, which must leave a pixel."""
        _require(self, image, classes)
        pools = len(self.blocks)
        table = (LeNet, Conv4, Conv6, Conv8, Conv10)
        fits = [m.__name__.lower() for m in table if 1 << len(m.blocks) <= min(image[1:])]
        remedy = " or ".join(fits) or "larger images"
        _require(self, image, classes, 1 << pools, f"for its {pools} pools", remedy)
        return ConvNet(image, self.blocks, self.hidden, classes)


class LeNet(_Pooled):
    """Two convolutions, one pool, one hidden layer: 1,625,632 weights on 28x28x1, 10 classes.

    References:
        Mozaffari, Shejwalkar and Houmansadr, "FSL: Federated Supermask Learning",
        https://arxiv.org/abs/2110.04350, Table 3, rows "LeNet".
    """

    blocks = ((32, 64),)
    hidden = (128,)


class Micro(_Pooled):
    """Three convolutions, three pools, no hidden layer: 9,936 weights on 28x28x1, 10 classes.

    Ours, for local differential privacy, whose noise grows with the number of weights.
    """

    blocks = ((16,), (16,), (32,))
    hidden = ()


class Logistic(_Pooled):
    """Logistic regression, one linear layer without biases: 7,840 weights on 28x28x1, 10 classes.

    Convex, and small enough for what sends or perturbs a few numbers.
    """

    blocks = ()
    hidden = ()


class Conv4(_Pooled):
    """Network of four convolutions and two pools.

    References:
        Isik et al., "Sparse Random Networks for Communication-Efficient Federated Learning", ICLR
        2023, https://arxiv.org/abs/2209.15328, Table 2.
    """

    blocks = ((64, 64), (128, 128))


class Conv6(_Pooled):
    """Network of six convolutions and three pools (Isik et al., Table 2; see `Conv4`)."""

    blocks = ((64, 64), (128, 128), (256, 256))


class Conv8(_Pooled):
    """Eight convolutions, four pools: 5,275,840 weights on 32x32x3 (FSL, Table 3; see `LeNet`)."""

    blocks = ((64, 64), (128, 128), (256, 256), (512, 512))


class Conv10(_Pooled):
    """Network of ten convolutions and five pools (Isik et al., Table 2; see `Conv4`).

    The paper trains it on CIFAR-100 only; here the last layer follows the data, as in the others.
    """

    blocks = ((64, 64), (128, 128), (256, 256), (512, 512), (1024, 1024))


class _BatchNormed(Model):
    """Blocks of normalised convolutions, a pool after each, then one linear layer."""

    blocks: ClassVar[Blocks]

    def build(self, image: Image, classes: int) -> Network:
        """Build the network, without the last pool for images under 16 x 16, such as the digits."""
        least = len(self.blocks) - 1
        _require(self, image, classes, 1 << least, f"for its first {least} pools")
        pools = min(len(self.blocks), min(image[1:]).bit_length() - 1)
        return BatchNormNet(image, self.blocks, pools, classes)


class CNN4(_BatchNormed):
    """Four convolutions with batch norm: 389,920 weights on 28x28x1, 10 classes.

    The paper says neither widths nor pools; these are those of its public code.

    References:
        Li et al. (see `FedMRN`), https://arxiv.org/abs/2408.03220, section 5.1.1;
        https://github.com/Leopold1423/fedmrn-mm24, model/cnn.py.
    """

    blocks = ((32,), (64,), (128,), (256,))


class CNN8(_BatchNormed):
    """Eight convolutions with batch norm: 1,181,536 weights on 32x32x3 (see `CNN4`)."""

    blocks = ((32, 32), (64, 64), (128, 128), (256, 256))


@dataclass(frozen=True, kw_only=True)
class LeNet5(Model):
    """LeNet-5 with dropout: 582,026 parameters on 28x28x1, 10 classes.

    The paper gives no widths. 32 and 64 channels and 512 hidden units send what its Table 1 has for
    FedAvg: 65 GB (of 2**30 bytes) on CIFAR-10, 272 on Femnist.

    Args:
        conv_dropout: Rate after the second convolution and its pool.
        dense_dropout: Rate after the first fully-connected layer.
        init: First weights, of which the paper says nothing: ``kaiming-normal``, N(0, 2 / fan_in)
            and biases 0, or those of ``torch``, where weights and biases are U(-b, b) with
            b = 1 / sqrt(fan_in).

    References:
        Louizos, Reisser, Soriaga and Welling, "A Graphical Model Perspective on Federated
        Learning", ICLR 2021 workshop on Distributed and Private Machine Learning, appendix C;
        LeCun et al., Proc. IEEE 1998, https://doi.org/10.1109/5.726791, Figure 2.
    """

    conv_dropout: float = 0.1
    dense_dropout: float = 0.3
    init: Start = field(default="kaiming-normal", metadata=UNWRITTEN)

    def __post_init__(self) -> None:
        require("LeNet5.conv_dropout", self.conv_dropout, 0 <= self.conv_dropout < 1, "in [0, 1)")
        dense = self.dense_dropout
        require("LeNet5.dense_dropout", dense, 0 <= dense < 1, "in [0, 1)")

    def build(self, image: Image, classes: int) -> Network:
        """Build the network; images under 16 x 16, too small for it, are padded."""
        _require(self, image, classes, 4, "for its 2 pools")
        padding = 0 if min(image[1:]) >= 16 else 2
        return DropoutNet(
            image=image,
            convs=(32, 64),
            padding=padding,
            hidden=512,
            classes=classes,
            conv_dropout=self.conv_dropout,
            dense_dropout=self.dense_dropout,
            start=self.init,
        )


@dataclass(frozen=True, kw_only=True)
class ResNet20(Model):
    """Residual network of 20 layers with group norm: 275,572 parameters on 32x32x3, 100 classes.

    Shortcuts have no parameters (option A): so it sends the 123 GB that the paper's Table 1 has for
    FedAvg on CIFAR-100; with 1x1 convolutions it would be 124.

    Args:
        groups: Groups of a normalisation; 2 as in the public code of Reddi et al.

    References:
        Louizos et al., ICLR 2021 workshop (see `LeNet5`), appendix C; He et al., "Deep Residual
        Learning for Image Recognition", CVPR 2016, https://arxiv.org/abs/1512.03385, section 4.2;
        Wu and He, "Group Normalization", ECCV 2018, https://arxiv.org/abs/1803.08494, eq. 7.
    """

    groups: int = 2

    def __post_init__(self) -> None:
        divides = self.groups >= 1 and 16 % self.groups == 0
        require("ResNet20.groups", self.groups, divides, "a divisor of its 16 channels")

    def build(self, image: Image, classes: int) -> Network:
        _require(self, image, classes)
        return ResidualNet(image, (16, 32, 64), 3, self.groups, classes)
