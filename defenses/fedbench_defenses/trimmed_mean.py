"""Trimmed mean of every coordinate."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedbench.api import Defense, ServerView, Traits
from fedbench.core.order_statistics import by_tiles
from fedbench.payload import Payload

from .mean import exact_mean


@dataclass(frozen=True, kw_only=True)
class TrimmedMean(Defense[None]):
    """Drop the ``f`` largest and ``f`` smallest values of every coordinate, average the rest.

    Ignores the clients' sizes.

    Args:
        f: Clients the server is prepared to lose on each side.

    References:
        Yin et al., "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates",
        ICML 2018, https://arxiv.org/abs/1803.01498, Definition 2.
    """

    f: int | None = None

    def traits(self) -> Traits:
        return Traits(mean_at_zero=True)

    def rows_needed(self) -> int:
        """Return ``2 f + 1``: one row must be left."""
        return 2 * (self.f or 0) + 1

    def tolerates(self, n: int) -> int:
        """Return ``f``, the rows lost on each side."""
        return self.f or 0

    def aggregate(self, received: Payload, state: None, view: ServerView) -> tuple[Tensor, None]:
        x = received.values()
        f = self.f or 0
        return by_tiles(x, exact_mean, ranks=range(f, len(x) - f)), None

    def order_weights(self, n: int) -> Tensor:
        """Return ``1 / (n - 2 f)`` for the ranks that are averaged."""
        f = self.f or 0
        weights = torch.zeros(n, dtype=torch.float64)
        weights[f : n - f] = 1 / (n - 2 * f)
        return weights
