"""Neurotoxin, a backdoor in the coordinates where honest clients do not train."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedbench.api import AttackView, Grad, Gradient, Local
from fedbench.core.errors import require
from fedbench.core.rng import Key
from fedbench.core.trees import Tree
from fedbench.payload import Payload

from .pixel import Pixel, received


@dataclass(frozen=True, kw_only=True)
class Neurotoxin(Pixel):
    """Train as `Pixel`, without gradient where the model's last move was among the largest.

    The last move is what was received minus what was received a round ago. Of all its coordinates
    together, those with the ``round(ratio d)`` largest *absolute* values get no gradient (D5); of
    equal ones the first, and none that did not move. The first round has no mask. What was learned
    is scaled down to ``clip`` times the client's honest L2 norm, in the paper to a fixed radius.

    Args:
        ratio: Share of the coordinates that are left to the others.
        clip: Largest norm of the update, relative to the honest one.

    References:
        Zhang et al., "Neurotoxin: Durable Backdoors in Federated Learning", ICML 2022,
        https://arxiv.org/abs/2206.10341, Algorithm 1.
    """

    ratio: float = 0.05
    clip: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require("Neurotoxin.ratio", self.ratio, 0 <= self.ratio < 1, "in [0, 1)")
        require("Neurotoxin.clip", self.clip, self.clip > 0, "> 0")

    def wrap_grad(self, grad: Gradient, local: Local) -> Grad:
        if local.before is None:
            return grad
        before = local.before
        free = Tree()

        def masked(tree: Tree, x: Tensor, y: Tensor, key: Key) -> Tree:
            gradient = grad(tree, x, y, key)
            if not free:  # the first step tells what has a gradient
                now = received(local.tree, gradient)
                free.update(_quiet(now, received(before, gradient), self.ratio, local.statistics))
            return {name: g * free[name] if name in free else g for name, g in gradient.items()}

        return masked

    def craft(self, view: AttackView, memory: Any) -> tuple[Payload, Any]:
        return view.compress(projected(view, self.clip)), memory


def projected(view: AttackView, clip: float) -> Tensor:
    """Return what was trained ``(m, d)``, scaled down to ``clip`` times each honest L2 norm."""
    learned = view.trained - view.idle
    norms = torch.linalg.vector_norm(learned, dim=1, keepdim=True).clamp_min(1e-30)
    honest = torch.linalg.vector_norm(view.updates - view.idle, dim=1, keepdim=True)
    factors = (clip * honest / norms).clamp_max(1.0)
    scaled: Tensor = view.idle + factors * learned
    return scaled


def _quiet(tree: Tree, before: Tree, ratio: float, statistics: Sequence[str] = ()) -> Tree:
    """Return 0 on the ``ratio`` largest moves from ``before`` to ``tree``, 1 elsewhere."""
    moves = {k: (x - before[k]).abs() for k, x in tree.items() if k not in statistics}
    flat = torch.cat([move.reshape(-1) for move in moves.values()])
    largest = flat.sort(descending=True, stable=True).indices[: round(ratio * len(flat))]
    free = torch.ones_like(flat)
    free[largest] = (flat[largest] == 0).to(flat.dtype)
    parts = torch.split(free, [move.numel() for move in moves.values()])
    return {k: part.reshape(moves[k].shape) for k, part in zip(moves, parts, strict=True)}
