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

    A small ``eps`` (0.1) hides near the honest messages and turns rules that select or take the
    middle; a large one turns what averages, a plain mean as soon as ``eps > (n - m) / m``. Binary
    masks and the probabilities behind them mirror at 1/2: ``1/2 - eps * (mean - 1/2)``.

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
