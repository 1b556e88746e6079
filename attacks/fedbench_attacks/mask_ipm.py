"""Inner-product manipulation of masks."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from fedbench.api import AttackView, Choices
from fedbench.core.errors import require

from .bits import MaskVotes


@dataclass(frozen=True, kw_only=True)
class MaskIPM(MaskVotes):
    """Colluders send bits of ``theta_m = clip(1/2 - eps (theta - 1/2), 0, 1)``.

    ``theta`` is the share of the messages read whose bit is 1, so at ``eps = 1`` that is
    ``1 - theta``: probabilities mirror at 1/2, where sending the negative mean has no meaning.
    Floats stay honest.

    Args:
        eps: Distance from 1/2, on the other side, in distances of the messages read.

    References:
        None: proposed here. The idea is inner-product manipulation (Xie, Koyejo and Gupta, "Fall
        of Empires", UAI 2019, https://arxiv.org/abs/1903.03936) in the space of probabilities.
    """

    choices: ClassVar[Choices] = {"eps": (0.3, 3.0), "how": ("threshold",), "density": ("free",)}

    eps: float = 1.0
    how: Literal["sample", "threshold"] = "sample"
    density: Literal["benign", "free"] = "benign"
    knows: Literal["colluders", "all"] = "all"

    def __post_init__(self) -> None:
        require("MaskIPM.eps", self.eps, self.eps > 0, "> 0")

    def changed(self, view: AttackView, theta: Tensor) -> Tensor:
        return (0.5 - self.eps * (theta - 0.5)).clamp_(0, 1)
