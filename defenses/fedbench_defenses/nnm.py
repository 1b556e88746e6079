"""Nearest-neighbour mixing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from fedbench.api import Defense, Prefilter, ServerView, Traits
from fedbench.errors import require
from fedbench.payload import FloatVectors, Payload

from .distances import norms, squared_distances


@dataclass(frozen=True, kw_only=True)
class NNM(Prefilter):
    """Replace every row by the mean of the ``n - f`` rows nearest to it, itself included.

    Rows that agree stay together, so what the rule sees is less spread and the adversary has less
    room. Among equally near rows the lower one wins. Ignores the clients' sizes.

    Args:
        f: Malicious rows the server is prepared for; ``n >= 2 f + 1``.

    References:
        Allouah et al., "Fixing by Mixing: A Recipe for Optimal Byzantine ML under Heterogeneity",
        AISTATS 2023, https://arxiv.org/abs/2302.01772, Algorithm 2 (NNM).
    """

    f: int | None = None

    def __post_init__(self) -> None:
        require("NNM.f", self.f, self.f is None or self.f >= 0, ">= 0")

    def traits(self) -> Traits:
        """With ``f`` 0 every row becomes the mean of all."""
        return Traits(mean_at_zero=True)

    def rows_needed(self, rule: Defense[Any]) -> int:
        """A majority of the rows is near an honest one."""
        return max(rule.rows_needed(), 2 * (self.f or 0) + 1)

    def tolerates(self, n: int, rule: Defense[Any]) -> int:
        """``f``, if the rule does: one outlier more is in every mean, or in too many."""
        return min(self.f or 0, rule.tolerates(n))

    def transform(self, received: Payload, view: ServerView) -> tuple[Payload, None]:
        """One Gram matrix, one product; what is not finite spoils only its own mixtures."""
        x, n = received.values(), len(received)
        nearest = squared_distances(x).sort(dim=1, stable=True).indices[:, : n - (self.f or 0)]
        share = torch.zeros(n, n, dtype=torch.float32, device=x.device)
        share.scatter_(1, nearest, 1 / nearest.shape[1])
        x = x.to(torch.float32)
        spoilt = torch.isinf(norms(x, torch.zeros_like(x[0])))
        mixed = share @ torch.where(spoilt[:, None], 0, x) if bool(spoilt.any()) else share @ x
        mixed[(share[:, spoilt] > 0).any(dim=1)] = torch.nan
        return FloatVectors(mixed), None
