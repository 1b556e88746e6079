"""The contracts: Protocol, Attack, Defense, Mechanism, and what each of them is shown.

Letters: ``n`` clients of a round (rows), ``m`` of them malicious, ``d`` parameters, ``k`` the width
of a payload's `values`. A plug-in is a frozen dataclass: its fields are its hyperparameters, all
with defaults; its methods are pure. State goes in and comes out.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Literal, TypeVar

from torch import Tensor

from fedbench.layout import Layout, Tree
from fedbench.network import Shared as Shared
from fedbench.payload import Payload, Spec
from fedbench.rng import Key

State = TypeVar("State")
Memory = dict[str, Tensor]  # what one client keeps from round to round
Grad = Callable[[Tree, Tensor, Tensor, Key], Tree]  # (trained tree, x, y, key) -> gradient of it
Batches = Sequence[tuple[Tensor, Tensor]]  # the steps of a round: so many are known at once
Alphabets = tuple[type[Payload], ...]


class Protocol(ABC, Generic[State]):
    """A federated protocol, as in FedAvg, FSL, FedPM."""

    sends: ClassVar[type[Payload]]
    default_defense: ClassVar[str] = "mean"  # the mean of votes, then `server_step`, is the vote
    statistics: ClassVar[bool] = True  # can its messages carry those of batch normalisation?
    space: ClassVar[Literal["weights", "probabilities", "scores"]] = "weights"

    @property
    def weighted(self) -> bool:
        """True if the mean weights clients by their size, False if all count the same."""
        return True

    @property
    def votes(self) -> bool:
        """True if the default rule's mean, with `server_step`, is a vote."""
        return False

    @abstractmethod
    def init(self, shared: Shared) -> State:
        """The server's state before the first round."""

    def trained(self, shared: Shared) -> Layout:
        """Of the tree that `local_update` returns; its ``d`` is the width of ``updates``."""
        return shared.layout

    def frozen(self, shared: Shared) -> Tree:
        """What clients regenerate from the seed and never train."""
        return {}

    def memory(self, shared: Shared) -> Memory:
        """What a client remembers before its first round; later rounds keep the same names."""
        return {}

    @abstractmethod
    def broadcast(self, shared: Shared, state: State, clients: Sequence[int], key: Key) -> Payload:
        """What the server sends: one row for all clients, or one per client."""

    @abstractmethod
    def receive(self, shared: Shared, broadcast: Payload) -> Tree:
        """What a client trains, from the one row that it was sent."""

    def weights(self, trained: Tree, frozen: Tree, key: Key) -> Tree:
        """The parameters that the network computes with in one step, differentiable in ``trained``.

        Written for one client: no branch on values, every draw from ``key``.
        """
        return trained

    @abstractmethod
    def local_update(
        self, tree: Tree, batches: Batches, grad: Grad, key: Key, memory: Memory
    ) -> tuple[Tree, Memory]:
        """Train ONE client; what comes out, flattened, is a row of ``updates``.

        The harness maps it over clients, one after the other or under ``vmap``. ``grad`` belongs to
        the harness, so that mechanisms and attacks can wrap it; for a running statistic it says how
        far to go down, whatever the learning rate (`is_statistic`). A label of -1 is padding.
        """

    @abstractmethod
    def message(
        self, shared: Shared, updates: Tensor, keys: Sequence[Key], memory: Sequence[Memory]
    ) -> tuple[Payload, Sequence[Memory]]:
        """Compress ``updates (n, d)``; ``keys`` are the ones that `local_update` drew from."""

    @abstractmethod
    def server_step(
        self, shared: Shared, state: State, aggregate: Tensor, n: int, key: Key
    ) -> State:
        """Turn the estimated mean ``(k,)`` of ``n`` clients' `values` into the next state."""

    @abstractmethod
    def model(self, shared: Shared, state: State, key: Key) -> Tree | list[Tree]:
        """What is deployed; a list is an ensemble whose probabilities are averaged."""

    @abstractmethod
    def model_bits(self, shared: Shared, state: State) -> int:
        """Bits to store what is deployed."""

    def local_model(self, shared: Shared, broadcast: Payload, sent: Payload) -> Tree | None:
        """The client's own network, as one message says it; None where a message says none."""
        return None


@dataclass(frozen=True)
class Knowledge:
    """What an attack must be shown.

    Args:
        tier: ``own``: each malicious client its own message; ``colluders``: those of all malicious
            clients; ``all``: those of all benign clients as well.
        defense: A snapshot of the server's rule to query.
        state: A snapshot of the server's state.
    """

    tier: Literal["own", "colluders", "all"] = "own"
    defense: bool = False
    state: bool = False

    def __str__(self) -> str:
        extras = (" + defense" if self.defense else "") + (" + state" if self.state else "")
        return self.tier + extras


@dataclass(frozen=True, eq=False)
class ServerView:
    """What a defense is shown beside the messages. Never who is malicious, nor how many.

    Args:
        weights: ``(n,)`` float64, sizes known at enrolment; all one if the protocol counts votes.
        broadcast: What the server sent this round.
        step: Round, from 0.
        key: The server's own randomness.
    """

    weights: Tensor
    broadcast: Payload
    step: int
    key: Key

    def take(self, rows: Tensor) -> ServerView:
        """The view of a server that accepted only these rows."""
        return ServerView(self.weights[rows], self.broadcast, self.step, self.key)


class Defense(ABC, Generic[State]):
    """An aggregation rule: it estimates the mean of the honest clients' `values`.

    A field ``f`` left at None is filled by the harness with the declared malicious share of a
    round, rounded up: what the server is prepared for, never the truth of a round.
    """

    accepts: ClassVar[Alphabets] = (Payload,)

    def init(self, spec: Spec) -> State | None:
        """The rule's state before the first round."""
        return None

    def rows_needed(self) -> int:
        """The smallest ``n`` for which the rule is defined."""
        return 1

    @abstractmethod
    def tolerates(self, n: int) -> int:
        """Breakdown point: of ``n`` rows, so many may be anything and the output stays bounded."""

    @abstractmethod
    def aggregate(
        self, received: Payload, state: State | None, view: ServerView
    ) -> tuple[Tensor, State | None]:
        """``(k,)`` from the accepted rows; float64 where the values are exact integers."""

    def sensitivity(self, clip: float, n: int) -> float | None:
        """L2 change of the aggregate when one row of norm ``clip`` is replaced, if proved."""
        return None

    def order_weights(self, n: int) -> Tensor | None:
        """``(n,)`` coefficients if the rule combines every coordinate's sorted rows, else None."""
        return None

    def select(self, squared: Tensor) -> Tensor | None:
        """``(n,)`` bool rows that the rule averages, if squared distances ``(n, n)`` decide it."""
        return None


@dataclass(eq=False)
class Oracle:
    """The server's rule as an attack may query it.

    Args:
        rule: The defense, with its parameters.
        ask: The aggregate of a snapshot of the rule if the adversary sends these ``m`` messages and
            the benign clients theirs. It uses other randomness than the server will, and leaves the
            rule's state as it was, here and at the server.
        queries: How often it was asked.
    """

    rule: Defense[Any]
    ask: Callable[[Payload], Tensor]
    queries: int = 0

    def __call__(self, sent: Payload) -> Tensor:
        """``(k,)``, the answer of ``ask``."""
        self.queries += 1
        return self.ask(sent)


@dataclass(frozen=True, eq=False)
class AttackView:
    """All that an attack is shown: copies, filled to the knowledge that it declares.

    Args:
        own: The messages that its ``m`` clients would have sent, trained as if honest.
        updates: ``(m, d)``, the same before compression.
        seen: The messages it may read: `own` for the tiers ``own`` and ``colluders``, those of the
            ``n - m`` benign clients for ``all``.
        n: Rows that the server will receive.
        broadcast: What the server sent.
        step: Round, from 0.
        key: The adversary's randomness.
        compress: The protocol's own message of dense ``(m, d)`` rows, nothing fed back into them.
        memories: What its clients remember, the residual of error feedback for instance.
        defense: The server's rule, if declared.
        state: The server's state, if declared.
        notes: What the attack wants recorded for this round: search results, for instance.
    """

    own: Payload
    updates: Tensor
    seen: Payload
    n: int
    broadcast: Payload
    step: int
    key: Key
    compress: Callable[[Tensor], Payload]
    memories: Sequence[Memory]
    defense: Oracle | None = None
    state: Any = None
    notes: dict[str, float | int | str | bool] = field(default_factory=dict)


class Attack:
    """What an adversary does with its clients. Override what it does; the rest is identity."""

    accepts: ClassVar[Alphabets] = (Payload,)

    def needs(self) -> Knowledge:
        """What it must be shown."""
        return Knowledge()

    def poison(self, xs: Tensor, ys: Tensor, key: Key) -> tuple[Tensor, Tensor]:
        """The training data of a malicious client: ``(N, C, H, W)`` normalised, and labels."""
        return xs, ys

    def wrap_grad(self, grad: Grad) -> Grad:
        """The local training of a malicious client."""
        return grad

    def craft(self, view: AttackView, memory: Any) -> tuple[Payload | list[bytes], Any]:
        """The ``m`` messages that are sent instead, or raw bytes for each of them."""
        return view.own, memory


@dataclass(frozen=True, kw_only=True)
class Mechanism:
    """No privacy mechanism: nothing is clipped, nothing is added, nothing is claimed.

    Every hook is the identity; a mechanism overrides some of them.
    """

    def wrap_grad(self, grad: Grad) -> Grad:
        """Example level: per-sample clipping and noise in an honest client's local training."""
        return grad

    def on_updates(
        self, updates: Tensor, references: Sequence[Tree], keys: Sequence[Key]
    ) -> Tensor:
        """On the client, before compression: ``(n, d)``, and what each client trained from."""
        return updates

    def on_payload(self, payload: Payload, keys: Sequence[Key]) -> Payload:
        """On the client, after compression: randomized response."""
        return payload

    def on_aggregate(
        self, aggregate: Tensor, defense: Defense[Any], view: ServerView, key: Key
    ) -> Tensor:
        """On the server: central noise."""
        return aggregate
