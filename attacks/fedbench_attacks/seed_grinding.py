"""The seed that serves the adversary best."""

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedbench.api import Alphabets, Attack, AttackView, Choices
from fedbench.core.errors import require
from fedbench.payload import NoiseMasks, Payload, RotatedLevels, SeededSparse
from fedbench.protocols.eden import rotated


@dataclass(frozen=True, kw_only=True)
class SeedGrinding(Attack):
    """Try ``tries`` seeds for the opposite of the own update, send the message that says it best.

    Where a client chooses the seed of its rotation, noise or indices, it may choose it for its
    effect: here the one whose message is closest to ``-u``. With each seed, a rotated update is
    encoded as an honest client would, coordinates are as long as the honest message, and masked
    noise is the closest mask. The own seed is the first try. Proposed here, no published source.

    Args:
        tries: Seeds that are tried.

    References:
        None; the idea is that a codec's side information is the client's to choose.
    """

    accepts: ClassVar[Alphabets] = (NoiseMasks, RotatedLevels, SeededSparse)
    choices: ClassVar[Choices] = {"tries": (4, 64)}

    tries: int = 16

    def __post_init__(self) -> None:
        require("SeedGrinding.tries", self.tries, 1 <= self.tries <= 10**4, "in [1, 10000]")

    def craft(self, view: AttackView, memory: Any) -> tuple[Payload, Any]:
        """Row by row the best of the tries."""
        own: Any = view.own
        target = -view.updates.to(torch.float32)
        best, least = own, torch.full((len(own),), torch.inf, dtype=torch.float64)
        for seeds in [own.seeds, *self._others(view)]:
            trial = said(target, dataclasses.replace(own, seeds=seeds))
            distance = (trial.values().double() - target).square().sum(dim=1).cpu()
            better = (distance < least).nonzero()[:, 0]
            best = best.put(better, trial.take(better))
            least = torch.minimum(distance, least)
        view.notes["tries"] = self.tries
        return best, memory

    def _others(self, view: AttackView) -> list[Tensor]:
        drawn = view.key.fold("seeds").bits((self.tries - 1) * len(view.own))
        return list(drawn.to(view.updates.device).reshape(self.tries - 1, len(view.own), 1))


def said(target: Tensor, own: Any) -> Any:
    """What a message with the seeds of ``own`` says of ``target (m, d + p)``."""
    if isinstance(own, RotatedLevels):
        d = own.levels.shape[1]
        x, rest = target[:, :d], target[:, d:]
        return rotated(x, rest, own.seeds, own.bits, own.block, "unbiased")
    trial = own.nearest(target)
    if not isinstance(trial, SeededSparse):
        return trial
    norm = torch.linalg.vector_norm
    lengths = norm(own.entries, dim=1) / norm(trial.entries, dim=1).clamp_min(1e-30)
    return dataclasses.replace(trial, entries=trial.entries * lengths[:, None])
