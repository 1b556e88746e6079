"""Optimisers as pure functions of trees, for clients under ``vmap`` and for servers."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from fedbench.core.trees import Tree


@dataclass(frozen=True, kw_only=True)
class Optimizer(ABC):
    """Optimiser as a pure function, whose memory is a tree that can be stored and stacked."""

    lr: float  # learning rate, which the protocol has checked
    statistics: tuple[str, ...] = ()  # names of running statistics

    @abstractmethod
    def init(self, tree: Tree) -> Tree:
        """Return the memory before the first step."""

    @abstractmethod
    def step(self, tree: Tree, gradient: Tree, memory: Tree) -> tuple[Tree, Tree]:
        """Return the next tree and memory; running statistics go down by their gradient itself."""

    def usable(self, memory: Tree, tree: Tree) -> Tree:
        """Return the memory, or that before the first step of the tree if it is not finite."""
        fresh = self.init(tree)
        finite = torch.stack([torch.isfinite(x).all() for x in memory.values()]).all()
        return {name: torch.where(finite, x, fresh[name]) for name, x in memory.items()}


@dataclass(frozen=True, kw_only=True)
class SGD(Optimizer):
    """``velocity = momentum * velocity + g + weight_decay * x``, ``x -= lr * velocity``."""

    momentum: float = 0.0  # heavy-ball momentum, without dampening
    weight_decay: float = 0.0  # share of each parameter that is added to its gradient

    def init(self, tree: Tree) -> Tree:
        """Return no memory: the first velocity is the first gradient."""
        return {}

    def step(
        self, tree: Tree, gradient: Tree, memory: Tree, lr: float | Tensor | None = None
    ) -> tuple[Tree, Tree]:
        """Take one step in as few passes as possible, skipping terms that are zero.

        ``lr`` is the learning rate of this step if it has its own, as a number or without
        dimensions.
        """
        rate = self.lr if lr is None else lr
        trained = {}
        velocity = {}
        for name, x in tree.items():
            g = gradient[name]
            if name in self.statistics:
                trained[name] = x - g
                continue
            if self.weight_decay:
                g = g.add(x, alpha=self.weight_decay)
            if self.momentum:
                g = g.add(memory[name], alpha=self.momentum) if memory else g
                velocity[name] = g
            trained[name] = (
                torch.addcmul(x, g, rate.to(x.dtype), value=-1)
                if isinstance(rate, Tensor)
                else x.sub(g, alpha=rate)
            )
        return trained, velocity


@dataclass(frozen=True, kw_only=True)
class Adam(Optimizer):
    """Adam with bias correction; ``epsilon`` is added to the root.

    References:
        Kingma and Ba, "Adam: A Method for Stochastic Optimization", ICLR 2015,
        https://arxiv.org/abs/1412.6980, Algorithm 1.
    """

    beta1: float = 0.9  # decay of the mean of gradients
    beta2: float = 0.999  # decay of the mean of squared gradients
    epsilon: float = 1e-8  # keeps a coordinate without gradient at rest

    def init(self, tree: Tree) -> Tree:
        """Return zero moments; running statistics have none."""
        parameters = {name: x for name, x in tree.items() if name not in self.statistics}
        first = next(iter(parameters.values()))
        t = torch.zeros((), dtype=first.dtype, device=first.device)  # the same for all in lock step
        return {"t": t} | {
            f"{moment}.{name}": torch.zeros_like(x)
            for moment in ("m", "v")
            for name, x in parameters.items()
        }

    def step(self, tree: Tree, gradient: Tree, memory: Tree) -> tuple[Tree, Tree]:
        """Take the step ``x -= lr * m_hat / (sqrt(v_hat) + epsilon)``."""
        t = memory["t"] + 1
        trained = {}
        moments = {"t": t}
        rate = self._rate(t)
        root, added = self._correction(t)
        for name, x in tree.items():
            g = gradient[name]
            if name in self.statistics:
                trained[name] = x - g
                continue
            m = memory[f"m.{name}"].lerp(g, 1 - self.beta1)
            v = self._second(memory[f"v.{name}"], g)
            moments |= {f"m.{name}": m, f"v.{name}": v}
            trained[name] = x - self._ratio(m, v, root, added).mul_(rate)
        return trained, moments

    def _rate(self, t: Tensor) -> float | Tensor:
        """Return the learning rate over ``1 - beta1**t``, for the bias of the first moment."""
        return self.lr / (1 - self.beta1**t)

    def _second(self, v: Tensor, g: Tensor) -> Tensor:
        return torch.addcmul(self.beta2 * v, g, g, value=1 - self.beta2)

    def _correction(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``sqrt(1 - beta2**t)`` for the bias of the second moment, and epsilon times it."""
        root = (1 - self.beta2**t).sqrt()
        return root, self.epsilon * root

    def _ratio(self, m: Tensor, v: Tensor, root: Tensor, added: Tensor) -> Tensor:
        """Return ``m / (sqrt(v_hat) + epsilon)``, with few passes over the parameters."""
        return (m / v.sqrt().add_(added)).mul_(root)


@dataclass(frozen=True, kw_only=True)
class Yogi(Adam):
    """Adam whose second moment moves by ``(1 - beta2) g**2`` towards ``g**2``, not by a share.

    ``v <- v - (1 - beta2) g**2 sign(v - g**2)`` forgets large gradients more slowly, ``v`` starts
    at ``epsilon**2``, no bias is corrected.

    References:
        Reddi et al., "Adaptive Federated Optimization", ICLR 2021,
        https://arxiv.org/abs/2003.00295, Algorithm 2, FedYogi; Zaheer et al., "Adaptive Methods for
        Nonconvex Optimization", NeurIPS 2018, Algorithm 2.
    """

    beta2: float = 0.99
    epsilon: float = 1e-3  # tau of FedYogi

    def init(self, tree: Tree) -> Tree:
        """Return a zero first moment and ``v = epsilon**2``."""
        return {
            name: torch.full_like(x, self.epsilon).square() if name.startswith("v.") else x
            for name, x in super().init(tree).items()
        }

    def _rate(self, t: Tensor) -> float:
        return self.lr

    def _second(self, v: Tensor, g: Tensor) -> Tensor:
        square = g.square()
        return v - (1 - self.beta2) * square * torch.sign(v - square)

    def _ratio(self, m: Tensor, v: Tensor, root: Tensor, added: Tensor) -> Tensor:
        """Return ``m / (sqrt(v) + epsilon)``, without a correction."""
        return m / v.sqrt().add_(self.epsilon)


@dataclass(frozen=True, kw_only=True)
class Adamax(Adam):
    """Adam with the infinity norm instead of the second moment: Algorithm 2 of its paper.

    ``epsilon`` is added inside the maximum, as in torch: the paper has none and divides 0 by 0.
    """

    def _second(self, v: Tensor, g: Tensor) -> Tensor:
        return torch.maximum(self.beta2 * v, g.abs() + self.epsilon)

    def _ratio(self, m: Tensor, v: Tensor, root: Tensor, added: Tensor) -> Tensor:
        return m / v
