"""Many releases of two neighbours, by the code of mechanism and protocol."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fedbench.api import Defense, Gradient, Mechanism, Protocol, ServerView, Shared
from fedbench.audits.pairs import NeighbourPair
from fedbench.core.errors import ConfigError
from fedbench.core.rng import Key
from fedbench.core.trees import Tree
from fedbench.models.network import ConvNet
from fedbench.payload import BinaryMasks, FloatVectors, Payload, SignBits, same
from fedbench.privacy.clients import protect_payload, protect_updates
from fedbench.privacy.mechanisms.dp_fedavg import ClipState

AT_ONCE = 1 << 20  # values of a vector draw in one chunk of releases
SLOW = 30_000  # largest number of releases of a mechanism that cannot be vectorized

DrawRelease = Callable[[Key], Tensor]


@dataclass(frozen=True, eq=False)
class ReleaseBench:
    """One client and the server, to release a mechanism's output as in a round.

    Args:
        mechanism: Mechanism that is audited.
        protocol: Protocol that turns the mechanism's output into a message.
        defense: The server's rule, for a central mechanism.
        d: Number of parameters.
        expected: Expected clients of a round; under a central mechanism two come, one of them idle.
    """

    mechanism: Mechanism
    protocol: Protocol[Any]
    defense: Defense[Any]
    d: int
    expected: int = 10

    @cached_property
    def shared(self) -> Shared:
        """Return a network with ``d`` weights and nothing else: one pixel, ``d`` outputs."""
        return Shared(ConvNet((1, 1, 1), (), (), self.d), 0, torch.device("cpu"))

    def releases(self, pair: NeighbourPair, given: Tensor | None, count: int, key: Key) -> Tensor:
        """Return ``(count, channels)`` independent releases, vectorized if the mechanism allows.

        Each has its own key, so both ways give the same numbers up to rounding.
        """
        seeds = key.bits(count)
        release = self.release(pair, given)
        try:
            return together(release, seeds, max(1, AT_ONCE // self.d))
        except RuntimeError:  # control flow depends on a drawn value, as in an adaptive clip
            return one_by_one(release, seeds[:SLOW])

    def release(self, pair: NeighbourPair, given: Tensor | None) -> DrawRelease:
        """Return a function of a key to ``(channels,)``: a release's score, then other values."""
        if type(self.mechanism).wrap_grad is not Mechanism.wrap_grad:
            return lambda key: self._gradient(pair, given, key)
        if not self.mechanism.central:
            return lambda key: (_symbols(self._sent(pair, given, key)[0])[0] @ pair.direction)[None]
        first, state = self._sent(pair, given, Key(0))
        if same(first, self._sent(pair, given, Key(1))[0]):  # clients add no noise
            return lambda key: self._aggregate(pair, first, state, key)
        return lambda key: self._aggregate(pair, *self._sent(pair, given, key), key)

    def _sent(self, pair: NeighbourPair, given: Tensor | None, key: Key) -> tuple[Payload, Any]:
        """Return the clients' messages, and the mechanism's state."""
        mechanism, protocol = self.mechanism, self.protocol
        rows = [] if given is None else [given]
        rows += [pair.reference] if mechanism.central else []
        keys = [key.fold("client", i) for i in range(len(rows))]
        noise = [key.fold("privacy") for key in keys]
        complies = torch.ones(len(rows), dtype=torch.bool)
        updates, state = protect_updates(
            mechanism, torch.stack(rows), pair.reference[None], noise, complies, mechanism.init()
        )
        memory = [protocol.memory(self.shared) for _ in rows]
        sent, _ = protocol.message(self.shared, updates, keys, memory)
        return protect_payload(mechanism, sent, noise, complies), state

    def _aggregate(self, pair: NeighbourPair, sent: Payload, state: Any, key: Key) -> Tensor:
        """Aggregate and add central noise, as the server does."""
        broadcast = FloatVectors(pair.reference[None])
        weights = torch.ones(len(sent)).double()
        view = ServerView(weights, broadcast, 0, key.fold("defense"), self.expected)
        aggregate, _ = self.defense.aggregate(sent, self.defense.init(sent.spec), view)
        noise = key.fold("mechanism")
        noisy, state = self.mechanism.on_aggregate(aggregate, sent, view, noise, state)
        score = (noisy @ pair.direction.to(noisy))[None]
        if isinstance(state, ClipState) and getattr(self.mechanism, "adaptive", False):
            return torch.cat([score, torch.tensor([state.norm]).log().to(score)])
        return score

    def _gradient(self, pair: NeighbourPair, given: Tensor | None, key: Key) -> Tensor:
        """Release one step on every sample; the loss is linear, with gradients ``x``."""
        x = torch.zeros(0, self.d) if given is None else given[None]

        def each(tree: Tree, x: Tensor, y: Tensor, key: Key) -> Tree:
            return {"fc1": x.reshape(len(x), self.d, 1)}

        def batch(tree: Tree, x: Tensor, y: Tensor, key: Key) -> Tree:
            return {"fc1": x.sum(dim=0).reshape(self.d, 1)}

        grad = self.mechanism.wrap_grad(Gradient(batch, each, 1))
        tree = {"fc1": pair.reference.reshape(self.d, 1)}
        step = grad(tree, x, torch.zeros(len(x), dtype=torch.long), key)["fc1"].reshape(self.d)
        return (step @ pair.direction.to(step))[None]


def together(release: DrawRelease, seeds: Tensor, chunk: int) -> Tensor:
    """Return releases ``(count, channels)`` float64, vectorized over the seeds."""
    vectorized: Callable[[Tensor], Tensor] = torch.vmap(
        lambda seed: release(Key(seed)).double(), chunk_size=chunk
    )
    return vectorized(seeds)


def one_by_one(release: DrawRelease, seeds: Tensor) -> Tensor:
    """Return the same as `together`, one seed after the other."""
    keys = (Key(seed % (1 << 64)) for seed in seeds.tolist())
    return torch.stack([release(key).double() for key in keys])


def _symbols(sent: Payload) -> Tensor:
    """Return the bits of messages as ``(n, d)`` of 0 and 1."""
    if isinstance(sent, BinaryMasks):
        return sent.mask.float()
    if isinstance(sent, SignBits):
        return sent.positive.float()
    raise ConfigError(
        "--method mechanism needs a protocol that sends masks or signs, got "
        f"{type(sent).__name__}; use --protocol fedpm or signsgd"
    )
