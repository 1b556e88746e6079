"""Dense weights, averaged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from fedbench.api import Memory, Shared
from fedbench.core.rng import Key
from fedbench.core.trees import Tree
from fedbench.payload import FloatVectors, Payload
from fedbench.protocols.sgd import LocalSGD


@dataclass(frozen=True, kw_only=True)
class DenseWeights(LocalSGD[Tensor]):
    """State is the weights ``(d,)``, broadcast as 32-bit floats; what goes up is the update.

    Updates, not weights, are what travels up, what attacks see and what defenses aggregate.
    """

    def init(self, shared: Shared) -> Tensor:
        """Kaiming-uniform weights from the seed."""
        return shared.layout.flatten(shared.network.init(shared.key.fold("init"), shared.device))

    def broadcast(self, shared: Shared, state: Tensor, clients: Sequence[int], key: Key) -> Payload:
        """The weights, one row for all."""
        return FloatVectors(state[None])

    def receive(self, shared: Shared, broadcast: Payload) -> Tree:
        """The weights as a tree."""
        return shared.layout.unflatten(broadcast.values()[0])

    def message(
        self, shared: Shared, updates: Tensor, keys: Sequence[Key], memory: Sequence[Memory]
    ) -> tuple[Payload, Sequence[Memory]]:
        """The update, uncompressed."""
        return FloatVectors(updates), memory

    def server_step(
        self, shared: Shared, state: Tensor, aggregate: Tensor, n: int, key: Key
    ) -> Tensor:
        """``w + aggregate``."""
        return state + aggregate.to(state)

    def model(self, shared: Shared, state: Tensor, key: Key) -> Tree:
        """The weights."""
        return shared.layout.unflatten(state)

    def local_model(self, shared: Shared, broadcast: Payload, sent: Payload) -> Tree | None:
        """What was sent down plus what was sent up."""
        return shared.layout.unflatten(broadcast.values()[0] + sent.values()[0])

    def model_bits(self, shared: Shared, state: Tensor) -> int:
        """32 bits a parameter."""
        return 32 * len(state)


@dataclass(frozen=True, kw_only=True)
class FedAvg(DenseWeights):
    """Clients train the weights locally, the server adds the mean of their updates.

    ``w <- w + sum_i (n_i / n) (w_i - w)``, with sizes ``n_i`` known at enrolment.

    References:
        McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data",
        AISTATS 2017, https://arxiv.org/abs/1602.05629, Algorithm 1.
    """

    sends = FloatVectors
