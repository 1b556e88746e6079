"""Sparse updates: their largest coordinates, or random ones."""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import torch
from torch import Tensor

from fedbench.api import Keys, Shared
from fedbench.core.errors import require
from fedbench.payload import Payload, SeededSparse, SparseVectors
from fedbench.protocols.compressed import CompressedUpdates, public_seeds


@dataclass(frozen=True, kw_only=True)
class TopK(CompressedUpdates):
    """Clients send the ``k`` share of their update that is largest in magnitude, 0 elsewhere.

    ``max(1, floor(k d))`` coordinates over all layers together, the lowest index first among
    equals; by default without error feedback, as in the baselines of the papers.

    Args:
        k: Share of the coordinates that travels.
        index: How positions are encoded: ``bitmap``, a bit a coordinate as in the FSL paper's
            count, or ``entropy``, that bitmap entropy-coded: a fifth of it at 3 %.

    References:
        Aji and Heafield, "Sparse Communication for Distributed Gradient Descent", EMNLP 2017,
        https://arxiv.org/abs/1704.05021, section 3, whose residuals are ``error_feedback``; wire
        format of the FSL paper, Table 1 (F6).
    """

    sends = SparseVectors

    k: float = 0.5
    index: Literal["bitmap", "entropy"] = "bitmap"

    def __post_init__(self) -> None:
        super().__post_init__()
        require("TopK.k", self.k, 0 < self.k <= 1, "in (0, 1]")

    def compress(self, shared: Shared, x: Tensor, rest: Tensor, keys: Keys) -> Payload:
        n, d = x.shape
        count = share_of(self.k, d)
        index = torch.zeros(n, count, dtype=torch.int64, device=x.device)
        values = torch.zeros(n, count, device=x.device)
        blank = SparseVectors(index, values, rest, d, self.index == "entropy")
        return blank.nearest(torch.cat([x, rest], dim=1))


def share_of(k: float, d: int) -> int:
    """``max(1, floor(k d))``, computed from ``k`` as it is written in decimal.

    >>> share_of(0.29, 100), int(0.29 * 100)
    (29, 28)
    """
    return max(1, math.floor(Fraction(repr(k)) * d))


@dataclass(frozen=True, kw_only=True)
class RandK(CompressedUpdates):
    """Clients send ``K = max(1, floor(k d))`` coordinates chosen by a seed, times ``d / K``.

    So it is unbiased, with ``E|x_hat - x|**2 = (d / K - 1) |x|**2``. With error feedback the factor
    is 1, because the residual must be smaller than what came in.

    Args:
        k: Share of the coordinates that travels.

    References:
        Stich, Cordonnier and Jaggi, "Sparsified SGD with Memory", NeurIPS 2018,
        https://arxiv.org/abs/1809.07599, Definition 2.2 (rand_k, without the factor).
    """

    sends = SeededSparse

    k: float = 0.03

    def __post_init__(self) -> None:
        super().__post_init__()
        require("RandK.k", self.k, 0 < self.k <= 1, "in (0, 1]")

    def compress(self, shared: Shared, x: Tensor, rest: Tensor, keys: Keys) -> Payload:
        n, d = x.shape
        count = share_of(self.k, d)
        factor = 1.0 if self.error_feedback else d / count
        seeds = public_seeds(keys, "indices", x.device)
        blank = SeededSparse(torch.zeros(n, count, device=x.device), seeds, rest, d)
        return blank.nearest(torch.cat([factor * x, rest], dim=1))
