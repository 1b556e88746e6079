"""Sign flip."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from fedbench.api import Attack, AttackView
from fedbench.errors import require
from fedbench.payload import Payload


@dataclass(frozen=True, kw_only=True)
class SignFlip(Attack):
    """Every malicious client sends ``-scale`` times its own honest update.

    What is flipped is the update, never the weights (D13). Public code also calls it sign flip to
    send the negative mean of all honest updates; that is inner-product manipulation. Binary masks
    and the probabilities behind them mirror at 1/2.

    Args:
        scale: How far.
        via: ``codec``: flip the dense update, then compress it honestly; ``wire``: flip the values
            of the honest message and send the closest legal one with its headers.

    References:
        Li et al., "RSA: Byzantine-Robust Stochastic Aggregation Methods for Distributed Learning
        from Heterogeneous Datasets", AAAI 2019, https://arxiv.org/abs/1811.03761, section on
        experiments ("sign-flipping attack", there with scale 4).
    """

    scale: float = 1.0
    via: Literal["codec", "wire"] = "codec"

    def __post_init__(self) -> None:
        require("SignFlip.scale", self.scale, self.scale > 0, "> 0")

    def craft(self, view: AttackView, memory: Any) -> tuple[Payload, Any]:
        """``-scale * own``; of a ranking its reverse, of a binary mask its complement."""
        own, x = view.own, view.updates
        if self.via == "wire":
            return own.nearest(own.opposite(own.values(), self.scale)), memory
        flipped = own.opposite(x, self.scale) if own.aligned else -self.scale * x
        return view.compress(flipped), memory
