"""Search of all subsets of ``n - f`` rows for the one whose rows lie closest together."""

from abc import abstractmethod
from bisect import bisect_right
from dataclasses import dataclass
from itertools import chain, combinations
from math import comb
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedbench.api import Traits
from fedbench.core.copies import copied_to

from .distances import comparable
from .selection import Selection

_ENTRIES = 1 << 22  # per batch of subsets
_EQUAL = 1 + 1e-12  # rounding error of sizes that are equal


@dataclass(frozen=True, kw_only=True)
class ClosestSubset(Selection):
    """Average the ``n - f`` rows of smallest `size`, a measure of how far apart they lie.

    Among equal sizes the smaller sum of squared distances wins, then that of fourth powers to all
    rows, then the lower rows.

    Args:
        f: Malicious rows the server is prepared for; ``n >= 2 f + 1``.
    """

    subsets: ClassVar[int]  # looked at, at most
    f: int | None = None

    @abstractmethod
    def size(self, squared: Tensor, inside: Tensor) -> Tensor:
        """Return the sizes ``(s,)`` of subsets ``inside (s, n)``, given ``squared (n, n)``."""

    def traits(self) -> Traits:
        return Traits(detects=True, mean_at_zero=True)

    def rows_needed(self) -> int:
        return 2 * (self.f or 0) + 1  # so that any subset it takes has a benign row

    def most_rows(self) -> int | None:
        """Return the largest ``n`` with no more subsets than are looked at; None if ``f`` is 0."""
        f = self.f or 0
        rows = range(f, max(f, self.subsets) + 1)
        return f + bisect_right(rows, self.subsets, key=lambda n: comb(n, f)) - 1 if f else None

    def tolerates(self, n: int) -> int:
        return min(self.f or 0, (n - 1) // 2)

    def select(self, squared: Tensor) -> Tensor:
        n = len(squared)
        f = self.f or 0
        chosen = torch.ones(n, dtype=torch.bool, device=squared.device)
        if not f or n <= f:
            return chosen
        squared = comparable(squared)
        fourth = squared.square().sum(dim=1)
        flat = np.fromiter(chain.from_iterable(combinations(range(n), f)), np.int64)
        subsets = torch.from_numpy(flat.reshape(-1, f))  # in lexicographic order
        out = copied_to(subsets, squared.device)
        measures = []
        for part in torch.split(out, max(_ENTRIES // n**2, 1)):
            inside = torch.ones(len(part), n, dtype=torch.bool, device=squared.device)
            inside.scatter_(1, part, False)
            weights = inside.to(squared)
            within = (weights @ squared * weights).sum(dim=1)
            measures.append(torch.stack([self.size(squared, inside), within, weights @ fourth]))
        best = torch.ones(len(out), dtype=torch.bool, device=squared.device)
        for measure in torch.cat(measures, dim=1):
            best &= measure <= torch.where(best, measure, torch.inf).min() * _EQUAL
        places = torch.arange(len(out), device=squared.device)
        last = torch.where(best, places, -1).argmax(dim=0, keepdim=True)
        chosen[out.index_select(0, last)[0]] = False  # the last to leave out keep the lowest rows
        return chosen
