"""The seed that serves the adversary best."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedbench.api import Alphabets, Attack, AttackView
from fedbench.errors import require
from fedbench.payload import NoiseMasks, Payload, RotatedLevels, SeededSparse


@dataclass(frozen=True, kw_only=True)
class SeedGrinding(Attack):
    """Try ``tries`` seeds for the opposite of the own update, send the message that says it best.

    Where a client chooses the seed of its rotation, noise or indices, it may choose it for its
    effect: the one whose closest legal message, with the honest scales, has the largest inner
    product with ``-u``. The own seed is the first try. Proposed here, no published source.

    Args:
        tries: Seeds that are tried.

    References:
        None; the idea is that a codec's side information is the client's to choose.
    """

    accepts: ClassVar[Alphabets] = (NoiseMasks, RotatedLevels, SeededSparse)

    tries: int = 16

    def __post_init__(self) -> None:
        require("SeedGrinding.tries", self.tries, self.tries >= 1, ">= 1")

    def craft(self, view: AttackView, memory: Any) -> tuple[Payload, Any]:
        """Row by row the best of the tries."""
        own: Any = view.own
        target = -view.updates.to(torch.float32)
        best, most = own.nearest(target), torch.full((len(own),), -torch.inf)
        for seeds in [own.seeds, *self._others(view)]:
            trial = dataclasses.replace(own, seeds=seeds).nearest(target)
            reached = (trial.values().double() * target).sum(dim=1).cpu()
            better = (reached > most).nonzero()[:, 0]
            best = best.put(better, trial.take(better))
            most = torch.maximum(reached, most)
        view.notes["tries"] = self.tries
        return best, memory

    def _others(self, view: AttackView) -> list[Tensor]:
        drawn = view.key.fold("seeds").bits((self.tries - 1) * len(view.own))
        return list(drawn.to(view.updates.device).reshape(self.tries - 1, len(view.own), 1))
