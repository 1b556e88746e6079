"""Attacks on means of reals, in the space of the probabilities behind masks and signs."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from fedbench.api import AttackView, Choices
from fedbench.core.errors import require
from fedbench.core.order_statistics import largest
from fedbench.core.rng import Key
from fedbench.payload import BinaryMasks, Payload, SignBits

from .alie import largest_z
from .bits import ones_of, with_bits
from .crafted import Reader


class MaskVotes(Reader):
    """Colluders send bits that follow a changed share of ones.

    ``theta (d,)`` is the share of the messages read whose bit is 1, float64. Floats stay honest.

    Args:
        how: ``sample``: each colluder draws its own bits; ``threshold``: all the most probable.
        density: ``benign``: as many ones as the messages read, their mean rounded, over the whole
            message (a mask does not say where a layer ends); ``free``: what the probabilities give.
    """

    accepts = (BinaryMasks, SignBits)

    how: Literal["sample", "threshold"]
    density: Literal["benign", "free"]

    def changed(self, view: AttackView, theta: Tensor) -> Tensor:
        """Return the probabilities ``(d,)`` of a 1 that the colluders follow."""
        raise NotImplementedError

    def craft(self, view: AttackView, memory: Any) -> tuple[Payload, Any]:
        """Draw or threshold the changed probabilities.

        With ``density=benign`` exactly so many bits are 1: the most probable ones, equals in an
        order of the adversary's key, or a sample of that size, the largest of ``logit(theta) +
        logistic noise`` (Pareto sampling: Rosen, Journal of Statistical Planning and Inference 62,
        1997); a Bernoulli sample is where that sum is above 0.
        """
        counts, b = ones_of(view)
        theta = self.changed(view, counts.double() / b)
        ones = round(float(counts.sum()) / b)
        rows = len(view.own)
        key = view.key.fold("mask")
        if self.density == "free" and self.how == "threshold":
            bits = theta[None] > 0.5
        elif self.density == "free":
            bits = key.bernoulli(theta.expand(rows, -1))
        elif self.how == "threshold":
            tie = key.uniform(len(theta), device=theta.device)
            bits = largest((theta + 1e-6 * tie)[None], ones)
        else:
            bits = largest(_log_odds(theta, key, rows), ones)
        return with_bits(view.own, bits), memory


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

    choices: ClassVar[Choices] = {"z": (0.5, 1.0, 3.0), "how": ("threshold",), "density": ("free",)}

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


def _log_odds(theta: Tensor, key: Key, rows: int) -> Tensor:
    """Return ``(rows, d)``; the clip keeps certain bits certain: 24-bit draws reach +-17.4 only."""
    u = key.uniform(rows, len(theta), device=theta.device).double() + 2.0**-25
    return torch.logit(theta, eps=1e-16) + torch.logit(u)
