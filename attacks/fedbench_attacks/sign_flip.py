"""Sign flipping of updates."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from fedbench.api import AttackView, Choices, Knowledge
from fedbench.core.errors import require
from fedbench.payload import Payload

from .crafted import Reader, honest_mean, mirrored, sender


@dataclass(frozen=True, kw_only=True)
class SignFlip(Reader):
    """Every malicious client sends ``-scale`` times its own honest update, or times the mean.

    What is flipped is the update, never the weights (D13). Some public code sends the negative mean
    of all honest updates (``of=mean``), which is inner-product manipulation. Masks mirror at 1/2.

    Args:
        scale: Length of what is sent, in own updates or means.
        of: ``own``: each flips its own; ``mean``: all send minus the mean of the messages read.
        knows: Messages that ``of=mean`` reads: those of the benign clients (``all``), or those of
            its own clients as if honest (``colluders``).
        via: ``codec``: flip the dense update, then compress it honestly; ``wire``: flip the values
            of the honest message and send the closest legal one with its headers.

    References:
        Li et al., "RSA: Byzantine-Robust Stochastic Aggregation Methods for Distributed Learning
        from Heterogeneous Datasets", AAAI 2019, https://arxiv.org/abs/1811.03761, section on
        experiments ("sign-flipping attack", there with scale 4).
    """

    choices: ClassVar[Choices] = {"scale": (4.0, 10.0, 100.0), "of": ("mean",), "via": ("wire",)}

    scale: float = 1.0
    of: Literal["own", "mean"] = "own"
    knows: Literal["colluders", "all"] = "all"
    via: Literal["codec", "wire"] = "codec"

    def __post_init__(self) -> None:
        require("SignFlip.scale", self.scale, self.scale > 0, "> 0")

    @property
    def folds(self) -> bool:
        return True

    def needs(self) -> Knowledge:
        return Knowledge() if self.of == "own" else super().needs()

    def craft(self, view: AttackView, memory: Any) -> tuple[Payload, Any]:
        if self.of == "mean":
            mean = honest_mean(view, self.knows)
            if mean is None:
                return view.own, memory
            flipped = mirrored(view, mean, self.scale)
            return sender(view, self.via)(flipped), memory
        own = view.own
        if self.via == "wire":
            return own.nearest(own.opposite(own.values(), self.scale)), memory
        x = view.updates
        flipped = own.opposite(x, self.scale) if own.aligned else -self.scale * x
        return view.compress(flipped), memory
