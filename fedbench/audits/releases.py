"""Audit of one mechanism by itself: many releases of two neighbours, by its own code."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fedbench.api import Adjacency, Defense, Gradient, Mechanism, Protocol, Release, ServerView
from fedbench.audits.bounds import CHOOSING_SHARE, AuditFinding, lower_bound
from fedbench.audits.pairs import NeighbourPair, worst_pair
from fedbench.core.errors import ConfigError, require
from fedbench.core.rng import Key
from fedbench.core.trees import Tree
from fedbench.models.network import ConvNet, Shared
from fedbench.payload import BinaryMasks, FloatVectors, Payload, SignBits, bits_of, same
from fedbench.privacy.accountants import Participation, cost_of
from fedbench.privacy.clients import protect_payload, protect_updates
from fedbench.privacy.conversion import Floats
from fedbench.privacy.mechanisms.dp_fedavg import ClipState

CHUNK_VALUES = 1 << 20  # values of a vector draw in one chunk of releases
MAX_SLOW_RELEASES = 30_000  # largest number of releases of a mechanism that cannot be vectorized

DrawRelease = Callable[[Key], Tensor]


@dataclass(frozen=True, eq=False)
class ReleaseBench:
    """One client and the server, to release a mechanism's output as in a round."""

    mechanism: Mechanism
    protocol: Protocol[Any]  # turns the mechanism's output into a message
    defense: Defense[Any]  # the server's rule, for a central mechanism
    d: int  # parameters
    expected: int = 10  # clients of a round; under a central mechanism two come, one of them idle

    @cached_property
    def shared(self) -> Shared:
        """Return a network with ``d`` weights and nothing else: one pixel, ``d`` outputs."""
        return Shared(ConvNet((1, 1, 1), (), (), self.d), 0, torch.device("cpu"))

    def releases(self, pair: NeighbourPair, given: Tensor | None, count: int, key: Key) -> Tensor:
        """Return ``(count, channels)`` independent releases, vectorized if the mechanism allows."""
        seeds = key.bits(count)
        release = self.release(pair, given)
        try:
            return together(release, seeds, max(1, CHUNK_VALUES // self.d))
        except RuntimeError:  # control flow depends on a drawn value, as in an adaptive clip
            return one_by_one(release, seeds[:MAX_SLOW_RELEASES])

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
        mechanism = self.mechanism
        protocol = self.protocol
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
    """Return the releases of `together`, computed seed by seed."""
    return torch.stack([release(Key(seed % (1 << 64))).double() for seed in seeds.tolist()])


def _symbols(sent: Payload) -> Tensor:
    """Return the symbols of messages ``(n, d)``: bits as 0 and 1, or floats."""
    if isinstance(sent, BinaryMasks | SignBits):
        return bits_of(sent).float()
    if isinstance(sent, FloatVectors):
        return sent.values()
    raise ConfigError(
        "--method mechanism needs a protocol that sends masks, signs or floats, got "
        f"{type(sent).__name__}; use --protocol fedpm, signsgd or fedavg"
    )


def audit(
    bench: ReleaseBench,
    delta: float,
    confidence: float,
    releases: int,
    key: Key,
    sampling: Literal["fixed", "poisson"] = "fixed",
    adjacency: Adjacency | None = None,
) -> AuditFinding:
    """Return a lower bound on epsilon of one release, beside the accountant's epsilon.

    The score is the statistic of the likelihood ratio test: the number of ones of bits that differ
    alike, the projection on the difference under noise on floats. Other values that the server
    shows (an adaptive clip) are weighted by signal over noise among the scores that choose the
    test. ``releases`` counts those of each neighbour. `ConfigError` if the mechanism claims
    nothing, `NoTheorem` if the accountant has none for that adjacency.
    """
    require("--releases", releases, releases >= 100, ">= 100")
    mechanism = bench.mechanism
    n = bench.expected
    event = mechanism.event(Release(bench.d, 1, 1, 1, n, n))
    if event is None:
        raise ConfigError(f"{type(mechanism).__name__} claims nothing that could be audited")
    sees: Literal["model", "messages"] = "model" if mechanism.central else "messages"
    cost = cost_of(event, Participation(1, 1, n, n, n, sees, sampling, adjacency), delta)
    pair = worst_pair(event, mechanism, bench.protocol.space, bench.d, cost.adjacency, delta)
    first = bench.releases(pair, pair.first, releases, key.fold("first"))
    second = bench.releases(pair, pair.second, releases, key.fold("second"))
    bound = lower_bound(*scores(first, second), delta, confidence)
    return AuditFinding(
        method="mechanism",
        epsilon=bound.epsilon,
        claimed=cost.epsilon,
        delta=delta,
        unit=mechanism.unit,
        adjacency=cost.adjacency,
        confidence=confidence,
        audited=f"one release: {pair.description}",
        evidence=f"{len(first):,} releases of each; true alarms {bound.true:.4g}, "
        f"false {bound.false:.3g}; so many can prove {bound.most:.3g} at most",
        exact=None if pair.law is None else pair.law.epsilon(delta),
        paper=cost.paper,
    )


def scores(first: Tensor, second: Tensor) -> tuple[Floats, Floats]:
    """Weighted sums ``(N,)`` of the channels of releases ``(N, channels)``, large for the first."""
    a, b = first.numpy(), second.numpy()
    if a.shape[1] == 1:
        return a[:, 0], b[:, 0]
    x, y = a[: int(CHOOSING_SHARE * len(a))], b[: int(CHOOSING_SHARE * len(b))]
    noise = np.maximum((x.var(axis=0) + y.var(axis=0)) / 2, 1e-30)
    weights = (x.mean(axis=0) - y.mean(axis=0)) / noise
    return a @ weights, b @ weights
