"""A little is enough (ALIE)."""

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import ClassVar

from torch import Tensor

from fedbench.api import AttackView, Choices
from fedbench.core.errors import require

from .crafted import Crafted, direction

FARTHEST = 4.0  # largest z: fewer than 31,000 benign clients never give more


def largest_z(n: int, m: int) -> float:
    """Return ``z`` in [-4, 4] with ``Phi(z) = (n - m - s) / (n - m)``.

    ``s = floor(n / 2 + 1) - m`` is the number of benign clients that the adversary needs for a
    majority. It is 4 where it needs none, -4 where ``n <= 2``, 0 without benign clients, and
    negative with an even ``n`` and few colluders: the push goes the other way.

    >>> round(largest_z(50, 12), 4), round(largest_z(10, 1), 4), largest_z(10, 6), largest_z(3, 3)
    (0.336, -0.1397, 4.0, 0.0)
    """
    if n == m:
        return 0.0
    share = (n - m - (math.floor(n / 2 + 1) - m)) / (n - m)
    if not 0 < share < 1:
        return FARTHEST if share >= 1 else -FARTHEST
    return max(-FARTHEST, min(FARTHEST, NormalDist().inv_cdf(share)))


@dataclass(frozen=True, kw_only=True)
class ALIE(Crafted):
    """All colluders send ``mean - z * std`` (ddof 1), within what honest clients differ anyway.

    The paper reads the colluders' own messages (``knows=colluders``) and adds ``z * std``; minus is
    the sign of later papers. With a single message the push is minus the sign of the mean.

    Args:
        z: Number of deviations; None: the formula of the paper, see `largest_z`.

    References:
        Baruch, Baruch and Goldberg, "A Little Is Enough: Circumventing Defenses For Distributed
        Learning", NeurIPS 2019, https://arxiv.org/abs/1902.06156, the one that stops convergence.
    """

    choices: ClassVar[Choices] = {"z": (0.5, 1.0, 1.5, 2.5, 5.0)}

    z: float | None = None

    def __post_init__(self) -> None:
        require("ALIE.z", self.z, self.z is None or math.isfinite(self.z), "None or finite")

    def rows(self, view: AttackView, honest: Tensor) -> Tensor:
        z = largest_z(view.n, len(view.own)) if self.z is None else self.z
        view.notes["z"] = z
        mean = honest.mean(dim=0)
        return mean + z * direction(view, honest, mean, "std")
