"""The complement of a mask."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from fedbench.api import Alphabets, Attack, AttackView, Choices, Knowledge
from fedbench.payload import BinaryMasks, NoiseMasks, Payload, SignBits

from .bits import bits_of, with_bits


@dataclass(frozen=True, kw_only=True)
class Complement(Attack):
    """Every colluder sends ``1 - b`` with the bits b of its own message, or of their majority.

    The majority is 1 where more than half of the colluders' honest bits are, so a tie is sent as 1.
    Floats, seeds and scales stay the honest ones. Bits over noise of different seeds are no votes
    for the same thing: those are complemented one by one, recorded. The analogue of a sign flip
    for bits; proposed here, no published source.

    Args:
        of: ``own``: each its own bits; ``majority``: all the same ones.

    References:
        None: proposed here. The idea is that the opposite of a mask is its complement.
    """

    accepts: ClassVar[Alphabets] = (BinaryMasks, NoiseMasks, SignBits)
    choices: ClassVar[Choices] = {"of": ("own",)}

    of: Literal["own", "majority"] = "majority"

    def needs(self) -> Knowledge:
        """Its own message, or those of the colluders."""
        return Knowledge("own" if self.of == "own" else "colluders")

    def craft(self, view: AttackView, memory: Any) -> tuple[Payload, Any]:
        """``1 - b``."""
        own = bits_of(view.own)
        majority = self.of == "majority" and not isinstance(view.own, NoiseMasks)
        view.notes["of"] = "majority" if majority else "own"
        b = 2 * own.sum(dim=0) > len(own) if majority else own
        return with_bits(view.own, ~b), memory
