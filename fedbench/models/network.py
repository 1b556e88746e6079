"""Networks as pure functions of a tree: no module, no hidden state."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from fedbench.core.devices import accelerated
from fedbench.core.errors import ConfigError
from fedbench.core.rng import Key
from fedbench.core.trees import Layout, Tree

Image = tuple[int, ...]  # channels, height, width; of other samples their shape
Blocks = tuple[tuple[int, ...], ...]
Convolve = Callable[..., Tensor]
# What to do where batch norm cannot be.
OTHER_NORMS = "use group or layer norm in a network of your own, else lenet5 or conv4"


@dataclass(frozen=True, eq=False)
class Step:
    """One training step, as a network sees it that drops units or normalises by batches."""

    key: Key  # source of the draws of this step
    real: Tensor  # ``(B,)`` bool, False for padding, which must not enter the statistics of a batch
    statistics: Tree = field(default_factory=dict)  # after this step, filled by the network
    convolve: Convolve = F.conv2d  # see `convolution`


def convolution(step: Step | None) -> Convolve:
    """`torch.nn.functional.conv2d`, or an equal that is faster in this training step.

    It takes a bias ``(O,)`` or none, and ``stride`` and ``padding`` as one number each.
    """
    return F.conv2d if step is None else step.convolve


def channels_last(x: Tensor) -> Tensor:
    """Return a copy of images ``x (N, C, H, W)`` that lies in memory channels last.

    It is a copy, because `Tensor.contiguous` takes one channel to be in any order. Other samples
    are returned as they are.
    """
    if x.dim() != 4:
        return x
    return torch.empty_like(x, memory_format=torch.channels_last).copy_(x)


def laid_out(x: Tensor) -> Tensor:
    """Return images ``x (N, C, H, W)`` in the memory layout in which they are scored fastest.

    On a CPU that is channels last (benchmarks/shortcuts.py has the ratios), elsewhere their own.
    """
    return x if accelerated(x.device) else channels_last(x)


class Network(ABC):
    """Function from parameters and images to logits; a frozen dataclass."""

    image: Image
    classes: int

    @property
    def alone(self) -> str:
        """Reason why clients must train one by one, as the end of a sentence; mostly ""."""
        return ""

    @property
    @abstractmethod
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of each parameter: `weights` by layer, the rest, then `statistics`."""

    @cached_property
    def weights(self) -> tuple[str, ...]:
        """Names of the layers' weights, which protocols mask, rank and prune, as in `shapes`.

        A network that says nothing else names them without a dot, like ``conv1``; the rest has one,
        like ``fc1.bias``.
        """
        return tuple(name for name in self.shapes if "." not in name)

    @cached_property
    def statistics(self) -> tuple[str, ...]:
        """Names of running means and variances, which no gradient trains, as in `shapes`.

        A network that says nothing else names them like ``norm1.mean`` and ``norm1.var``.
        """
        return tuple(name for name in self.shapes if name.endswith((".mean", ".var")))

    @cached_property
    def head(self) -> str:
        """Name of the weights of the last layer, which is linear."""
        return self.weights[-1]

    @cached_property
    def head_bias(self) -> str | None:
        """Name of the last layer's bias; None if it has none."""
        name = f"{self.head}.bias"
        return name if name in self.shapes else None

    @property
    def head_names(self) -> tuple[str, ...]:
        """Names of all parameters of the last layer."""
        return (self.head,) if self.head_bias is None else (self.head, self.head_bias)

    @property
    def title(self) -> str:
        """Text that tells networks with equal shapes apart which do not compute alike."""
        return type(self).__name__

    @property
    def rescales(self) -> bool:
        """Whether activations are divided by their size, as group norm does, but for batch norm."""
        scales = [name[:-6] for name in self.shapes if name.endswith(".scale")]
        return any(f"{name}.var" not in self.shapes for name in scales)

    def examples(self, count: int, key: Key, device: torch.device | str = "cpu") -> Tensor:
        """Draw samples that the network takes, ``(count, *image)``."""
        return key.normal(count, *self.image, device=device)

    @abstractmethod
    def features(self, params: Tree, x: Tensor, step: Step | None = None) -> Tensor:
        """Compute what the last layer gets, ``(B, p)``, of ``x (B, C, H, W)``; see `logits`."""

    def logits(self, params: Tree, x: Tensor, step: Step | None = None) -> Tensor:
        """Compute logits ``(B, classes)`` of ``x (B, C, H, W)``; with a ``step`` as in training."""
        features = self.features(params, x, step)
        bias = None if self.head_bias is None else params[self.head_bias]
        return F.linear(features, params[self.head], bias)

    @property
    def parameters(self) -> int:
        """Number of the whole network's parameters, by which bits are divided."""
        return Layout.of(self.shapes).d

    def state_dict(self, params: Tree) -> Tree:
        """Return all that a module's state dict has, by its names, with these parameters."""
        return params

    @abstractmethod
    def init(self, key: Key, device: torch.device | str = "cpu") -> Tree:
        """Return every parameter before training."""

    def fan_in(self, name: str) -> int:
        """Return the number of inputs that one output of a weight layer sums."""
        return math.prod(self.shapes[name][1:])

    def fan_out(self, name: str) -> int:
        """Return the number of outputs of a weight layer that one input goes into."""
        return math.prod(self.shapes[name]) // self.shapes[name][1]


def require_network(network: Network) -> None:
    """Raise `ConfigError` unless a network names weights, and its parameters are in order.

    It costs nothing: no parameter is drawn.
    """
    name = type(network).__name__
    shapes = list(network.shapes)
    weights = list(network.weights)
    statistics = list(network.statistics)
    if not weights:
        listed = ", ".join(shapes[:2]) or "nothing"
        raise ConfigError(
            f"network {name} must name its weights, got none of {listed}: names with "
            "a dot are none unless Network.weights lists them; use "
            "fedbench.models.modules.ModuleModel for a torch.nn.Module"
        )
    rest = [n for n in shapes if n not in weights and n not in statistics]
    if shapes != [*weights, *rest, *statistics]:
        raise ConfigError(
            f"network {name} must have in its shapes the weights first and running statistics "
            f"last, got {', '.join(shapes[:4])} ..."
        )


def require_init(network: Network) -> None:
    """Raise `ConfigError` unless a network draws the parameters that its shapes announce."""
    drawn = {name: tuple(leaf.shape) for name, leaf in network.init(Key(0)).items()}
    missing = [name for name in network.shapes if name not in drawn]
    name = type(network).__name__
    if missing:
        raise ConfigError(f"network {name} must draw {missing[0]} in init, got no such parameter")
    for leaf, shape in network.shapes.items():
        if drawn[leaf] != tuple(shape):
            raise ConfigError(
                f"network {name} must draw {leaf} in init with the shape {tuple(shape)}, got "
                f"{drawn[leaf]}"
            )


def saved_bytes(network: Network, convolve: Convolve = F.conv2d) -> int:
    """Bytes that a training step saves for each further sample, for its backward pass."""

    def bytes_for(samples: int) -> int:
        total = 0

        def count(x: Tensor) -> Tensor:
            nonlocal total
            total += x.nbytes
            return x

        hooks = torch.autograd.graph.saved_tensors_hooks(count, lambda x: x)
        with torch.enable_grad(), hooks:
            real = torch.ones(samples, dtype=torch.bool)
            step = Step(Key(0), real, convolve=convolve)
            network.logits(params, network.examples(samples, Key(0)), step)
        return total

    shapes = network.shapes.items()
    params = {name: torch.zeros(shape, requires_grad=True) for name, shape in shapes}
    return bytes_for(2) - bytes_for(1)


@dataclass(frozen=True)
class Shared:
    """Knowledge of server and clients before the first round, which is never sent again."""

    network: Network
    seed: int
    device: torch.device
    participation: float = 1.0  # share of the clients that a round samples, on average

    @property
    def layout(self) -> Layout:
        """Layout of all of the network's parameters."""
        return Layout.of(self.network.shapes)

    @property
    def weights(self) -> Layout:
        """Layout of the weights alone: the beginning of `layout`."""
        return self._of(self.network.weights)

    @property
    def rest(self) -> Layout:
        """Layout of biases and normalisation: the end of `layout`, often empty."""
        weights = self.network.weights
        return self._of([name for name in self.network.shapes if name not in weights])

    @property
    def statistics(self) -> Layout:
        """Layout of the running statistics: the end of `layout`, often empty."""
        return self._of(self.network.statistics)

    def _of(self, names: Sequence[str]) -> Layout:
        shapes = self.network.shapes
        return Layout.of({name: shapes[name] for name in names})

    @property
    def key(self) -> Key:
        """The public seed as a stream, from which both ends draw the same numbers."""
        return Key(self.seed)


def conv_shapes(channels: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """Shapes of 3x3 convolutions between these numbers of channels, the image's first."""
    layers = enumerate(pairwise(channels), start=1)
    return {f"conv{i}": (outs, ins, 3, 3) for i, (ins, outs) in layers}


def torch_init(network: Network, key: Key, device: torch.device | str) -> Tree:
    """Draw weights and biases as torch.nn: ``U(-b, b)``, ``b = 1 / sqrt(fan_in)`` of their layer.

    For weights that is Kaiming uniform with ``a = sqrt(5)``. Only for networks without
    normalisation.

    References:
        He et al., "Delving Deep into Rectifiers", ICCV 2015, https://arxiv.org/abs/1502.01852,
        eq. 15, with the ``a`` that torch.nn gives its layers; `torch.nn.Linear`, `torch.nn.Conv2d`.
    """
    return {
        name: (key.fold(name).uniform(*shape, device=device) * 2 - 1)
        * (1 / math.sqrt(network.fan_in(name.removesuffix(".bias"))))
        for name, shape in network.shapes.items()
    }


@dataclass(frozen=True)
class ConvNet(Network):
    """Bias-free: 3x3 same convolutions + ReLU, 2x2 max pools, fully connected + ReLU, last linear.

    A pool drops an odd last row or column (28 -> 14 -> 7 -> 3).
    """

    image: Image
    blocks: Blocks  # output channels of the convolutions before each pool
    hidden: tuple[int, ...]  # widths of the fully-connected layers before the last one
    classes: int

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of each parameter, in layer order."""
        channels, height, width = self.image
        convs = [channels, *(c for block in self.blocks for c in block)]
        pools = len(self.blocks)
        dense = [convs[-1] * (height >> pools) * (width >> pools), *self.hidden, self.classes]
        layers = enumerate(pairwise(dense), start=1)
        return conv_shapes(convs) | {f"fc{i}": (outs, ins) for i, (ins, outs) in layers}

    def features(self, params: Tree, x: Tensor, step: Step | None = None) -> Tensor:
        convolve = convolution(step)
        i = 0
        for block in self.blocks:
            for _ in block:
                i += 1
                x = F.relu(convolve(x, params[f"conv{i}"], padding=1))
            x = F.max_pool2d(x, 2)
        x = x.flatten(1)
        for i in range(1, len(self.hidden) + 1):
            x = F.relu(F.linear(x, params[f"fc{i}"]))
        return x

    def init(self, key: Key, device: torch.device | str = "cpu") -> Tree:
        """Draw the weights as torch.nn does (`torch_init`)."""
        return torch_init(self, key, device)
