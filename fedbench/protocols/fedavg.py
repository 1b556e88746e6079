"""FedAvg: dense weights, averaged."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from fedbench.api import Memory, Shared
from fedbench.core.rng import Key
from fedbench.core.trees import Tree
from fedbench.payload import FloatVectors, Payload
from fedbench.protocols.sgd import LocalSGD, initial_weights


@dataclass(frozen=True, kw_only=True)
class DenseWeights(LocalSGD[Tensor]):
    """State is the weights ``(d,)``, broadcast as 32-bit floats; clients send their update.

    Updates, not weights, are what attacks see and defenses aggregate.
    """

    def init(self, shared: Shared) -> Tensor:
        return initial_weights(shared)

    def broadcast(self, shared: Shared, state: Tensor, clients: Sequence[int], key: Key) -> Payload:
        return FloatVectors(state[None])

    def receive(self, shared: Shared, broadcast: Payload) -> Tree:
        return shared.layout.unflatten(broadcast.values()[0])

    def message(
        self, shared: Shared, updates: Tensor, keys: Sequence[Key], memory: Sequence[Memory]
    ) -> tuple[Payload, Sequence[Memory]]:
        return FloatVectors(updates), memory

    def server_step(
        self, shared: Shared, state: Tensor, aggregate: Tensor, n: int, key: Key
    ) -> Tensor:
        return state + aggregate.to(state)

    def model(self, shared: Shared, state: Tensor, key: Key) -> Tree:
        return shared.layout.unflatten(state)

    def local_model(self, shared: Shared, broadcast: Payload, sent: Payload) -> Tree | None:
        return shared.layout.unflatten(broadcast.values()[0] + sent.values()[0])

    def model_bits(self, shared: Shared, state: Tensor) -> int:
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
