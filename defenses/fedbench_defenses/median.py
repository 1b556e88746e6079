"""Median of every coordinate."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedbench.api import Defense, ServerView
from fedbench.core.order_statistics import by_tiles
from fedbench.payload import Payload

from .mean import exact_mean


@dataclass(frozen=True, kw_only=True)
class Median(Defense[None]):
    """Compute the middle value of every coordinate. Ignores the clients' sizes.

    Args:
        even: With an even number of rows the mean of the two middle ones (``mean``, the usual
            definition), or the lower one (``lower``, what ``torch.median`` returns).

    References:
        Yin et al., "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates",
        ICML 2018, https://arxiv.org/abs/1803.01498, Definition 1.
    """

    even: Literal["mean", "lower"] = "mean"

    def _middle(self, n: int) -> range:
        low = (n - 1) // 2
        return range(low, n // 2 + 1 if self.even == "mean" else low + 1)

    def tolerates(self, n: int) -> int:
        """Return fewer than half."""
        return (n - 1) // 2

    def aggregate(self, received: Payload, state: None, view: ServerView) -> tuple[Tensor, None]:
        middle = self._middle(len(received))
        return by_tiles(received.values(), exact_mean, ranks=middle), None

    def order_weights(self, n: int) -> Tensor:
        """Return 1 for the middle rank, or 1/2 for each of two."""
        weights = torch.zeros(n, dtype=torch.float64)
        weights[list(self._middle(n))] = 1.0
        return weights / weights.sum()
