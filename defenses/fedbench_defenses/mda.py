"""Minimum-diameter averaging (MDA) of rows."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .subsets import ClosestSubset


@dataclass(frozen=True, kw_only=True)
class MDA(ClosestSubset):
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

    subsets: ClassVar[int] = 200_000

    def size(self, squared: Tensor, inside: Tensor) -> Tensor:
        """Find the first pair, by distance, that each subset keeps."""
        n = len(squared)
        first, second = torch.triu_indices(n, n, 1, device=squared.device)
        far = squared[first, second].sort(descending=True)
        ends = far.indices[: (self.f or 0) * (n - 1) + 1]  # no more pairs can all be without a row
        pairs = inside[:, first[ends]] & inside[:, second[ends]]
        farthest = pairs.to(torch.uint8).argmax(dim=1)
        return torch.where(pairs.any(dim=1), far.values[farthest], 0.0)
