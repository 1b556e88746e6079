"""Gaussian noise in place of the update."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch

from fedbench.api import Attack, AttackView, Choices
from fedbench.core.errors import require
from fedbench.payload import Payload


@dataclass(frozen=True, kw_only=True)
class NoiseAttack(Attack):
    """Every malicious client sends ``scale * |u| / sqrt(d) * N(0, I)``, or its own ``u`` plus that.

    ``u (d,)`` is what the client has honestly learned, by wire its message, and what is not finite
    in it counts as 0. The paper has a fixed deviation, 200, far more than any update has, but not
    every model feels it alike.

    Args:
        scale: Length of the noise, relative to ``u``. At 1 it hardly disturbs even a mean.
        add: Send ``u`` plus the noise, and not the noise alone.
        via: ``codec``: compress the noise as the client would; ``wire``: the closest legal message.

    References:
        Blanchard et al., "Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent",
        NeurIPS 2017, https://arxiv.org/abs/1703.02757, section on experiments ("Gaussian").
    """

    choices: ClassVar[Choices] = {"scale": (1.0, 3.0, 10.0)}

    scale: float = 100.0
    add: bool = False
    via: Literal["codec", "wire"] = "codec"

    def __post_init__(self) -> None:
        require("NoiseAttack.scale", self.scale, self.scale > 0, "> 0")

    def craft(self, view: AttackView, memory: Any) -> tuple[Payload, Any]:
        by_wire = self.via == "wire"
        x = (view.own.values() if by_wire else view.updates).to(torch.float32)
        start = torch.zeros_like(x) if by_wire else view.idle.to(x)
        learned = (x - start).nan_to_num(0.0, 0.0, 0.0)
        deviation = self.scale * learned.square().mean(dim=1, keepdim=True).sqrt()
        rows = start + deviation * view.key.fold("noise").normal(*x.shape, device=x.device)
        rows = rows + learned if self.add else rows
        return view.own.nearest(rows) if by_wire else view.compress(rows), memory
