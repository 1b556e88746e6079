"""A little is enough (ALIE)."""

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import ClassVar

import torch
from torch import Tensor

from fedbench.api import AttackView, Choices
from fedbench.core.errors import require
from fedbench.payload import FoldedMessages

from .crafted import TwoSided, direction, mean_of

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
class ALIE(TwoSided):
    """All colluders send ``mean - z * std`` or ``mean + z * std`` (ddof 1).

    Both are within what honest clients differ anyway. The paper reads the colluders' own messages
    (``knows=colluders``) and adds ``z * std``; minus is the sign of later papers. Here the side is
    the one against what the adversary's own clients learned, see `against`. With a single message
    the push is minus the sign of the mean.

    Args:
        z: Number of deviations, by default that of the authors' code; None: the formula of the
            paper, see `largest_z`. It is about 0 in small rounds with few colluders (0 for 2 of
            10), where what is sent is the mean and helps the server.

    References:
        Baruch, Baruch and Goldberg, "A Little Is Enough: Circumventing Defenses For Distributed
        Learning", NeurIPS 2019, https://arxiv.org/abs/1902.06156, the one that stops convergence.
    """

    choices: ClassVar[Choices] = {"z": (None, 0.5, 1.0, 2.5, 5.0)}

    z: float | None = 1.5

    def __post_init__(self) -> None:
        require("ALIE.z", self.z, self.z is None or math.isfinite(self.z), "None or finite")

    @property
    def folds(self) -> bool:
        return True

    @property
    def reads_squares(self) -> bool:
        return True

    @property
    def reads_updates(self) -> bool:
        return self.side == "worse"

    def sided(
        self, view: AttackView, honest: Tensor | FoldedMessages, sides: tuple[int, ...]
    ) -> tuple[Tensor, int]:
        z = largest_z(view.n, view.m) if self.z is None else self.z
        view.notes["z"] = z
        mean = mean_of(view, honest)
        push = direction(view, honest, mean, "std")
        side = sides[0] if len(sides) == 1 else against(view, push)
        strength = z if self.side == "minus" else abs(z)  # a worse side leaves nothing to a sign
        return mean + side * strength * push, side


def against(view: AttackView, push: Tensor) -> int:
    """Return -1 if ``push (k,)`` points where the adversary's own clients learned to go, or 1.

    To first order a model gets worse on the other side. What they learned is the mean of their
    updates, less those of clients that learned nothing. A cosine that chance would give, below
    three standard deviations ``1 / sqrt(k)``, and values that are no updates decide nothing: 1.
    """
    learned = (view.updates - view.idle).mean(dim=0).to(torch.float64)
    if not view.own.aligned or len(learned) != len(push):
        return 1
    along = float(learned @ push.to(torch.float64))
    lengths = float(torch.linalg.vector_norm(learned)) * float(
        torch.linalg.vector_norm(push, dtype=torch.float64)
    )
    return -1 if along * math.sqrt(len(push)) > 3 * lengths else 1
