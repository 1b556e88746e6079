"""A little is enough, for masks."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from fedbench.api import Alphabets, Attack, AttackView, Choices, Knowledge
from fedbench.core.errors import require
from fedbench.payload import BinaryMasks, Payload, SignBits

from .alie import largest_z
from .bits import masks_like, ones_of


@dataclass(frozen=True, kw_only=True)
class MaskALIE(Attack):
    """Colluders send bits of ``theta_m = clip(theta - z sigma, 0, 1)``, one bit each a coordinate.

    ``theta`` is the share of the known messages whose bit is 1, ``sigma = sqrt(theta (1 - theta))``
    their deviation (ddof 0, as a Bernoulli variable's). The number of ones is that of the known
    messages, their mean rounded, over the whole message: a mask does not say where a layer ends, so
    the density of single layers is not kept. With it what counts is the order of ``theta_m``:
    bits that the clients agree upon stay, ones that they do not are traded for others. Floats stay
    the honest ones.

    Args:
        z: Deviations; None: the paper's formula, see `alie.largest_z`, or 0 where that is negative.
        how: ``sample``: each colluder draws its own bits; ``threshold``: all the most probable.
        density: ``benign``: exactly that number of ones; ``free``: what the probabilities say.
        knows: Whose messages it reads: those of the ``colluders`` as if honest, or of ``all``
            benign clients.

    References:
        None: proposed here. The idea is ALIE (Baruch, Baruch and Goldberg, "A Little Is Enough",
        NeurIPS 2019, https://arxiv.org/abs/1902.06156) in the space of probabilities.
    """

    accepts: ClassVar[Alphabets] = (BinaryMasks, SignBits)
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

    def needs(self) -> Knowledge:
        """The messages that it reads."""
        return Knowledge(self.knows)

    def craft(self, view: AttackView, memory: Any) -> tuple[Payload, Any]:
        """Lowered probabilities, then bits."""
        counts, b = ones_of(view)
        z = max(0.0, largest_z(view.n, len(view.own))) if self.z is None else self.z
        view.notes["z"] = z
        theta = counts.double() / b
        lowered = (theta - z * (theta * (1 - theta)).sqrt_()).clamp_(0, 1)
        ones = round(float(counts.sum()) / b)
        return masks_like(view, lowered, self.how, self.density, ones), memory
