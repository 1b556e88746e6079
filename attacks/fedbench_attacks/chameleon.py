"""Chameleon, a backdoor that first adapts the features to the images beside the poisoned ones."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from fedbench.api import AttackView, Grad, Gradient, Local
from fedbench.core.errors import require
from fedbench.core.rng import Key
from fedbench.core.trees import Tree
from fedbench.payload import Payload

from .neurotoxin import projected
from .pixel import Pixel


@dataclass(frozen=True, kw_only=True)
class Chameleon(Pixel):
    """Poison data as `Pixel`; learn first the features, by contrast, and then the last layer.

    For the first ``round(share S)`` of the client's ``S`` local steps, but never the last one, the
    loss is `contrast` of what the last layer gets, with `Pixel`'s labels: stamped images draw
    nearer to those of ``target`` (facilitators) and away from those of the class that they are of
    (interferers). In the other steps it is the cross-entropy, and only the last layer has a
    gradient; running statistics always move.

    The steps, their rate and their optimiser are those of the protocol. So the features are not
    quite frozen: momentum and weight decay, if it has them, move them on. The paper trains a copy
    with an optimiser and epochs of its own. A protocol that takes more gradients than steps
    (`byz-dasha-page`) has each of them counted as a step.

    At the protocol's rate the contrastive loss leads far away, to a model without use for anybody.
    So its gradient is scaled down to the norm of the cross-entropy's, of the same samples, and what
    was learned to ``clip`` times the client's honest L2 norm.

    Args:
        share: Share of the local steps that adapt the features.
        temperature: Divisor of the similarities.
        weight: Weight of the images labelled ``target``, as they are found.
        clip: Largest norm of the update, relative to the honest one. The default was chosen among
            1, 3 and none on ``digits``.

    References:
        Dai and Li, "Chameleon: Adapting to Peer Images for Planting Durable Backdoors in Federated
        Learning", ICML 2023, https://proceedings.mlr.press/v202/dai23a.html. The paper's text was
        not at hand: loss, temperature, ``weight`` and ``share`` (10 of 13 epochs) are those of the
        authors' code for a pixel trigger. In both stages that code projects to a fixed radius after
        every step, and its rate of the contrastive ones falls.
    """

    share: float = 0.77
    temperature: float = 0.07
    weight: float = 6.0
    clip: float = 3.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require("Chameleon.share", self.share, 0 <= self.share <= 1, "in [0, 1]")
        require("Chameleon.temperature", self.temperature, self.temperature > 0, "> 0")
        require("Chameleon.weight", self.weight, self.weight > 0, "> 0")
        require("Chameleon.clip", self.clip, self.clip > 0, "> 0")

    def adapting(self, steps: int) -> int:
        """Return the number of local steps that adapt the features."""
        return max(0, min(round(self.share * steps), steps - 1))

    def wrap_grad(self, grad: Gradient, local: Local) -> Grad:
        loss = partial(
            contrast, temperature=self.temperature, target=self.target, weight=self.weight
        )
        adapted = grad.of(loss)
        first = self.adapting(local.steps)
        taken = 0

        def staged(tree: Tree, x: Tensor, y: Tensor, key: Key) -> Tree:
            nonlocal taken
            taken += 1
            gradient = grad(tree, x, y, key)
            if taken <= first:
                return no_longer(adapted(tree, x, y, key), gradient, local.statistics)
            return last_layer(gradient, (*local.head, *local.statistics))

        return staged

    def craft(self, view: AttackView, memory: Any) -> tuple[Payload, Any]:
        return view.compress(projected(view, self.clip)), memory


def no_longer(gradient: Tree, other: Tree, statistics: Sequence[str]) -> Tree:
    """Return the gradient, scaled down to the norm of the ``other`` one if it is longer.

    Running statistics have no part in it.
    """
    names = [name for name in gradient if name not in statistics]
    longer, length = (
        torch.cat([tree[name].reshape(-1) for name in names]).norm() for tree in (gradient, other)
    )
    factor = (length / longer.clamp_min(1e-30)).clamp_max(1.0)
    return {name: g if name in statistics else factor * g for name, g in gradient.items()}


def last_layer(gradient: Tree, layers: Sequence[str]) -> Tree:
    """Return the gradient with zeros for all leaves but those of ``layers`` and their gates.

    A protocol that trains gates names those of a layer after its weights and a dot.
    """
    names = tuple(f"{name}." for name in layers)
    return {
        name: g if name in layers or name.startswith(names) else torch.zeros_like(g)
        for name, g in gradient.items()
    }


def contrast(features: Tensor, y: Tensor, temperature: float, target: int, weight: float) -> Tensor:
    """Return the supervised contrastive loss of features ``(B, p)`` with labels ``y (B,)``.

    The mean over all samples ``i`` of ``-w_i / |P(i)| sum_{j in P(i)} log(exp(z_i z_j / T) /
    sum_{k != i} exp(z_i z_k / T))``: ``z`` are the features at norm 1, ``P(i)`` the others with the
    label of ``i``, ``w_i`` is ``weight`` for ``target`` and else 1. A sample whose ``P`` is empty
    counts as 0. Samples with the label -1 are not there.

    References:
        Khosla et al., "Supervised Contrastive Learning", NeurIPS 2020,
        https://arxiv.org/abs/2004.11362, eq. 2 times ``1 / B``, here with ``w``.
    """
    z = normalize(features.float() if features.dtype == torch.bfloat16 else features, dim=1)
    real = y >= 0
    others = (real[:, None] & real) & ~torch.eye(len(y), dtype=torch.bool, device=y.device)
    similar = z @ z.T / temperature
    least = torch.finfo(similar.dtype).min
    chances = torch.where(others, similar, least).log_softmax(dim=1)
    positive = others & (y[:, None] == y)
    sums = torch.where(positive, chances, 0.0).sum(dim=1)
    weights = torch.where(y == target, weight, 1.0).to(z.dtype)
    losses = -weights * sums / positive.sum(dim=1).clamp_min(1)
    return losses.sum() / real.sum().clamp_min(1)
