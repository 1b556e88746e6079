"""Trying seeds for the one that serves the adversary best."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.linalg import vector_norm

from fedbench.api import Attack, AttackView, Choices
from fedbench.core.errors import require
from fedbench.payload import NoiseMasks, Payload, RotatedLevels, SeededSparse
from fedbench.protocols.eden import rotated


@dataclass(frozen=True, kw_only=True)
class SeedGrinding(Attack):
    """Try ``tries`` seeds, and send the message that is closest to the opposite of the own update.

    Where a client chooses the seed of its rotation, noise or indices, it may choose it for its
    effect. With each seed, a rotated update is encoded as an honest client would, coordinates are
    as long as the honest message, and masked noise is the closest mask. The own seed is the first
    try.

    Args:
        tries: Number of seeds that are tried.

    References:
        None: proposed here. The idea is that a codec's side information is the client's to choose.
    """

    accepts = (NoiseMasks, RotatedLevels, SeededSparse)
    choices: ClassVar[Choices] = {"tries": (4, 64)}

    tries: int = 16

    def __post_init__(self) -> None:
        require("SeedGrinding.tries", self.tries, 1 <= self.tries <= 10**4, "in [1, 10000]")

    def craft(self, view: AttackView, memory: Any) -> tuple[Payload, Any]:
        """Send row by row the best of the tries."""
        return best_seeds(view, -view.updates.to(torch.float32), self.tries, encoded)[0], memory


def best_seeds(
    view: AttackView, target: Tensor, tries: int, message: Callable[[Tensor, Any], Any]
) -> tuple[Any, list[float]]:
    """Return the messages closest to ``target (m, k)``, and the mean distance after each try.

    Each row keeps the seed whose message, ``message(target, own with that seed)``, has values at
    the least distance from its target.
    """
    best: Any = view.own
    m = len(best)
    drawn = view.key.fold("seeds").bits((tries - 1) * m).to(best.seeds.device)
    least = torch.full((m,), torch.inf, dtype=torch.float64)
    distances = []
    for seeds in [best.seeds, *drawn.reshape(tries - 1, m, 1)]:
        trial = message(target, dataclasses.replace(view.own, seeds=seeds))  # type: ignore[call-arg]
        distance = (trial.values().double() - target).square().sum(dim=1).sqrt().cpu()
        better = (distance < least).nonzero()[:, 0]
        best = best.put(better, trial.take(better))
        least = torch.minimum(distance, least)
        distances.append(float(least.mean()))
    view.notes["tries"] = tries
    return best, distances


def encoded(target: Tensor, own: Any) -> Any:
    """Return the message for ``target (m, d + p)`` with the seeds of ``own``."""
    if isinstance(own, RotatedLevels):
        d = own.levels.shape[1]
        return rotated(target[:, :d], target[:, d:], own.seeds, own.bits, own.block, "unbiased")
    trial = own.nearest(target)
    if not isinstance(trial, SeededSparse):
        return trial
    lengths = vector_norm(own.entries, dim=1) / vector_norm(trial.entries, dim=1).clamp_min(1e-30)
    return dataclasses.replace(trial, entries=trial.entries * lengths[:, None])
