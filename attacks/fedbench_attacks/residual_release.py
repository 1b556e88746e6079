"""Attack that saves up its harm and sends it in one message."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from fedbench.api import Attack, AttackView, Choices
from fedbench.core.errors import require
from fedbench.payload import Levels, Payload, RotatedLevels
from fedbench.payload.bits import ScaledSigns, SignBits
from fedbench.payload.floats import FloatVectors, HalfVectors
from fedbench.payload.sparse import SeededSparse, SparseVectors


@dataclass(frozen=True, kw_only=True)
class ResidualRelease(Attack):
    """Send ``wait`` honest messages, then ``-scale`` times the sum of those updates and this one.

    Then it starts again. The sum goes through the codec as if nothing were left over from before.
    Only rounds in which the client is sampled count; an update that is not finite is not added. It
    works without error feedback too, recorded.

    Args:
        wait: Number of honest messages before each release.
        scale: Factor of what is released.

    References:
        None: proposed here. The idea is that error feedback makes a long message plausible.
    """

    accepts = (
        *(FloatVectors, HalfVectors, Levels, RotatedLevels),
        *(ScaledSigns, SeededSparse, SignBits, SparseVectors),
    )
    choices: ClassVar[Choices] = {"wait": (1, 10), "scale": (3.0, 10.0)}

    wait: int = 4
    scale: float = 1.0

    def __post_init__(self) -> None:
        require("ResidualRelease.wait", self.wait, self.wait >= 0, ">= 0")
        require("ResidualRelease.scale", self.scale, self.scale > 0, "> 0")

    def craft(self, view: AttackView, memory: Any) -> tuple[Payload, Any]:
        waited, saved = memory or (0, torch.zeros_like(view.updates))
        finite = torch.isfinite(view.updates).all(dim=1, keepdim=True)
        saved = saved - torch.where(finite, view.updates, 0.0)
        view.notes["residual"] = all("residual" in client for client in view.memories)
        view.notes["released"] = waited == self.wait
        if waited < self.wait:
            return view.own, (waited + 1, saved)
        return view.compress(self.scale * saved), None
