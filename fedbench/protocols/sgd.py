"""Local SGD, as every protocol here trains with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic

from torch import Tensor

from fedbench.api import Batches, Grad, Memory, Protocol, State
from fedbench.errors import require
from fedbench.layout import Tree
from fedbench.network import is_statistic
from fedbench.rng import Key


@dataclass(frozen=True, kw_only=True)
class LocalSGD(Protocol[State], Generic[State]):
    """Clients run SGD with momentum from the broadcast and return how far they moved.

    The optimiser starts afresh in every round.

    Args:
        lr: Learning rate of a local step.
        momentum: Heavy-ball momentum, without dampening.
        weight_decay: Added to the gradient as ``weight_decay * parameter``.
    """

    lr: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 1e-4

    def __post_init__(self) -> None:
        name = type(self).__name__
        require(f"{name}.lr", self.lr, self.lr > 0, "> 0")
        require(f"{name}.momentum", self.momentum, 0 <= self.momentum < 1, "in [0, 1)")
        require(f"{name}.weight_decay", self.weight_decay, self.weight_decay >= 0, ">= 0")

    def train(self, tree: Tree, batches: Batches, grad: Grad, key: Key) -> Tree:
        """Where SGD ends that starts at ``tree``, one step a batch."""
        trained = {name: x.clone() for name, x in tree.items()}
        velocity: dict[str, Tensor] = {}
        for step, (x, y) in enumerate(batches):
            for name, g in grad(trained, x, y, key.fold("step", step)).items():
                if is_statistic(name):
                    trained[name].sub_(g)
                    continue
                if self.weight_decay:
                    g = g.add(trained[name], alpha=self.weight_decay)
                if self.momentum:
                    g = g.add(velocity[name], alpha=self.momentum) if step else g
                    velocity[name] = g
                trained[name].sub_(g, alpha=self.lr)
        return trained

    def local_update(
        self, tree: Tree, batches: Batches, grad: Grad, key: Key, memory: Memory
    ) -> tuple[Tree, Memory]:
        """``trained - tree``."""
        trained = self.train(tree, batches, grad, key)
        return {name: trained[name] - x for name, x in tree.items()}, memory
