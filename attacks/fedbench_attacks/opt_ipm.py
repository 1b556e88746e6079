"""Inner-product manipulation with the strength that hurts most."""

from dataclasses import dataclass

from torch import Tensor

from fedbench.api import AttackView

from .crafted import mirrored
from .trials import Searched


@dataclass(frozen=True, kw_only=True)
class OptIPM(Searched):
    """All colluders send ``(1 - gamma) * mean``, with the gamma of most damage ``|agg - mean|``.

    So ``eps = gamma - 1`` in the letters of `IPM`: a gamma below 1 only shrinks the mean. Where
    damage has no limit, ``bound`` is played. Masks and the probabilities behind them shrink towards
    1/2.

    References:
        Allouah et al., "Fixing by Mixing: A Recipe for Optimal Byzantine ML under Heterogeneity",
        AISTATS 2023, https://arxiv.org/abs/2302.01772, section on experiments, where the strength
        of this attack ("fall of empires") is optimized by a line search.
    """

    def push(self, view: AttackView, honest: Tensor, mean: Tensor) -> Tensor:
        return mirrored(view, mean, 0.0) - mean
