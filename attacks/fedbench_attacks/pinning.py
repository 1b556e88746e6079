"""The same wrong mask until the server forgets."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from fedbench.api import AttackView, Choices
from fedbench.core.errors import require
from fedbench.payload import BinaryMasks, Payload

from .bits import ones_of, with_bits
from .crafted import Reader


@dataclass(frozen=True, kw_only=True)
class Pinning(Reader):
    """Colluders send the complement of the majority that they saw first in this reset period.

    A Beta posterior counts the masks of all rounds since its last reset (FedPM's equations 3 and
    4): a client that sends the same mask in all of them adds to one side of every weight, where
    honest masks follow what the server sends. The majority is 1 where more than half of the masks
    read are, so a tie is sent as 1. Neither the broadcast nor a mask tells when the server forgot:
    rounds ``0, period, 2 period, ...`` start afresh, as with FedPM's ``resets=every:period`` while
    no round is skipped. Floats stay honest.

    Args:
        period: Number of rounds between resets.

    References:
        None: proposed here. The idea is that a posterior that accumulates rewards persistence.
    """

    accepts = (BinaryMasks,)
    choices: ClassVar[Choices] = {"period": (2, 5)}

    period: int = 1
    knows: Literal["colluders", "all"] = "all"

    def __post_init__(self) -> None:
        require("Pinning.period", self.period, self.period >= 1, ">= 1")

    def craft(self, view: AttackView, memory: Any) -> tuple[Payload, Any]:
        """Send the pinned mask; memory is the period and the mask that is pinned in it."""
        now = view.step // self.period
        view.notes["pinned"] = memory is None or memory[0] != now
        if view.notes["pinned"]:
            counts, b = ones_of(view)
            memory = now, 2 * counts <= b
        return with_bits(view.own, memory[1]), memory
