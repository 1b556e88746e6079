"""Nearest-neighbour mixing (NNM) of rows."""

from dataclasses import dataclass
from typing import Any

import torch

from fedbench.api import Defense, Prefilter, ServerView, Traits
from fedbench.core.tiling import finite_rows, tiles
from fedbench.payload import FloatVectors, Payload

from .distances import squared_distances


@dataclass(frozen=True, kw_only=True)
class NNM(Prefilter):
    """Replace every row by the mean of the ``n - f`` rows nearest to it, itself included.

    Rows that tie for the last places share them, so that on bits, where they often do, the order of
    the clients does not matter. A row that is not finite is infinitely far from all, and what it is
    mixed into is not finite either. Ignores the clients' sizes.

    Args:
        f: Malicious rows the server is prepared for; ``n >= 2 f + 1``.

    References:
        Allouah et al., "Fixing by Mixing: A Recipe for Optimal Byzantine ML under Heterogeneity",
        AISTATS 2023, https://arxiv.org/abs/2302.01772, Algorithm 2 (NNM).
    """

    f: int | None = None

    def traits(self) -> Traits:
        return Traits(mean_at_zero=True)

    def rows_needed(self, rule: Defense[Any]) -> int:
        return max(rule.rows_needed(), 2 * (self.f or 0) + 1)

    def tolerates(self, n: int, rule: Defense[Any]) -> int:
        return min(self.f or 0, rule.tolerates(n))  # one more is in every mean, or in too many

    def transform(self, received: Payload, view: ServerView) -> tuple[Payload, None]:
        x = received.values()
        mixed = len(x) - (self.f or 0)
        squared = squared_distances(x)
        last = squared.sort(dim=1).values[:, mixed - 1 : mixed]
        nearer = squared < last
        tied = squared == last
        places = mixed - nearer.sum(dim=1, keepdim=True)
        share = (nearer + tied * places / tied.sum(dim=1, keepdim=True)) / mixed
        whole = finite_rows(x)
        part = share.to(torch.float32)
        rows = torch.empty(x.shape, device=x.device)
        for tile, out in tiles(x, rows):
            torch.mm(part[:, whole], tile[whole].to(torch.float32), out=out)
        rows[(share[:, ~whole] > 0).any(dim=1)] = torch.nan
        return FloatVectors(rows), None
