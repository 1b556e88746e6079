"""Inner-product manipulation of masks."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from fedbench.api import Alphabets, Attack, AttackView, Choices, Knowledge
from fedbench.core.errors import require
from fedbench.payload import BinaryMasks, Payload, SignBits

from .bits import masks_like, ones_of


@dataclass(frozen=True, kw_only=True)
class MaskIPM(Attack):
    """Colluders send bits of ``theta_m = clip(1/2 - eps (theta - 1/2), 0, 1)``.

    ``theta`` is the share of the known messages whose bit is 1, so at ``eps = 1`` that is
    ``1 - theta``: probabilities mirror at 1/2, where sending the negative mean has no meaning. The
    number of ones is that of the known messages, their mean rounded, over the whole message: a
    mask does not say where a layer ends, so the density of single layers is not kept. Floats stay
    the honest ones.

    Args:
        eps: How far from 1/2, on the other side.
        how: ``sample``: each colluder draws its own bits; ``threshold``: all the most probable.
        density: ``benign``: exactly that number of ones; ``free``: what the probabilities say.
        knows: Whose messages it reads: those of the ``colluders`` as if honest, or of ``all``
            benign clients.

    References:
        None: proposed here. The idea is inner-product manipulation (Xie, Koyejo and Gupta, "Fall
        of Empires", UAI 2019, https://arxiv.org/abs/1903.03936) in the space of probabilities.
    """

    accepts: ClassVar[Alphabets] = (BinaryMasks, SignBits)
    choices: ClassVar[Choices] = {
        "eps": (0.3, 3.0),
        "how": ("threshold",),
        "density": ("free",),
    }

    eps: float = 1.0
    how: Literal["sample", "threshold"] = "sample"
    density: Literal["benign", "free"] = "benign"
    knows: Literal["colluders", "all"] = "all"

    def __post_init__(self) -> None:
        require("MaskIPM.eps", self.eps, self.eps > 0, "> 0")

    def needs(self) -> Knowledge:
        """The messages that it reads."""
        return Knowledge(self.knows)

    def craft(self, view: AttackView, memory: Any) -> tuple[Payload, Any]:
        """Mirrored probabilities, then bits."""
        counts, b = ones_of(view)
        theta = counts.double() / b
        mirrored = (0.5 - self.eps * (theta - 0.5)).clamp_(0, 1)
        ones = round(float(counts.sum()) / b)
        return masks_like(view, mirrored, self.how, self.density, ones), memory
