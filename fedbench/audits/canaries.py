"""Canary clients in a real run, and what the scenario's adversary observes of them."""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from fedbench.api import Defense, Memory, ServerView
from fedbench.core.errors import ConfigError
from fedbench.core.rng import Key
from fedbench.executors.training import Client, Executor
from fedbench.experiment.setup import Setup
from fedbench.experiment.state import RunState
from fedbench.payload import Payload, Spec
from fedbench.run import play_round

Form = Literal["signs", "sphere"]
FAR = 10.0  # times the clip, so that the mechanism has to clip it


@dataclass(frozen=True, eq=False)
class Canaries:
    """The last ``m`` clients of a run, which do not train.

    A present canary sends ``idle + radius u`` in each of its rounds, with a random unit vector
    ``u`` of its own; an absent one sends ``idle``, as a client that learned nothing. Both comply
    with the mechanism, so the two are neighbours in the sense of zero-out.

    Args:
        there: ``(m,)`` bool, true for canaries that are present.
        first: Client that is canary 0.
        radius: L2 norm of the update before the mechanism clips it.
        key: Key of the directions.
        form: ``signs``: ``u`` is in ``{-1, 1}^d / sqrt(d)``; ``sphere``: uniform on the sphere.
    """

    there: Tensor
    first: int
    radius: float
    key: Key
    form: Form = "signs"

    def __len__(self) -> int:
        return len(self.there)

    def direction(self, j: int, d: int) -> Tensor:
        """Return the unit vector ``(d,)`` of canary ``j``, the same at every call."""
        key = self.key.fold("direction", j)
        x = key.flips(d) if self.form == "signs" else key.normal(d)
        return torch.nn.functional.normalize(x, dim=0)

    def update(self, j: int, idle: Tensor) -> Tensor:
        """Return the update ``(d,)`` of canary ``j``."""
        if not bool(self.there[j]):
            return idle
        return idle + self.radius * self.direction(j, len(idle)).to(idle)

    def rows(self, ids: Sequence[int]) -> dict[int, int]:
        """Map the rows of a round, of clients ``ids``, to their canaries."""
        return {row: i - self.first for row, i in enumerate(ids) if i >= self.first}


@dataclass(frozen=True, eq=False)
class Planted(Executor):
    """Executor in which some rows are given, and the others train as usual.

    Args:
        inner: Executor of the other rows.
        given: Updates ``(d,)`` by row of this round.
    """

    inner: Executor
    given: dict[int, Tensor]

    def train(self, clients: Sequence[Client]) -> tuple[Tensor, list[Memory]]:
        """See `Executor.train`; the memory of a canary does not change."""
        honest = [row for row in range(len(clients)) if row not in self.given]
        trained, memories = self.inner.train([clients[row] for row in honest])
        updates = trained.new_zeros(len(clients), trained.shape[1])
        updates[honest] = trained
        for row, update in self.given.items():
            updates[row] = update.to(updates)
        after = dict(zip(honest, memories, strict=True))
        return updates, [after.get(row, client.memory) for row, client in enumerate(clients)]


@dataclass(frozen=True, eq=False)
class Watched(Defense[Any]):
    """The server's rule, with a record of its input and output for an observer.

    Args:
        inner: The rule.
        seen: Input and output of each call; empty if too few rows came.
    """

    inner: Defense[Any]
    seen: list[tuple[Payload, Tensor]] = field(default_factory=list)

    def init(self, spec: Spec) -> Any:
        """Pass on to the rule that is watched."""
        return self.inner.init(spec)

    def rows_needed(self) -> int:
        """Return the number that the rule needs."""
        return self.inner.rows_needed()

    def tolerates(self, n: int) -> int:
        """Return the number that the rule tolerates."""
        return self.inner.tolerates(n)

    def aggregate(self, received: Payload, state: Any, view: ServerView) -> tuple[Tensor, Any]:
        """Pass on to the rule that is watched."""
        aggregate, state = self.inner.aggregate(received, state, view)
        self.seen.append((received, aggregate))
        return aggregate, state


def play(setup: Setup, run_state: RunState, canaries: Canaries) -> Iterator[dict[int, Tensor]]:
    """Play rounds with canaries; yield for each what is seen, ``(d,)`` by canary.

    An adversary that sees messages gets a canary's own message; one that sees sums and who took
    part the sum of the canary's rounds; one that sees only sums that of every round. All are minus
    what clients that learned nothing would have sent, which the adversary knows. An adversary that
    sees the model gets its change in every round.

    Raises:
        ConfigError: messages do not have a value for each parameter.
    """
    plugins = setup.plugins
    protocol = plugins.protocol
    shared = setup.shared
    before = model(setup, run_state)
    for step in range(setup.scenario.rounds):
        ids = setup.sample(step)
        key = setup.secret.key("broadcast", step)
        idle = protocol.idle(shared, protocol.broadcast(shared, run_state.server, ids or [0], key))
        idle = idle.expand(max(len(ids), 1), -1)
        rows = canaries.rows(ids)
        given = {row: canaries.update(j, idle[row]) for row, j in rows.items()}
        watched = Watched(plugins.defense)
        executor = Planted(protocol, shared, setup.executor.schedule, setup.executor, given)
        observed = dataclasses.replace(
            setup, executor=executor, plugins=dataclasses.replace(plugins, defense=watched)
        )
        play_round(observed, run_state, step)
        after = model(setup, run_state)
        if setup.sees == "model":
            yield dict.fromkeys(range(len(canaries)), after - before)
        elif watched.seen:
            yield _seen(setup, canaries, rows, idle, *watched.seen[0])
        before = after


def _seen(
    setup: Setup,
    canaries: Canaries,
    rows: dict[int, int],
    idle: Tensor,
    received: Payload,
    aggregate: Tensor,
) -> dict[int, Tensor]:
    d = idle.shape[1]
    if aggregate.shape[-1] != d or len(received) != len(idle):
        raise ConfigError(
            "canaries need messages with a value for each parameter, and none that is refused; "
            "use --method mechanism, or --protocol fedavg, signsgd or fedpm"
        )
    if setup.sees == "messages":
        values = received.values()
        return {j: values[row] - idle[row].to(values) for row, j in rows.items()}
    change = len(received) * aggregate - idle.sum(dim=0).to(aggregate)
    hidden = setup.sees == "hidden-sum"
    return dict.fromkeys(range(len(canaries)) if hidden else rows.values(), change)


def model(setup: Setup, run_state: RunState) -> Tensor:
    """Return the values ``(d,)`` that the server would send now."""
    sent = setup.plugins.protocol.broadcast(
        setup.shared, run_state.server, [0], setup.secret.key("looked at")
    )
    values: Tensor = sent.values()[0]
    return values.clone()


def radius(setup: Setup) -> float:
    """Return a norm far beyond the clip, of the mechanism or of a protocol that adds noise."""
    plugins = setup.plugins
    if plugins.protocol.space == "probabilities":
        return FAR * math.sqrt(int(plugins.protocol.trained(setup.shared).d))
    owner = plugins.mechanism if hasattr(plugins.mechanism, "clip") else plugins.protocol
    return FAR * float(getattr(owner, "clip", None) or 1.0)
