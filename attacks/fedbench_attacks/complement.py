"""The complement of a mask."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from fedbench.api import Attack, AttackView, Choices, Knowledge
from fedbench.payload import BinaryMasks, NoiseMasks, Payload, SignBits

from .bits import bits_of, with_bits


@dataclass(frozen=True, kw_only=True)
class Complement(Attack):
    """Every colluder sends ``1 - b`` with the bits b of its own message, or of their majority.

    The majority is 1 where more than half of the colluders' honest bits are, so a tie is sent as 1.
    Floats, seeds and scales stay honest. Bits over noise of different seeds do not vote for the
    same thing: those are complemented one by one, recorded.

    Args:
        of: ``own``: each complements its own bits; ``majority``: all send the same bits.

    References:
        None: proposed here. The idea is the sign flip, for bits.
    """

    accepts = (BinaryMasks, NoiseMasks, SignBits)
    choices: ClassVar[Choices] = {"of": ("own",)}

    of: Literal["own", "majority"] = "majority"

    def needs(self) -> Knowledge:
        return Knowledge("own" if self.of == "own" else "colluders")

    def craft(self, view: AttackView, memory: Any) -> tuple[Payload, Any]:
        own = bits_of(view.own)
        majority = self.of == "majority" and not isinstance(view.own, NoiseMasks)
        view.notes["of"] = "majority" if majority else "own"
        b = 2 * own.sum(dim=0) > len(own) if majority else own
        return with_bits(view.own, ~b), memory
