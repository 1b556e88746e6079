"""FedAvg through a codec: dense updates, compressed after training; top-k and rand-k."""

import math
from abc import abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import torch
from torch import Tensor

from fedbench.api import Keys, Memories, Memory, Messages, Shared
from fedbench.core.errors import require
from fedbench.core.rng import seeds_of
from fedbench.payload import Payload, SeededSparse, SparseVectors
from fedbench.protocols.fedavg import DenseWeights


@dataclass(frozen=True, kw_only=True)
class CompressedUpdates(DenseWeights):
    """Clients train as in FedAvg and send a compressed update; the server adds the mean.

    All parameters are one vector, but for running statistics, which travel as counted floats. With
    error feedback a client keeps a residual ``e``: it compresses ``x = u + e`` and sets
    ``e <- x - x_hat``. It stays in rounds without the client, and restarts at 0 where not finite.

    Args:
        error_feedback: Whether a client adds to its update what it has not sent before.

    References:
        Karimireddy et al., "Error Feedback Fixes SignSGD and other Gradient Compression Schemes",
        ICML 2019, https://arxiv.org/abs/1901.09847, Algorithm 2.
    """

    error_feedback: bool = False

    @abstractmethod
    def compress(self, shared: Shared, x: Tensor, rest: Tensor, keys: Keys) -> Payload:
        """Encode ``x (n, t)``, with the uncompressed ``rest (n, d - t)`` float32 beside it."""

    def memory(self, shared: Shared) -> Memory:
        """Return the residual ``e (t,)``, 0 at first; empty without error feedback."""
        blank = torch.zeros(compressed_width(shared), device=shared.device)
        return {"residual": blank} if self.error_feedback else {}

    def message(self, shared: Shared, updates: Tensor, keys: Keys, memory: Memories) -> Messages:
        t = compressed_width(shared)
        x = updates[:, :t]
        rest = updates[:, t:].to(torch.float32)
        if not self.error_feedback:
            return self.compress(shared, x, rest, keys), memory
        x = x + torch.stack([client["residual"] for client in memory])
        sent = self.compress(shared, x, rest, keys)
        left = x - sent.values()[:, :t]
        left = torch.where(torch.isfinite(left).all(dim=1, keepdim=True), left, 0.0)
        return sent, [{"residual": row} for row in left.to(torch.float32)]


def compressed_width(shared: Shared) -> int:
    """Return the number of coordinates that are compressed: all but running statistics."""
    return shared.layout.d - shared.statistics.d


def compressed_layers(shared: Shared) -> tuple[int, ...]:
    """Return the sizes of the layers that are compressed."""
    sizes = shared.layout.sizes
    return sizes[: len(sizes) - len(shared.statistics.sizes)]


def public_seeds(keys: Keys, name: str, device: torch.device) -> Tensor:
    """Return ``(n, 1)`` int64: a seed for each client that may travel with its message."""
    return seeds_of([key.public(name) for key in keys], device)[:, None]


@dataclass(frozen=True, kw_only=True)
class TopK(CompressedUpdates):
    """Clients send the ``k`` share of their update that is largest in magnitude, 0 elsewhere.

    ``max(1, floor(k d))`` coordinates over all layers together, the lowest index first among
    equals.

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
    """Return ``max(1, floor(k d))``, computed from ``k`` as it is written in decimal.

    >>> share_of(0.29, 100), int(0.29 * 100), share_of(0.5, 5), share_of(0.1, 5)
    (29, 28, 2, 1)
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
