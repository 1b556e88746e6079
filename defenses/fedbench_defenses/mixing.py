"""Mixing of rows: nearest-neighbour mixing (NNM) and bucketing, means of random groups."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedbench.api import Defense, Prefilter, ServerView, Traits
from fedbench.core.errors import require
from fedbench.core.tiling import finite_rows
from fedbench.payload import FloatVectors, KeptMessages, Payload, mixed_rows

from .distances import real_dtype, smallest, squared_distances


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
        shares = self.shares(squared_distances(x))
        return FloatVectors(mixed_rows(shares, x, finite_rows(x))), None

    def mixture(self, received: KeptMessages, view: ServerView) -> Tensor:
        return self.shares(squared_distances(received))

    def shares(self, squared: Tensor) -> Tensor:
        """Return the share ``(n, n)`` of each row in each mean, given squared distances."""
        mixed = len(squared) - (self.f or 0)
        return smallest(squared, mixed) / mixed


@dataclass(frozen=True, kw_only=True)
class Bucketing(Prefilter):
    """Shuffle the rows and replace every ``s`` of them in turn by their mean.

    The last bucket has the rows that are left, so every row is in exactly one (D3). The rule gets
    ``ceil(n / s)`` rows that all count the same; its ``f`` is then bad buckets. Ignores the
    clients' sizes. With ``s`` 1 nothing is shuffled.

    Args:
        s: Number of rows in a bucket.

    References:
        Karimireddy, He and Jaggi, "Byzantine-Robust Learning on Heterogeneous Datasets via
        Bucketing", ICLR 2022, https://arxiv.org/abs/2006.09365, Algorithm 1.
    """

    s: int = 2

    def __post_init__(self) -> None:
        require("Bucketing.s", self.s, self.s >= 1, ">= 1")

    def traits(self) -> Traits:
        """Declare it not sharp: one bad row more may fall into a bucket that has one."""
        alone = self.s == 1
        return Traits(randomized=not alone, mean_at_zero=alone, sharp=alone)

    def rows_needed(self, rule: Defense[Any]) -> int:
        return (rule.rows_needed() - 1) * self.s + 1

    def rows(self, n: int) -> int:
        return -(-n // self.s)

    def tolerates(self, n: int, rule: Defense[Any]) -> int:
        return rule.tolerates(self.rows(n))  # a bad row spoils one bucket at most

    def transform(self, received: Payload, view: ServerView) -> tuple[Payload, None]:
        x = received.values()
        n = len(x)
        order = torch.arange(n, device=x.device)
        if self.s > 1:
            order = view.key.fold("bucketing").permutation(n, device=x.device)
        stride = min(self.s, n)  # a larger bucket has all rows, too
        means = x[order[::stride]].to(real_dtype(x))
        counts = torch.ones(len(means), 1, device=x.device)
        for place in range(1, stride):
            row = order[place::stride]
            means[: len(row)] += x[row]
            counts[: len(row)] += 1
        return FloatVectors(means.div_(counts)), None
