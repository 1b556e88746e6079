"""A little is enough, for masks."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from fedbench.api import AttackView, Choices
from fedbench.core.errors import require

from .alie import largest_z
from .bits import MaskVotes


@dataclass(frozen=True, kw_only=True)
class MaskALIE(MaskVotes):
    """Colluders send bits of ``theta_m = clip(theta - z sigma, 0, 1)``, one bit per coordinate.

    ``theta`` is the share of the messages read whose bit is 1, ``sigma = sqrt(theta (1 - theta))``
    their deviation (ddof 0, as a Bernoulli variable's). With ``density=benign`` only the order of
    ``theta_m`` counts: bits that the clients agree upon stay, others are traded. Floats stay
    honest.

    Args:
        z: Deviations; None: the paper's formula, see `alie.largest_z`, or 0 where that is negative.

    References:
        None: proposed here. The idea is ALIE (Baruch, Baruch and Goldberg, "A Little Is Enough",
        NeurIPS 2019, https://arxiv.org/abs/1902.06156) in the space of probabilities.
    """

    choices: ClassVar[Choices] = {
        "z": (0.5, 1.0, 3.0),
        "how": ("threshold",),
        "density": ("free",),
    }

    z: float | None = None
    how: Literal["sample", "threshold"] = "sample"
    density: Literal["benign", "free"] = "benign"
    knows: Literal["colluders", "all"] = "all"

    def __post_init__(self) -> None:
        require("MaskALIE.z", self.z, self.z is None or self.z >= 0, "None or >= 0")

    def changed(self, view: AttackView, theta: Tensor) -> Tensor:
        z = max(0.0, largest_z(view.n, len(view.own))) if self.z is None else self.z
        view.notes["z"] = z
        return (theta - z * (theta * (1 - theta)).sqrt_()).clamp_(0, 1)
