"""A little is enough, with the strength that hurts most."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedbench.api import AttackView

from .crafted import direction
from .trials import Searched


@dataclass(frozen=True, kw_only=True)
class OptALIE(Searched):
    """All colluders send ``mean - gamma * std`` (ddof 1), with the gamma of most damage.

    Damage is ``|agg - mean|``, and a negative gamma, on the other side of the mean, is played where
    it does more. Unlike `DynOpt` it does not insist that a rule that selects rows takes a
    colluder's. Where damage has no limit, ``bound`` is played. With a single message the push is
    minus the sign of the mean, recorded.

    References:
        Allouah et al., "Fixing by Mixing: A Recipe for Optimal Byzantine ML under Heterogeneity",
        AISTATS 2023, https://arxiv.org/abs/2302.01772, section on experiments, where the strength
        of this attack is optimized by a line search.
    """

    sides: ClassVar[tuple[int, ...]] = (1, -1)

    def push(self, view: AttackView, honest: Tensor, mean: Tensor) -> Tensor:
        return direction(view, honest, mean, "std")
