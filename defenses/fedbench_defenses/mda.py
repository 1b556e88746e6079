"""Minimum-diameter averaging (MDA) of rows."""

from bisect import bisect_right
from dataclasses import dataclass
from itertools import chain, combinations
from math import comb

import numpy as np
import torch
from torch import Tensor

from fedbench.api import Defense, ServerView, Traits
from fedbench.payload import Payload

from .distances import comparable, squared_distances
from .mean import mean_of

_SUBSETS = 200_000  # at most
_ENTRIES = 1 << 22  # per batch of subsets


@dataclass(frozen=True, kw_only=True)
class MDA(Defense[None]):
    """Average the ``n - f`` rows whose largest distance ``max_ij |x_i - x_j|`` is smallest.

    Exact: every subset is looked at, at most 200,000 of them. Among equal diameters, which
    the paper leaves open, the smaller sum of squared distances wins, then that of fourth powers to
    all rows, then the lower rows. Ignores the clients' sizes.

    Args:
        f: Malicious rows the server is prepared for; ``n >= 2 f + 1``.

    References:
        El-Mhamdi et al., "Genuinely Distributed Byzantine Machine Learning", PODC 2020,
        https://arxiv.org/abs/1905.03853, MDA; after Rousseeuw, "Multivariate estimation with high
        breakdown point", 1985.
    """

    f: int | None = None

    def traits(self) -> Traits:
        return Traits(detects=True, mean_at_zero=True)

    def rows_needed(self) -> int:
        return 2 * (self.f or 0) + 1  # so that any subset it takes has a benign row

    def most_rows(self) -> int | None:
        """Return the largest ``n`` with no more than 200,000 subsets; None if ``f`` is 0."""
        f = self.f or 0
        sizes = range(f, max(f, _SUBSETS) + 1)
        return f + bisect_right(sizes, _SUBSETS, key=lambda n: comb(n, f)) - 1 if f else None

    def tolerates(self, n: int) -> int:
        return min(self.f or 0, (n - 1) // 2)

    def select(self, squared: Tensor) -> Tensor:
        """Compare the diameters of all subsets: the first pair, by distance, that each keeps."""
        n = len(squared)
        f = self.f or 0
        chosen = torch.ones(n, dtype=torch.bool, device=squared.device)
        if not f or n <= f:
            return chosen
        squared = comparable(squared)
        fourth = squared.square().sum(dim=1)
        first, second = torch.triu_indices(n, n, 1, device=squared.device)
        far = squared[first, second].sort(descending=True)
        ends = far.indices[: f * (n - 1) + 1]  # no more pairs than that can be without a row
        first, second = first[ends], second[ends]
        flat = np.fromiter(chain.from_iterable(combinations(range(n), f)), np.int64)
        out = torch.from_numpy(flat.reshape(-1, f)).to(squared.device)  # in lexicographic order
        measures = []
        for part in torch.split(out, max(_ENTRIES // max(len(ends), n), 1)):
            inside = torch.ones(len(part), n, dtype=torch.bool, device=squared.device)
            inside.scatter_(1, part, False)
            pairs = inside[:, first] & inside[:, second]
            farthest = pairs.to(torch.uint8).argmax(dim=1)
            diameter = torch.where(pairs.any(dim=1), far.values[farthest], 0.0)
            weights = inside.to(squared)
            within = (weights @ squared * weights).sum(dim=1)
            measures.append(torch.stack([diameter, within, weights @ fourth]))
        best = torch.ones(len(out), dtype=torch.bool, device=squared.device)
        for measure in torch.cat(measures, dim=1):
            best &= measure == measure[best].min()
        chosen[out[best.nonzero()[-1, 0]]] = False  # the last to leave out keep the lowest rows
        return chosen

    def aggregate(self, received: Payload, state: None, view: ServerView) -> tuple[Tensor, None]:
        x = received.values()
        chosen = self.select(squared_distances(x))
        view.findings.kept = chosen.cpu()
        return mean_of(x, chosen), None
