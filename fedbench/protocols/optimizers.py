"""Optimisers as pure functions of trees, for clients under ``vmap`` and for servers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from fedbench.errors import require
from fedbench.layout import Tree
from fedbench.network import is_statistic


@dataclass(frozen=True, kw_only=True)
class Optimizer(ABC):
    """Descends along a gradient; its memory is a tree, so that it can be kept and stacked.

    Args:
        lr: Learning rate.
    """

    lr: float

    def __post_init__(self) -> None:
        require(f"{type(self).__name__}.lr", self.lr, self.lr > 0, "> 0")

    @abstractmethod
    def init(self, tree: Tree) -> Tree:
        """The memory before the first step."""

    @abstractmethod
    def moves(self, gradient: Tree, memory: Tree) -> tuple[Tree, Tree]:
        """How far each parameter goes down, and the next memory."""

    def step(self, tree: Tree, gradient: Tree, memory: Tree) -> tuple[Tree, Tree]:
        """The tree after one step, and the next memory.

        A running statistic goes down by its gradient itself (`is_statistic`).
        """
        trained = {name: g for name, g in gradient.items() if not is_statistic(name)}
        moves, memory = self.moves(trained, memory)
        return {name: x - moves.get(name, gradient[name]) for name, x in tree.items()}, memory


@dataclass(frozen=True, kw_only=True)
class SGD(Optimizer):
    """``velocity = momentum * velocity + g``, ``x -= lr * velocity``.

    Args:
        momentum: Heavy-ball momentum, without dampening.
    """

    momentum: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require("SGD.momentum", self.momentum, 0 <= self.momentum < 1, "in [0, 1)")

    def init(self, tree: Tree) -> Tree:
        """Zero velocities; none without momentum."""
        if not self.momentum:
            return {}
        return {f"velocity.{name}": torch.zeros_like(x) for name, x in tree.items()}

    def moves(self, gradient: Tree, memory: Tree) -> tuple[Tree, Tree]:
        """See the class."""
        if not self.momentum:
            return {name: self.lr * g for name, g in gradient.items()}, memory
        kept = dict(memory)
        for name, g in gradient.items():
            kept[f"velocity.{name}"] = self.momentum * memory[f"velocity.{name}"] + g
        return {name: self.lr * kept[f"velocity.{name}"] for name in gradient}, kept


@dataclass(frozen=True, kw_only=True)
class Adam(Optimizer):
    """Adam with bias correction; ``epsilon`` is added to the root.

    Args:
        beta1: Decay of the mean of gradients.
        beta2: Decay of the mean of squared gradients.
        epsilon: Keeps a coordinate without gradient at rest.

    References:
        Kingma and Ba, "Adam: A Method for Stochastic Optimization", ICLR 2015,
        https://arxiv.org/abs/1412.6980, Algorithm 1.
    """

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("beta1", "beta2"):
            beta = getattr(self, name)
            require(f"{type(self).__name__}.{name}", beta, 0 <= beta < 1, "in [0, 1)")

    def init(self, tree: Tree) -> Tree:
        """Zero moments; running statistics have none."""
        kept = {name: x for name, x in tree.items() if not is_statistic(name)}
        some = next(iter(kept.values()))
        return {
            "t": torch.zeros((), dtype=some.dtype, device=some.device),
            **{f"m.{name}": torch.zeros_like(x) for name, x in kept.items()},
            **{f"v.{name}": torch.zeros_like(x) for name, x in kept.items()},
        }

    def moves(self, gradient: Tree, memory: Tree) -> tuple[Tree, Tree]:
        """``lr * m_hat / (sqrt(v_hat) + epsilon)``."""
        t = memory["t"] + 1
        kept, moves = memory | {"t": t}, {}
        rate = self.lr / (1 - self.beta1**t)
        for name, g in gradient.items():
            m = memory[f"m.{name}"].lerp(g, 1 - self.beta1)
            v = self._second(memory[f"v.{name}"], g)
            kept |= {f"m.{name}": m, f"v.{name}": v}
            moves[name] = self._ratio(m, v, t).mul_(rate)
        return moves, kept

    def _second(self, v: Tensor, g: Tensor) -> Tensor:
        return torch.addcmul(self.beta2 * v, g, g, value=1 - self.beta2)

    def _ratio(self, m: Tensor, v: Tensor, t: Tensor) -> Tensor:
        """``m / (sqrt(v_hat) + epsilon)``; a pass over all parameters costs more than a line."""
        correction = (1 - self.beta2**t).sqrt()
        return (m / v.sqrt().add_(self.epsilon * correction)).mul_(correction)


@dataclass(frozen=True, kw_only=True)
class Adamax(Adam):
    """Adam with the infinity norm instead of the second moment.

    ``epsilon`` is added inside the maximum, as torch does: Algorithm 2 has none and divides 0 by 0.

    References:
        Kingma and Ba, https://arxiv.org/abs/1412.6980, Algorithm 2.
    """

    def _second(self, v: Tensor, g: Tensor) -> Tensor:
        return torch.maximum(self.beta2 * v, g.abs() + self.epsilon)

    def _ratio(self, m: Tensor, v: Tensor, t: Tensor) -> Tensor:
        return m / v
