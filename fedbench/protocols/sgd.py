"""Local SGD, as protocols train that send moves of weights or rankings."""

from dataclasses import dataclass
from typing import Generic

from torch import Tensor

from fedbench.api import Batches, Grad, Memory, Protocol, Shared, State
from fedbench.core.errors import require
from fedbench.core.rng import Key
from fedbench.core.trees import Tree
from fedbench.protocols.optimizers import SGD


def initial_weights(shared: Shared) -> Tensor:
    """``(d,)`` parameters as the network draws them from the seed."""
    return shared.layout.flatten(shared.network.init(shared.key.fold("init"), shared.device))


def masked(grad: Grad, masks: Tree) -> Grad:
    """Gradient function whose layers named in ``masks`` are multiplied by their mask."""

    def masked_gradient(trained: Tree, x: Tensor, y: Tensor, key: Key) -> Tree:
        gradient = grad(trained, x, y, key)
        return gradient | {name: gradient[name] * mask for name, mask in masks.items()}

    return masked_gradient


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
        sgd = SGD(lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay)
        trained = tree
        velocity = sgd.init(tree)
        for step, (x, y) in enumerate(batches):
            gradient = grad(trained, x, y, key.fold("step", step))
            trained, velocity = sgd.step(trained, gradient, velocity)
            trained = self.landed(trained, tree)
        return trained

    def landed(self, trained: Tree, start: Tree) -> Tree:
        """Return the tree after a step from the round's ``start``: room for a proximal step."""
        return trained

    def local_update(
        self, tree: Tree, batches: Batches, grad: Grad, key: Key, memory: Memory
    ) -> tuple[Tree, Memory]:
        trained = self.train(tree, batches, grad, key)
        return {name: trained[name] - x for name, x in tree.items()}, memory
