"""Median, trimmed mean and mean around the median (MeaMed) of every coordinate."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedbench.api import Defense, ServerView, Traits
from fedbench.core.order_statistics import by_tiles
from fedbench.core.tiling import tiles
from fedbench.payload import FoldedMessages, Payload

from .mean import exact_mean


def near_median(rows: Tensor, count: int) -> Tensor:
    """Return the mean of the ``count`` values nearest to the median, of sorted ``rows (n, t)``.

    A window of them moves up from the bottom while the value that enters is nearer to the median
    than the one that leaves, so among equally near values the lower ones stay.
    """
    n = len(rows)
    low = rows[(n - 1) // 2]
    high = rows[n // 2]
    start = torch.zeros(rows.shape[1], dtype=torch.int64, device=rows.device)
    for i in range(n - count):
        start += rows[i + count] - high < low - rows[i]
    window = start + torch.arange(count, device=rows.device)[:, None]
    return exact_mean(rows.gather(0, window))


def of_counts(received: FoldedMessages, f: Callable[[Tensor], Tensor], ranks: range) -> Tensor:
    """Return ``(k,)``, ``f`` of these ranks ``(r, t)`` of the sorted columns of bits.

    Of ``n`` bits, ``s`` of them ones, exactly the last ``s`` ranks are 1.
    """
    zeros = len(received) - received.ones()
    rank = torch.arange(ranks.start, ranks.stop, device=zeros.device)[:, None]
    parts = [
        f(received.bits_as_values(rank >= tile)) for (tile,) in tiles(zeros.expand(len(rank), -1))
    ]
    return torch.cat(parts)


class MeanOfRanks(Defense[None]):
    """Rule that averages some ranks of every coordinate's sorted values."""

    @abstractmethod
    def ranks(self, n: int) -> range:
        """Return the ranks that are averaged, of ``n`` from 0."""

    def aggregate(self, received: Payload, state: None, view: ServerView) -> tuple[Tensor, None]:
        return by_tiles(received.values(), exact_mean, ranks=self.ranks(len(received))), None

    def traits(self) -> Traits:
        return Traits(counts=True, columns=True)

    def aggregate_sums(
        self, received: FoldedMessages, state: None, view: ServerView
    ) -> tuple[Tensor, None]:
        return of_counts(received, exact_mean, self.ranks(len(received))), None

    def order_weights(self, n: int) -> Tensor:
        weights = torch.zeros(n, dtype=torch.float64)
        ranks = self.ranks(n)
        weights[ranks.start : ranks.stop] = 1 / len(ranks)
        return weights


@dataclass(frozen=True, kw_only=True)
class Median(MeanOfRanks):
    """Compute the middle value of every coordinate. Ignores the clients' sizes.

    Args:
        even: With an even number of rows the mean of the two middle ones (``mean``, the usual
            definition), or the lower one (``lower``, what ``torch.median`` returns).

    References:
        Yin et al., "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates",
        ICML 2018, https://arxiv.org/abs/1803.01498, Definition 1.
    """

    even: Literal["mean", "lower"] = "mean"

    def ranks(self, n: int) -> range:
        low = (n - 1) // 2
        return range(low, n // 2 + 1 if self.even == "mean" else low + 1)

    def tolerates(self, n: int) -> int:
        return (n - 1) // 2


@dataclass(frozen=True, kw_only=True)
class TrimmedMean(MeanOfRanks):
    """Drop the ``f`` largest and ``f`` smallest values of every coordinate, average the rest.

    Ignores the clients' sizes.

    Args:
        f: Clients the server is prepared to lose on each side.

    References:
        Yin et al., "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates",
        ICML 2018, https://arxiv.org/abs/1803.01498, Definition 2.
    """

    f: int | None = None

    def ranks(self, n: int) -> range:
        f = self.f or 0
        return range(f, n - f)

    def traits(self) -> Traits:
        return Traits(counts=True, columns=True, mean_at_zero=True)

    def rows_needed(self) -> int:
        return 2 * (self.f or 0) + 1  # one row must be left

    def tolerates(self, n: int) -> int:
        return self.f or 0


@dataclass(frozen=True, kw_only=True)
class MeaMed(Defense[None]):
    """Average the ``n - f`` values of every coordinate that are nearest to its median.

    With an even number of rows the median is the mean of the two middle values, which the paper
    leaves open. Ignores the clients' sizes.

    Args:
        f: Malicious rows the server is prepared for; ``n >= 2 f + 1``.

    References:
        Xie, Koyejo and Gupta, "Generalized Byzantine-tolerant SGD", 2018,
        https://arxiv.org/abs/1802.10116, mean around median.
    """

    f: int | None = None

    def traits(self) -> Traits:
        return Traits(counts=True, columns=True, mean_at_zero=True)

    def rows_needed(self) -> int:
        return 2 * (self.f or 0) + 1  # so that the median is a benign value

    def tolerates(self, n: int) -> int:
        return min(self.f or 0, (n - 1) // 2)  # one more is among the n - f that are averaged

    def aggregate(self, received: Payload, state: None, view: ServerView) -> tuple[Tensor, None]:
        count = max(len(received) - (self.f or 0), 1)
        return by_tiles(received.values(), lambda rows: near_median(rows, count)), None

    def aggregate_sums(
        self, received: FoldedMessages, state: None, view: ServerView
    ) -> tuple[Tensor, None]:
        n = len(received)
        count = max(n - (self.f or 0), 1)
        return of_counts(received, lambda rows: near_median(rows, count), range(n)), None
