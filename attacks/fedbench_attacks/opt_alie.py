"""A little is enough, of the strength that hurts most."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedbench.api import AttackView

from .crafted import direction
from .searched import Searched


@dataclass(frozen=True, kw_only=True)
class OptALIE(Searched):
    """All colluders send ``mean - gamma * std`` (ddof 1), with the gamma of most damage.

    Damage is ``|agg - mean|``, and a negative gamma, on the other side of the mean, is played where
    it does more. The `DynOpt` of that direction insists that a rule that selects rows takes one of
    the colluders'. Where damage has no limit, ``bound``: against the plain mean a search with a
    larger bound does more. Fewer than two known rows have no deviation: the push is then minus the
    sign of the mean, recorded.

    References:
        Allouah et al., "Fixing by Mixing: A Recipe for Optimal Byzantine ML under Heterogeneity",
        AISTATS 2023, https://arxiv.org/abs/2302.01772, section on experiments, where the strength
        of this attack is optimized by a line search.
    """

    sides: ClassVar[tuple[int, ...]] = (1, -1)

    def push(self, view: AttackView, known: Tensor, mean: Tensor) -> Tensor:
        """Minus the deviation."""
        return direction(view, known, mean, "std")
