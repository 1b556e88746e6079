"""Bulyan, a trimmed mean of the rows that Krum picks."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedbench.api import ServerView, Traits
from fedbench.core.copies import copied_to
from fedbench.core.order_statistics import by_tiles
from fedbench.payload import KeptMessages, Rows

from .distances import Geometric, krum_picks, squared_distances
from .median import near_median


@dataclass(frozen=True, kw_only=True)
class Bulyan(Geometric[None]):
    """Pick ``theta = n - 2 f`` rows by Krum, average the ``theta - 2 f`` values next to the median.

    Krum picks one row and scores again those that are left, without it (D2: none is picked twice),
    at last with fewer rows than Krum is defined for: then the score goes on with fewer neighbours,
    but at least one. With one, two rows nearest to each other tie: the one nearer to all that are
    left is picked, where the paper's Krum takes the lower one. The paper's median is one of the
    values; here that of an even ``theta`` is the mean of the two middle ones. Ignores the clients'
    sizes.

    Args:
        f: Malicious rows the server is prepared for; ``n >= 4 f + 3``.

    References:
        El Mhamdi, Guerraoui and Rouault, "The Hidden Vulnerability of Distributed Learning in
        Byzantium", ICML 2018, https://arxiv.org/abs/1802.07927, section 4.
    """

    f: int | None = None

    def traits(self) -> Traits:
        return Traits(detects=True, mean_at_zero=True, sharp=False)

    def rows_needed(self) -> int:
        return 4 * (self.f or 0) + 3  # to drop 2 f values of more than twice as many

    def tolerates(self, n: int) -> int:
        # A lower bound: with at most 2 f far rows, a minority of the theta, the median is among
        # benign values, and theta - 2 f of those are nearer to it than a far one.
        f = self.f or 0
        return max(min(2 * f, (n - 2 * f - 1) // 2), 0)

    def _picks(self, n: int) -> int:
        return n - 2 * (self.f or 0)

    def candidates(self, squared: Tensor) -> Tensor:
        return krum_picks(squared, self._picks(len(squared)), self.f or 0)

    def answer(self, x: Rows, origin: Tensor, state: None, view: ServerView) -> tuple[Tensor, None]:
        chosen = self.candidates(squared_distances(x))
        view.findings.kept = chosen.cpu()
        rows = view.findings.kept.nonzero()[:, 0]
        count = self._picks(len(x)) - 2 * (self.f or 0)

        def inner(sorted_: Tensor) -> Tensor:
            return near_median(sorted_, count)

        if isinstance(x, KeptMessages):
            return torch.cat([by_tiles(tile, inner) for tile in x.take(rows).columns()]), None
        return by_tiles(x, inner, copied_to(rows, x.device)), None
