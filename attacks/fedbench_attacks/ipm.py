"""Inner-product manipulation (IPM, "fall of empires")."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedbench.api import AttackView, Choices
from fedbench.core.errors import require

from .crafted import Crafted, mirrored


@dataclass(frozen=True, kw_only=True)
class IPM(Crafted):
    """All colluders send ``-eps * mean``, so that the aggregate points away from the honest mean.

    Two regimes: with a small ``eps`` (0.1) the message hides near the honest ones and turns rules
    that select or take the middle; with a large one (100) it turns whatever averages: a plain mean
    changes its sign as soon as ``eps > (n - m) / m``. Binary masks and the probabilities behind
    them mirror at 1/2: ``1/2 - eps * (mean - 1/2)``.

    Args:
        eps: Distance on the other side of zero, in means.

    References:
        Xie, Koyejo and Gupta, "Fall of Empires: Breaking Byzantine-tolerant SGD by Inner Product
        Manipulation", UAI 2019, https://arxiv.org/abs/1903.03936, attacks on the median and Krum.
    """

    choices: ClassVar[Choices] = {"eps": (0.1, 1.0, 2.0, 10.0, 100.0)}

    eps: float = 0.5

    def __post_init__(self) -> None:
        require("IPM.eps", self.eps, self.eps > 0, "> 0")

    def rows(self, view: AttackView, honest: Tensor) -> Tensor:
        return mirrored(view, honest.mean(dim=0), self.eps)
