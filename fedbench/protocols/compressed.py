"""FedAvg through a codec: dense updates, compressed after training."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedbench.api import Memory, Shared
from fedbench.core.rng import Key
from fedbench.models.network import is_statistic
from fedbench.payload import Payload
from fedbench.protocols.fedavg import DenseWeights


@dataclass(frozen=True, kw_only=True)
class CompressedUpdates(DenseWeights):
    """Clients train as in FedAvg and send a compressed update; the server adds the mean.

    All parameters are compressed as one vector. Running statistics of batch normalisation are no
    parameters: they end the layout, and travel as floats that are counted.

    With error feedback a client adds to its update what it has not sent before, and keeps what the
    message does not say: ``x = u + e``, ``e <- x - x_hat``. A client that was not sampled keeps
    its ``e``; one whose update is not finite starts afresh from 0.

    Args:
        error_feedback: Does a client add to its update what it has not sent before?

    References:
        Karimireddy et al., "Error Feedback Fixes SignSGD and other Gradient Compression Schemes",
        ICML 2019, https://arxiv.org/abs/1901.09847, Algorithm 2.
    """

    error_feedback: bool = False

    @abstractmethod
    def compress(self, shared: Shared, x: Tensor, rest: Tensor, keys: Sequence[Key]) -> Payload:
        """The messages of ``x (n, t)``, with the uncompressed ``rest (n, d - t)`` float32."""

    def memory(self, shared: Shared) -> Memory:
        """The residual ``e (t,)``, at first 0; nothing without error feedback."""
        if not self.error_feedback:
            return {}
        return {"residual": torch.zeros(compressed_width(shared), device=shared.device)}

    def message(
        self, shared: Shared, updates: Tensor, keys: Sequence[Key], memory: Sequence[Memory]
    ) -> tuple[Payload, Sequence[Memory]]:
        """The codec's message of the update, and of what it left out before."""
        t = compressed_width(shared)
        x, rest = updates[:, :t], updates[:, t:].to(torch.float32)
        if not self.error_feedback:
            return self.compress(shared, x, rest, keys), memory
        x = x + torch.stack([one["residual"] for one in memory])
        sent = self.compress(shared, x, rest, keys)
        left = x - sent.values()[:, :t]
        left = torch.where(torch.isfinite(left).all(dim=1, keepdim=True), left, 0.0)
        return sent, [{"residual": row} for row in left.to(torch.float32)]


def compressed_width(shared: Shared) -> int:
    """Coordinates of an update that are compressed: all but running statistics."""
    return shared.layout.d - shared.statistics.d


def compressed_layers(shared: Shared) -> tuple[int, ...]:
    """Their layer sizes."""
    layout = shared.layout
    sizes = zip(layout.names, layout.sizes, strict=True)
    return tuple(size for name, size in sizes if not is_statistic(name))
