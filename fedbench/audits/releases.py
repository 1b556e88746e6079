"""Releases of two neighbours, many times, by the code of mechanism and protocol."""

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

AT_ONCE = 1 << 20  # numbers of one kind that are drawn together
SLOW = 30_000  # releases of a mechanism that does one at a time, at most

Release = Callable[[Key], Tensor]


@dataclass(frozen=True, eq=False)
class ReleaseBench:
    """A client, a server, and what goes from the one to the other.

    Args:
        mechanism: That is audited.
        protocol: What makes a message of what the mechanism leaves.
        defense: The server's rule, for a mechanism that is central.
        d: Parameters.
        expected: Clients of a round; of a central mechanism, two come, one of them idle.
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
        """``(count, channels)`` independent ones, in one pass where the mechanism allows that.

        Each has a key of its own, so the two ways give the same numbers, to rounding.
        """
        seeds = key.bits(count)
        release = self.release(pair, given)
        try:
            return together(release, seeds, max(1, AT_ONCE // self.d))
        except RuntimeError:  # it looks at a value that was drawn, as an adaptive clip does
            return one_by_one(release, seeds[:SLOW])

    def release(self, pair: NeighbourPair, given: Tensor | None) -> Release:
        """Return a function of a key: ``(channels,)``, a release's score and what else is seen."""
        if type(self.mechanism).wrap_grad is not Mechanism.wrap_grad:
            return lambda key: self._gradient(pair, given, key)
        if not self.mechanism.central:
            return lambda key: (_symbols(self._sent(pair, given, key)[0])[0] @ pair.direction)[None]
        first, state = self._sent(pair, given, Key(0))
        if same(first, self._sent(pair, given, Key(1))[0]):  # clients add no noise: once will do
            return lambda key: self._aggregate(pair, first, state, key)
        return lambda key: self._aggregate(pair, *self._sent(pair, given, key), key)

    def _sent(self, pair: NeighbourPair, given: Tensor | None, key: Key) -> tuple[Payload, Any]:
        """The clients' part: messages, and the mechanism's state."""
        mechanism, protocol = self.mechanism, self.protocol
        rows = [] if given is None else [given]
        rows += [pair.reference] if mechanism.central else []
        keys = [key.fold("client", i) for i in range(len(rows))]
        noise = [one.fold("privacy") for one in keys]
        keeps = torch.ones(len(rows), dtype=torch.bool)
        updates, state = protect_updates(
            mechanism, torch.stack(rows), pair.reference[None], noise, keeps, mechanism.init()
        )
        memory = [protocol.memory(self.shared) for _ in rows]
        sent, _ = protocol.message(self.shared, updates, keys, memory)
        return protect_payload(mechanism, sent, noise, keeps), state

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
        """One step of which every sample is part; the loss is linear, ``x`` its gradients."""
        x = torch.zeros(0, self.d) if given is None else given[None]

        def each(tree: Tree, x: Tensor, y: Tensor, key: Key) -> Tree:
            return {"fc1": x.reshape(len(x), self.d, 1)}

        def batch(tree: Tree, x: Tensor, y: Tensor, key: Key) -> Tree:
            return {"fc1": x.sum(dim=0).reshape(self.d, 1)}

        grad = self.mechanism.wrap_grad(Gradient(batch, each, 1))
        tree = {"fc1": pair.reference.reshape(self.d, 1)}
        step = grad(tree, x, torch.zeros(len(x), dtype=torch.long), key)["fc1"].reshape(self.d)
        return (step @ pair.direction.to(step))[None]


def together(release: Release, seeds: Tensor, chunk: int) -> Tensor:
    """``(count, channels)`` float64, mapped over the seeds."""
    every: Callable[[Tensor], Tensor] = torch.vmap(
        lambda seed: release(Key(seed)).double(), chunk_size=chunk
    )
    return every(seeds)


def one_by_one(release: Release, seeds: Tensor) -> Tensor:
    """The same, one seed after the other."""
    keys = (Key(seed % (1 << 64)) for seed in seeds.tolist())
    return torch.stack([release(key).double() for key in keys])


def _symbols(sent: Payload) -> Tensor:
    """``(n, d)`` of 0 and 1, whatever they stand for."""
    if isinstance(sent, BinaryMasks):
        return sent.mask.float()
    if isinstance(sent, SignBits):
        return sent.positive.float()
    raise ConfigError(
        "--method mechanism needs a protocol that sends masks or signs, got "
        f"{type(sent).__name__}; use --protocol fedpm or signsgd"
    )
