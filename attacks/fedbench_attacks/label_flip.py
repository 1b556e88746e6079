"""Label flipping in the local data."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedbench.api import Attack, Choices, Local
from fedbench.core.errors import require, require_label


@dataclass(frozen=True, kw_only=True)
class LabelFlip(Attack):
    """Train honestly on local data whose labels are flipped, and send the resulting update.

    All local samples are flipped. With ``C`` classes ``mirror`` turns ``y`` into ``C - 1 - y``,
    ``next`` into ``(y + 1) mod C``, and ``pair`` turns ``source`` into ``target`` and leaves the
    others. What is sent is the update of that training, never weights nor an honest mean (D13).

    Args:
        convention: ``mirror``, ``next`` or ``pair``.
        source: Label that ``pair`` turns.
        target: Label that ``pair`` turns it into.

    References:
        Tolpegin et al., "Data Poisoning Attacks Against Federated Learning Systems", ESORICS 2020,
        https://arxiv.org/abs/2007.08432, section on label flipping (``pair``); Biggio, Nelson and
        Laskov, "Support Vector Machines Under Adversarial Label Noise", ACML 2011. The other two
        are what code bases do with more than two classes.
    """

    choices: ClassVar[Choices] = {"convention": ("next", "pair")}

    convention: Literal["mirror", "next", "pair"] = "mirror"
    source: int = 3
    target: int = 7

    def __post_init__(self) -> None:
        require("LabelFlip.source", self.source, self.source >= 0, ">= 0")
        fits = self.target >= 0 and self.target != self.source
        require("LabelFlip.target", self.target, fits, ">= 0, and not the source")

    def require_samples(self, image: tuple[int, ...], classes: int) -> None:
        if self.convention == "pair":
            require_label("LabelFlip.source", self.source, classes)
            require_label("LabelFlip.target", self.target, classes)

    def poison(self, xs: Tensor, ys: Tensor, local: Local) -> tuple[Tensor, Tensor]:
        if self.convention == "mirror":
            return xs, local.classes - 1 - ys
        if self.convention == "next":
            return xs, (ys + 1) % local.classes
        return xs, torch.where(ys == self.source, self.target, ys)
