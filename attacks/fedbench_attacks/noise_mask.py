"""Seed and mask, chosen together."""

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch

from fedbench.api import Alphabets, Attack, AttackView, Choices, Knowledge
from fedbench.core.errors import require
from fedbench.payload import NoiseMasks, Payload

from .crafted import known_rows


@dataclass(frozen=True, kw_only=True)
class NoiseMask(Attack):
    """Of ``tries`` seeds the one whose best mask is closest to ``-scale`` times the known mean.

    The best mask over a seed's noise is the closest in L2, bit by bit; its distance over weights
    and floats decides between the seeds, for each colluder by itself. The own seed is the first
    try, so a chosen one is never farther than the own. Floats are those of the target.

    Args:
        scale: Times the negative mean of the known messages' values.
        seed: ``choose``, or the ``own`` one: then only the mask is chosen.
        tries: Seeds that are tried.
        knows: Whose messages it reads: those of the ``colluders`` as if honest, or of ``all``
            benign clients.

    References:
        None: proposed here. The idea is that FedMRN leaves both, seed and mask, to the client.
    """

    accepts: ClassVar[Alphabets] = (NoiseMasks,)
    choices: ClassVar[Choices] = {"scale": (0.3, 3.0, 10.0), "tries": (1, 32)}

    scale: float = 1.0
    seed: Literal["own", "choose"] = "choose"
    tries: int = 8
    knows: Literal["colluders", "all"] = "all"

    def __post_init__(self) -> None:
        require("NoiseMask.scale", self.scale, self.scale > 0, "> 0")
        require("NoiseMask.tries", self.tries, 1 <= self.tries <= 10**4, "in [1, 10000]")

    def needs(self) -> Knowledge:
        """The messages that it reads."""
        return Knowledge(self.knows)

    def craft(self, view: AttackView, memory: Any) -> tuple[Payload, Any]:
        """Seed by seed the closest mask; the trace has the least mean distance so far."""
        own, known = view.own, known_rows(view)
        assert isinstance(own, NoiseMasks)
        if known is None:
            return own, memory
        rows, device = len(own), own.seeds.device
        target = (-self.scale * known.mean(dim=0)).expand(rows, -1)
        tries = self.tries if self.seed == "choose" else 1
        drawn = view.key.fold("seeds").bits((tries - 1) * rows).to(device)
        best, least = own, torch.full((rows,), torch.inf, dtype=torch.float64)
        for number, seeds in enumerate([own.seeds, *drawn.reshape(-1, rows, 1)]):
            trial = dataclasses.replace(own, seeds=seeds).nearest(target)
            distance = (trial.values().double() - target).square().sum(dim=1).sqrt().cpu()
            better = (distance < least).nonzero()[:, 0]
            best = best.put(better, trial.take(better))
            least = torch.minimum(least, distance)
            view.trace.append((float(number), float(least.mean())))
        view.notes["tries"] = tries
        return best, memory
