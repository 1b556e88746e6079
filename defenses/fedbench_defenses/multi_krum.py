"""Krum and Multi-Krum, scored once, again after each pick, or as published attacks have it."""

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from fedbench.api import Traits
from fedbench.core.errors import require

from .distances import krum_order, krum_picks, nearest_others
from .selection import Selection

Variant = Literal["canonical", "recursive", "public"]


def breakdown(n: int, f: int, m: int, variant: Variant) -> int:
    """Return exactly how many of ``n`` rows may be anything while ``m`` picks stay bounded.

    Of ``b`` far rows a benign row has ``b - f - 1`` as neighbours (or none). Up to ``b = f + 1``
    that is 0. For ``f + 2`` it is one, the nearest far row, which must be closer than two: ``n >= 2
    f + 5``. With ``f + 3`` the nearest far row hides behind two farther ones on its ray.

    Scored again, a pick is the first of a Krum on the rows that are left, ``n - m + 1`` for the
    last one; a row that is its own neighbour leaves as many others as ``f + 1`` does.

    >>> [breakdown(15, 3, m, "canonical") for m in (1, 12, 13)]
    [5, 3, 2]
    >>> breakdown(15, 3, 7, "recursive"), breakdown(15, 3, 12, "recursive")
    (4, 1)
    >>> breakdown(15, 3, 7, "public")
    3
    """
    last = n if variant == "canonical" else n - m + 1
    f += variant == "public"
    alone = int(last >= 3)  # a single far row is nobody's only neighbour
    bounded = f + 2 if last >= 2 * f + 5 else max(min(f + 1, last - f - 2), alone)
    return max(min(bounded, n - m), 0)


@dataclass(frozen=True, kw_only=True)
class MultiKrum(Selection):
    """Average the ``m`` rows with the lowest Krum scores.

    A row's score is the paper's: the sum of *squared* distances to its ``n - f - 2`` nearest rows,
    self excluded. Public code has at least four other scores (D1). ``canonical`` scores once.
    ``recursive`` takes one row and scores again those that are left, of which ``n`` counts fewer
    each time; where no neighbour would be left for the sum it has one. ``public`` is the code of
    Shejwalkar and Houmansadr's attacks (A5): recursive, and a row counts as a neighbour of itself,
    at distance 0. Among equal scores the row wins that is nearer to all, then the lower one (the
    paper: the lower one). Ignores the clients' sizes.

    Args:
        f: Malicious rows the server is prepared for; ``n >= 2 f + 3``.
        m: Number of rows to average. Default ``n - f``; for the other variants ``n - 2 f - 2``,
            where the public code stops, the last pick for which ``n > 2 f + 2`` still holds.
        variant: ``canonical``, ``recursive`` or ``public`` (above).

    References:
        Blanchard et al., "Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent",
        NeurIPS 2017, https://arxiv.org/abs/1703.02757, section 4 and, for ``m``, section 6;
        Shejwalkar and Houmansadr, "Manipulating the Byzantine", NDSS 2021,
        https://github.com/vrt1shjwlkr/NDSS21-Model-Poisoning, for ``public``.
    """

    f: int | None = None
    m: int | None = None
    variant: Variant = "canonical"

    def __post_init__(self) -> None:
        super().__post_init__()
        require("MultiKrum.m", self.m, self.m is None or self.m >= 1, ">= 1")

    def _picks(self, n: int) -> int:
        f = self.f or 0
        default = n - f if self.variant == "canonical" else n - 2 * f - 2
        return max(self.m or default, 1)

    def traits(self) -> Traits:
        every = self.variant == "canonical" and self.m is None
        return Traits(detects=True, mean_at_zero=every)

    def rows_needed(self) -> int:
        spare = 2 * (self.f or 0) + 2  # others that the public code leaves
        return max(spare + 1, (self.m or 1) + (spare if self.variant == "public" else 0))

    def tolerates(self, n: int) -> int:
        return breakdown(n, self.f or 0, self._picks(n), self.variant)

    def select(self, squared: Tensor) -> Tensor:
        n = len(squared)
        f = self.f or 0
        if self.variant == "recursive":
            return krum_picks(squared, self._picks(n), f)
        if self.variant == "public":
            return krum_picks(squared, self._picks(n), f + 1, fewest=0)
        chosen = torch.zeros(n, dtype=torch.bool, device=squared.device)
        chosen[krum_order(nearest_others(squared)[0], f)[: self._picks(n)]] = True
        return chosen


@dataclass(frozen=True, kw_only=True)
class Krum(MultiKrum):
    """Select the row with the least sum of squared distances to its ``n - f - 2`` nearest others.

    `MultiKrum` with ``m = 1``; to score again after the only pick changes nothing, so there is no
    recursive variant. ``public`` counts a row as a neighbour of itself. Ignores the clients' sizes.

    Args:
        f: Malicious rows the server is prepared for; ``n >= 2 f + 3``.
        variant: ``canonical``, the paper's Krum, or ``public``, that of the attacks' public code.

    References:
        Blanchard et al., "Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent",
        NeurIPS 2017, https://arxiv.org/abs/1703.02757, section 4.
    """

    m: int | None = field(default=1, init=False, repr=False)
    variant: Literal["canonical", "public"] = "canonical"
