"""Rand-k: random coordinates of an update."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedbench.api import Shared
from fedbench.core.errors import require
from fedbench.core.rng import Key
from fedbench.payload import Payload, SeededSparse
from fedbench.protocols.compressed import CompressedUpdates, public_seeds
from fedbench.protocols.topk import share_of


@dataclass(frozen=True, kw_only=True)
class RandK(CompressedUpdates):
    """Clients send ``K = max(1, floor(k d))`` coordinates chosen by a seed, times ``d / K``.

    So it is unbiased, with ``E|x_hat - x|**2 = (d / K - 1) |x|**2``. With error feedback the factor
    is 1, because the residual must be smaller than what came in.

    Args:
        k: Share of the coordinates that travels.

    References:
        Stich, Cordonnier and Jaggi, "Sparsified SGD with Memory", NeurIPS 2018,
        https://arxiv.org/abs/1809.07599, Definition 2.2 (rand_k); the factor ``d / K`` is the usual
        one of unbiased compressors.
    """

    sends = SeededSparse

    k: float = 0.03

    def __post_init__(self) -> None:
        super().__post_init__()
        require("RandK.k", self.k, 0 < self.k <= 1, "in (0, 1]")

    def compress(self, shared: Shared, x: Tensor, rest: Tensor, keys: Sequence[Key]) -> Payload:
        n, d = x.shape
        count = share_of(self.k, d)
        factor = 1.0 if self.error_feedback else d / count
        seeds = public_seeds(keys, "indices", x.device)
        blank = SeededSparse(torch.zeros(n, count, device=x.device), seeds, rest, d)
        return blank.nearest(torch.cat([factor * x, rest], dim=1))
