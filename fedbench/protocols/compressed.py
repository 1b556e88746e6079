"""FedAvg through a codec: dense updates, compressed after training."""

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from fedbench.api import Keys, Memories, Memory, Messages, Shared
from fedbench.payload import Payload
from fedbench.protocols.fedavg import DenseWeights


@dataclass(frozen=True, kw_only=True)
class CompressedUpdates(DenseWeights):
    """Clients train as in FedAvg and send a compressed update; the server adds the mean.

    All parameters are one vector, but for running statistics, which travel as counted floats. With
    error feedback a client keeps a residual ``e``: it compresses ``x = u + e`` and sets
    ``e <- x - x_hat``. The residual stays in rounds without the client, and restarts at 0 after an
    update that is not finite.

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
        """The residual ``e (t,)``, 0 at first; empty without error feedback."""
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
    """Number of coordinates that are compressed: all but running statistics."""
    return shared.layout.d - shared.statistics.d


def compressed_layers(shared: Shared) -> tuple[int, ...]:
    """Sizes of the layers that are compressed."""
    sizes = shared.layout.sizes
    return sizes[: len(sizes) - len(shared.statistics.sizes)]


def public_seeds(keys: Keys, name: str, device: torch.device) -> Tensor:
    """``(n, 1)`` int64: a seed for each client that may travel with its message."""
    return torch.stack([key.public(name).tensor(device) for key in keys])[:, None]
