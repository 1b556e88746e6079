"""Krum and Multi-Krum, with the score of the paper."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedbench.api import Defense, ServerView, Traits
from fedbench.errors import require
from fedbench.payload import Payload

from .mean import exact_mean

_TILE = 1 << 16


def squared_distances(x: Tensor) -> Tensor:
    """``(n, n)`` float64 squared distances of the rows, from one Gram matrix; 0 on the diagonal.

    The rows are centred on the one with the smallest norm. Uncentred, rows that differ little
    cancel; centred on a row that an attacker made huge, everything does; the smallest norm is one
    that no attacker can make larger than a benign one. Products are float64 for the same reason.
    """
    gram = torch.zeros(len(x), len(x), dtype=torch.float64, device=x.device)
    centre = 0
    if x.is_floating_point():
        norms = torch.linalg.vector_norm(x, dim=1)
        centre = int(torch.nan_to_num(norms, nan=torch.inf).argmin())
    for tile in torch.split(x, _TILE, dim=1):
        rows = tile.to(torch.float64) - tile[centre].to(torch.float64)
        gram += rows @ rows.T
    norms = gram.diagonal()
    squared = (norms[:, None] + norms[None, :] - 2 * gram).clamp_min_(0)
    return squared.fill_diagonal_(0)


def krum_scores(squared: Tensor, f: int) -> Tensor:
    """Sum of squared distances of each row to its ``n - f - 2`` nearest others.

    A row that is not finite scores infinity.
    """
    n = len(squared)
    squared = torch.nan_to_num(squared, nan=torch.inf).fill_diagonal_(-1)  # self sorts first
    return squared.sort(dim=1).values[:, 1 : n - f - 1].sum(dim=1)


@dataclass(frozen=True, kw_only=True)
class MultiKrum(Defense[None]):
    """Average the ``m`` rows with the lowest Krum scores, all scored once.

    The score is the paper's: *squared* distances, self excluded, ``n - f - 2`` neighbours. Public
    code has at least four others (D1), and a recursive variant that scores again after each pick
    (A5). Among equal scores the lower row wins. Ignores the clients' sizes.

    Args:
        f: Malicious rows the server is prepared for; ``n >= 2 f + 3``.
        m: Rows to average; 1 is Krum. Default ``n - f``.

    References:
        Blanchard et al., "Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent",
        NeurIPS 2017, https://arxiv.org/abs/1703.02757, section 4 and, for ``m``, section 6.
    """

    f: int | None = None
    m: int | None = None

    def __post_init__(self) -> None:
        require("MultiKrum.f", self.f, self.f is None or self.f >= 0, ">= 0")
        require("MultiKrum.m", self.m, self.m is None or self.m >= 1, ">= 1")

    def traits(self) -> Traits:
        """The mean of equal weights if ``f`` is 0."""
        return Traits(mean_at_zero=True)

    def rows_needed(self) -> int:
        """``n > 2 f + 2``, and ``m`` rows to select."""
        return max(2 * (self.f or 0) + 3, self.m or 1)

    def tolerates(self, n: int) -> int:
        """``f``, while no more than the rows that are not selected could be moved far away."""
        picked = self.m if self.m is not None else n - (self.f or 0)
        return min(self.f or 0, n - picked)

    def select(self, squared: Tensor) -> Tensor:
        """The ``m`` lowest scores."""
        n, f = len(squared), self.f or 0
        order = krum_scores(squared, f).sort(stable=True).indices
        chosen = torch.zeros(n, dtype=torch.bool, device=squared.device)
        chosen[order[: self.m if self.m is not None else n - f]] = True
        return chosen

    def aggregate(self, received: Payload, state: None, view: ServerView) -> tuple[Tensor, None]:
        """Distances of `values`: on signs and masks they count differing bits."""
        x = received.values()
        return exact_mean(x[self.select(squared_distances(x))]), None
