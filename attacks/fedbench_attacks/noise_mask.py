"""Seed and mask of a noise mask, chosen together."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from fedbench.api import AttackView, Choices
from fedbench.core.errors import require
from fedbench.payload import NoiseMasks, Payload

from .crafted import Reader, honest_rows
from .seed_grinding import best_seeds


@dataclass(frozen=True, kw_only=True)
class NoiseMask(Reader):
    """Send the one of ``tries`` seeds whose best mask is closest to ``-scale`` times the mean.

    The mean is that of the messages read. The best mask over a seed's noise is the closest in L2,
    bit by bit; its distance over weights and floats decides between the seeds, for each colluder by
    itself. The own seed is the first try. Floats are those of the target.

    Args:
        scale: Factor of the negative mean.
        seed: ``choose``, or the ``own`` one: then only the mask is chosen.
        tries: Number of seeds that are tried.

    References:
        None: proposed here. The idea is that FedMRN leaves both, seed and mask, to the client.
    """

    accepts = (NoiseMasks,)
    choices: ClassVar[Choices] = {"scale": (0.3, 3.0, 10.0), "tries": (1, 32)}

    scale: float = 1.0
    seed: Literal["own", "choose"] = "choose"
    tries: int = 8
    knows: Literal["colluders", "all"] = "all"

    def __post_init__(self) -> None:
        require("NoiseMask.scale", self.scale, self.scale > 0, "> 0")
        require("NoiseMask.tries", self.tries, 1 <= self.tries <= 10**4, "in [1, 10000]")

    def craft(self, view: AttackView, memory: Any) -> tuple[Payload, Any]:
        """Send the closest mask; the trace has the least mean distance after each seed."""
        honest = honest_rows(view)
        if honest is None:
            return view.own, memory
        target = (-self.scale * honest.mean(dim=0)).expand(len(view.own), -1)
        tries = self.tries if self.seed == "choose" else 1
        best, distances = best_seeds(view, target, tries, lambda x, own: own.nearest(x))
        view.trace.extend((float(number), distance) for number, distance in enumerate(distances))
        return best, memory
