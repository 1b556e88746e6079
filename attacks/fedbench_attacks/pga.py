"""Projected gradient ascent (PGA)."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.linalg import vector_norm

from fedbench.api import Attack, AttackView, Choices, Grad, Gradient, Knowledge, Local
from fedbench.core.errors import require
from fedbench.core.rng import Key
from fedbench.core.trees import Tree
from fedbench.payload import Payload


@dataclass(frozen=True, kw_only=True)
class PGA(Attack):
    """Each colluder ascends the loss of its own data, and is as long as honest updates are.

    ``idle + tau * a / |a|``: ``a`` is what its clients' training by the negative gradient made of
    what they received, ``idle`` the update of a client that learned nothing, ``tau = scale`` times
    the mean norm of its clients' honest updates about ``idle``. Running statistics of batch norm
    are trained honestly. A row that has diverged is the opposite of the honest update, recorded.

    Args:
        scale: Length, relative to honest updates.
        via: ``codec``: compress the dense vector as the client would; ``wire``: the closest legal
            message with the honest headers, where messages are as wide as updates.

    References:
        Shejwalkar et al., "Back to the Drawing Board: A Critical Evaluation of Poisoning Attacks on
        Production Federated Learning", IEEE S&P 2022, https://arxiv.org/abs/2108.10241, "PGA".
    """

    choices: ClassVar[Choices] = {"scale": (0.5, 2.0, 10.0)}

    scale: float = 1.0
    via: Literal["codec", "wire"] = "codec"

    def __post_init__(self) -> None:
        require("PGA.scale", self.scale, self.scale > 0, "> 0")

    def needs(self) -> Knowledge:
        return Knowledge("colluders")

    def wrap_grad(self, grad: Gradient, local: Local) -> Grad:
        def ascent(tree: Tree, x: Tensor, y: Tensor, key: Key) -> Tree:
            gradient = grad(tree, x, y, key)
            return {name: g if name in local.statistics else -g for name, g in gradient.items()}

        return ascent

    def craft(self, view: AttackView, memory: Any) -> tuple[Payload, Any]:
        idle = view.idle.to(torch.float64)
        honest = view.updates.to(torch.float64) - idle
        ascent = view.trained.to(torch.float64) - idle
        lost = ~torch.isfinite(ascent).all(dim=1, keepdim=True)
        ascent = torch.where(lost, -honest, ascent)
        tau = self.scale * vector_norm(honest, dim=1).nan_to_num(0.0, 0.0, 0.0).mean()
        rows = idle + tau * ascent / vector_norm(ascent, dim=1, keepdim=True).clamp_min(1e-30)
        rows = rows.to(torch.float32)
        view.notes.update(tau=float(tau), diverged=int(lost.sum()))
        aligned = view.own.aligned and view.own.values().shape[1] == view.updates.shape[1]
        by_wire = self.via == "wire" and aligned
        view.notes["via"] = "wire" if by_wire else "codec"
        return view.own.nearest(rows) if by_wire else view.compress(rows), memory
