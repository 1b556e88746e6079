"""LoRA: a network whose trained parameters are low-rank factors beside frozen weights."""

import math
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from fedbench.core.errors import ConfigError
from fedbench.core.rng import Key
from fedbench.core.trees import Tree
from fedbench.models.adapters import LoRA
from fedbench.models.network import Image, Network, Step


@dataclass(frozen=True, kw_only=True, eq=False)
class LoRANet(Network):
    """A network with the weights ``W + (alpha / r) B A``, of which ``A`` and ``B`` are trained.

    ``W (out, in)`` is frozen; ``A (r, in)`` and ``B (out, r)`` are called ``fc1.A`` and ``fc1.B``.
    A convolution's kernels ``(out, channels, h, w)`` count as ``(out, channels h w)``, as in PEFT;
    loralib arranges them otherwise. Every weight that masks cover has factors, but for those of the
    last layer: it is trained as it is, with its bias, as is usual for a new task. Frozen are all
    other biases, scales and shifts. Running statistics of batch norm move and are averaged as
    without an adapter, since those of random frozen weights would be wrong.

    At first ``B`` is 0, so the network computes what it did without an adapter. ``A`` is drawn as
    released code draws it, ``U(-b, b)`` with ``b = in ** -0.5``; the paper says Gaussian, without a
    variance. Protocols that draw frozen weights of their own and train masks or rankings draw both
    factors, which are their weights here, and leave ``W`` as it is.

    The mean of ``B A`` over clients is not the product of the means of ``B`` and ``A``, which is
    what a server gets that averages both. With a frozen ``A`` it is.

    Args:
        base: The network without an adapter.
        adapter: Rank, strength and trained factors.
        frozen: Parameters that no client trains; with ``freeze_a`` the factors ``A``, too.

    References:
        Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022,
        https://arxiv.org/abs/2106.09685, equation 3; https://github.com/microsoft/LoRA, layers.py;
        Sun et al., "Improving LoRA in Privacy-preserving Federated Learning", ICLR 2024,
        https://arxiv.org/abs/2403.12313 (FFA-LoRA).
    """

    image: Image
    classes: int
    base: Network
    adapter: LoRA
    frozen: Tree = field(repr=False)

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the trained factors, then of the last layer, then of the running statistics."""
        base = self.base.shapes
        factors = factor_shapes(self.base, self.adapter.rank)
        trained = {name: shape for name, shape in factors.items() if name not in self.frozen}
        last = [name for name in base if name in self.base.head_names]
        return trained | {name: base[name] for name in (*last, *self.base.statistics)}

    @cached_property
    def weights(self) -> tuple[str, ...]:
        """Names of the trained factors, and of the last layer's weights if masks cover these."""
        base = self.base
        return tuple(n for n in self.shapes if n not in base.shapes or n in base.weights)

    @property
    def statistics(self) -> tuple[str, ...]:
        """Names of the base's running statistics."""
        return self.base.statistics

    @property
    def head(self) -> str:
        """Name of the last layer's weights, as in the base."""
        return self.base.head

    @property
    def head_bias(self) -> str | None:
        """Name of the last layer's bias, as in the base."""
        return self.base.head_bias

    @property
    def head_names(self) -> tuple[str, ...]:
        """Names of all parameters of the last layer, as in the base."""
        return self.base.head_names

    @property
    def parameters(self) -> int:
        """Number of the base's parameters."""
        return self.base.parameters

    @property
    def title(self) -> str:
        """Title of the base, with its shapes."""
        return f"LoRA of {self.base.title} {dict(self.base.shapes)}"

    @property
    def rescales(self) -> bool:
        """Whether the base divides activations by their size."""
        return self.base.rescales

    @property
    def alone(self) -> str:
        """Why the base's clients cannot train in lock step; "" if they can."""
        return self.base.alone

    def examples(self, count: int, key: Key, device: torch.device | str = "cpu") -> Tensor:
        """Draw samples that the base takes."""
        return self.base.examples(count, key, device)

    def merged(self, params: Tree) -> Tree:
        """Return the base's parameters: ``W + (alpha / r) B A``, the last layer, and the frozen."""
        some = params[self.weights[0]]
        frozen = {name: x.to(some.device, some.dtype) for name, x in self.frozen.items()}
        parts = frozen | params
        merged = {name: parts[name] for name in self.base.shapes}
        for name in factored(self.base):
            product = parts[f"{name}.B"] @ parts[f"{name}.A"]
            merged[name] = merged[name] + self.adapter.scale * product.reshape(merged[name].shape)
        return merged

    def logits(self, params: Tree, x: Tensor, step: Step | None = None) -> Tensor:
        """Compute the base's logits with the merged weights."""
        return self.base.logits(self.merged(params), x, step)

    def features(self, params: Tree, x: Tensor, step: Step | None = None) -> Tensor:
        return self.base.features(self.merged(params), x, step)

    def state_dict(self, params: Tree) -> Tree:
        """Return the merged weights by the base's names, as its own state dict has them."""
        return self.base.state_dict(self.merged(params))

    def init(self, key: Key, device: torch.device | str = "cpu") -> Tree:
        """Draw ``A``, set ``B`` to 0; the last layer and the statistics are those of the base."""
        factors = first_factors(self.base, self.adapter.rank, key, device)
        drawn = self.base.init(key, device) | factors
        return {name: drawn[name] for name in self.shapes}


def factored(network: Network) -> tuple[str, ...]:
    """Return the names of the weights that get factors: those before the last layer.

    `ConfigError` if there is none, or one that is no matrix or kernel.
    """
    names = tuple(name for name in network.weights if name not in network.head_names)
    if not names:
        raise ConfigError(
            "--adapter lora must have a model with weights before its last layer, which is trained "
            f"as it is, got none in {type(network).__name__}; use none"
        )
    for name in names:
        if len(network.shapes[name]) < 2:
            raise ConfigError(
                "--adapter lora must have weights that are matrices or kernels, got "
                f"{name} {network.shapes[name]}; leave it out of ModuleModel(weights=...)"
            )
    return names


def factor_shapes(network: Network, rank: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of ``A (r, in)`` and ``B (out, r)`` of every factored weight, by name."""
    shapes: dict[str, tuple[int, ...]] = {}
    for name in factored(network):
        outs, *ins = network.shapes[name]
        shapes[f"{name}.A"] = (rank, math.prod(ins))
        shapes[f"{name}.B"] = (outs, rank)
    return shapes


def first_factors(network: Network, rank: int, key: Key, device: torch.device | str) -> Tree:
    """Draw every ``A`` from ``U(-b, b)`` with ``b = in ** -0.5``; every ``B`` is 0."""
    return {
        name: (2 * key.fold(name).uniform(*shape, device=device) - 1) / math.sqrt(shape[1])
        if name.endswith(".A")
        else torch.zeros(shape, device=device)
        for name, shape in factor_shapes(network, rank).items()
    }


def adapted(
    network: Network, adapter: LoRA, key: Key, device: torch.device | str = "cpu"
) -> LoRANet:
    """Return the network with factors beside its weights, frozen as it draws them under the key.

    A network that has its own first weights, such as a pretrained module, keeps these.
    `ConfigError` as in `factored`.
    """
    factored(network)  # or its error
    drawn = network.init(key, device)
    if adapter.freeze_a:
        factors = first_factors(network, adapter.rank, key, device)
        drawn |= {name: x for name, x in factors.items() if name.endswith(".A")}
    trained = (*network.head_names, *network.statistics)
    return LoRANet(
        image=network.image,
        classes=network.classes,
        base=network,
        adapter=adapter,
        frozen={name: x for name, x in drawn.items() if name not in trained},
    )
