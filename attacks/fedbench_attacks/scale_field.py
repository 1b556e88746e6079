"""A codec's scale that is far too large."""

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

from fedbench.api import Attack, AttackView, Choices
from fedbench.core.errors import require
from fedbench.payload import Levels, Payload, RotatedLevels, ScaledSigns


@dataclass(frozen=True, kw_only=True)
class ScaleField(Attack):
    """Flip the symbols, keep them plausible, and send ``factor`` times the honest scales.

    The symbols are those of the opposite update, a scale is a legal float32: only its size could
    give the message away, and no alphabet limits that as long as its values are finite. A factor
    that overflows sends the largest float32, which a server that checks may reject.

    Args:
        factor: Factor of every scale of the message.

    References:
        None: proposed here. The idea is that a codec's side information is the client's to choose.
    """

    accepts = (Levels, RotatedLevels, ScaledSigns)
    choices: ClassVar[Choices] = {"factor": (10.0, 1e3)}

    factor: float = 1e6

    def __post_init__(self) -> None:
        require("ScaleField.factor", self.factor, self.factor > 0, "> 0")

    def craft(self, view: AttackView, memory: Any) -> tuple[Payload, Any]:
        own = view.own
        assert isinstance(own, Levels | RotatedLevels | ScaledSigns)
        flipped = own.nearest(own.opposite(own.values()))
        scales = (flipped.scales.double() * self.factor).clamp(max=3.4e38)
        return dataclasses.replace(flipped, scales=scales.to(flipped.scales)), memory
