"""Inner-product manipulation (IPM, "fall of empires")."""

from dataclasses import dataclass
from typing import Any, ClassVar

from fedbench.api import AttackView, Choices
from fedbench.core.errors import require
from fedbench.payload import Payload

from .crafted import Sender, honest_mean, mirrored, sender


@dataclass(frozen=True, kw_only=True)
class IPM(Sender):
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

    @property
    def folds(self) -> bool:
        return True

    def craft(self, view: AttackView, memory: Any) -> tuple[Payload, Any]:
        mean = honest_mean(view, self.knows)
        if mean is None:
            return view.own, memory
        return sender(view, self.via)(mirrored(view, mean, self.eps)), memory
