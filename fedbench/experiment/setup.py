"""Setup of a run: everything that does not change from round to round."""

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor

from fedbench.adversary import threat_model
from fedbench.adversary.rehearsal import rehearsal
from fedbench.adversary.threat_model import OwnedRows
from fedbench.api import (
    Attack,
    Mechanism,
    Memory,
    Rehearsal,
    Sees,
    ServerView,
    Shared,
    Traits,
    hooks,
)
from fedbench.core.blame import ask
from fedbench.core.permutations import MAX_LISTED, distinct
from fedbench.core.rng import Key, Secret
from fedbench.core.sources import SourceFile
from fedbench.core.tiling import finite_rows
from fedbench.core.trees import Layout, Tree
from fedbench.executors.training import Client, Executor, untouched
from fedbench.experiment import cohorts
from fedbench.experiment.compatibility import Plugins
from fedbench.experiment.population import Population
from fedbench.experiment.scenario import Scenario
from fedbench.payload import Payload, joined

SERVERS_CLIENT = -1  # number of the server's own client, which trains on its root data
MAX_REHEARSING_CLIENTS = 1000  # of an adversary that owns more than can be listed


@dataclass(frozen=True, eq=False)
class Setup:
    """Everything that does not change during a run."""

    scenario: Scenario  # with every default written out
    plugins: Plugins
    id: str
    population: Population
    shared: Shared
    executor: Executor
    secret: Secret  # root of all draws of the run; no plug-in is handed it
    sources: Sequence[SourceFile]  # of plug-ins of other packages
    canonical: bool  # whether it is to have the same numbers on every processor
    at_once: int | None  # clients of a round that are in memory at once; None: all of them

    def noncompliant(self, ids: Sequence[int]) -> Tensor:
        """Return ``(n,)`` bool: clients that never add noise, also outside of the attack's window.

        They are the adversary's, or none if its attack is ``idle``.
        """
        return self.population.malicious[ids] & ~torch.tensor(self.plugins.attack.idle)

    @property
    def noncompliant_clients(self) -> int:
        """Number of all clients that never add noise."""
        return 0 if self.plugins.attack.idle else self.population.malicious.count

    @property
    def sees(self) -> Sees:
        """Observation of privacy's adversary; by default where the mechanism protects most."""
        default: Sees = "model" if self.plugins.mechanism.central else "messages"
        return self.scenario.sees or default

    def with_population(self, **changes: Any) -> Self:
        """Return the setup with changed fields of its population."""
        return replace(self, population=replace(self.population, **changes))

    def acts(self, step: int) -> bool:
        """Tell if the round is in the attack's window."""
        scenario = self.scenario
        since = step - scenario.attack_from
        over = scenario.attack_until is not None and step >= scenario.attack_until
        return since >= 0 and not over and since % scenario.attack_every == 0

    def attack(self, step: int) -> Attack:
        """Return the attack of a round; outside the attack's window one that does nothing."""
        attack: Attack = self.plugins.attack if self.acts(step) else Attack()
        return attack

    def attacking(self, ids: Sequence[int], step: int) -> Tensor:
        """Return ``(n,)`` bool: clients whose messages are not honest ones in this round."""
        active = self.acts(step) and not self.plugins.attack.idle
        return self.population.malicious[ids] & torch.tensor(active)

    def owned(self, ids: Sequence[int], step: int) -> OwnedRows:
        """Return the rows of a round, of the clients ``ids``, that belong to the adversary."""
        malicious = self.population.malicious
        rows = malicious[ids].nonzero()[:, 0]
        owned = [ids[row] for row in rows.tolist()]
        return OwnedRows(
            rows=rows,
            ids=owned,
            numbers=malicious.numbers(owned),
            total=malicious.count,
            secret=self.secret.derive("adversary", step),
        )

    def rehearse(
        self, server: Any, step: int, ids: Sequence[int], alone: bool, received: Payload, n: int
    ) -> Rehearsal:
        """Return the rehearsal of the adversary's clients ``ids``, or of all that it owns.

        Of more than `MAX_LISTED` clients it has the samples of at most `MAX_REHEARSING_CLIENTS`,
        those with the first numbers, so that a rehearsal takes bounded time.
        """
        population = self.population
        owned = ids if alone else self.rehearsing
        rows = torch.cat([population.train[i] for i in owned])
        x = population.data.floats(rows)
        y = population.data.y[rows]
        secret = self.secret.derive("rehearsal", step)
        state = threat_model.detached_copy(server)
        return rehearsal(self.executor, state, received, ids[0], n, x, y, secret)

    @cached_property
    def rehearsing(self) -> list[int]:
        """Clients of the adversary whose samples it rehearses with."""
        malicious = self.population.malicious
        if self.scenario.clients <= MAX_LISTED:
            return malicious.ids()
        return malicious.ids(torch.arange(min(MAX_REHEARSING_CLIENTS, malicious.count)))

    def sample(self, step: int) -> list[int]:
        """Draw the clients of a round."""
        return cohorts.draw(self.scenario, self.population.malicious, self.secret, step)

    def arriving(self, ids: Sequence[int], step: int) -> list[int]:
        """Return the places, in a round of the clients ``ids``, of those that do not drop out."""
        return cohorts.present(self.scenario, self.secret, step, ids)

    def taking_part(self, step: int) -> list[int]:
        """Return the clients of a round whose messages arrive, in the order of the rows."""
        ids = self.sample(step)
        return [ids[place] for place in self.arriving(ids, step)]

    def client(
        self, i: int, tree: Tree, memory: Memory | None, step: int, complies: bool | None = None
    ) -> Client:
        """Return client ``i`` of a round, with the tree that it received and what it remembers.

        Whether it ``complies`` with the mechanism is looked up if left out and of interest.
        """
        data = self.population.data
        rows = self.population.train[i]
        # Clients with different gradients share no launch.
        wraps = type(self.plugins.mechanism).wrap_grad is not Mechanism.wrap_grad
        if wraps and complies is None:
            complies = not self.noncompliant([i])
        return Client(
            tree=tree,
            x=data.floats(rows),
            y=data.y[rows],
            key=self.secret.key("client", step, i),
            memory=memory or ask(self.plugins.protocol, "memory", dict, self.shared),
            wrap_grad=self.plugins.mechanism.wrap_grad if wraps and complies else untouched,
            round=step,
        )

    def clients(
        self, ids: Sequence[int], trees: Sequence[Tree], memories: Mapping[int, Memory], step: int
    ) -> Sequence[Client]:
        """Return the clients of a round, to whom ``trees`` are dealt in turn: one for all, or each.

        Their samples are not read here if the executor reads them elsewhere.
        """
        cohort = Cohort(self, ids, trees, memories, step)
        return cohort if self.executor.elsewhere else list(cohort)

    def keys(self, ids: Sequence[int], step: int) -> list[Key]:
        """Return the keys of the clients of a round."""
        return [self.secret.key("client", step, i) for i in ids]

    def recruiting(self, attack: Attack, step: int | None = None) -> int:
        """Return how many of its own clients train for an attack: no more than it owns."""
        asked = threat_model.recruits(attack, step)
        owned = self.population.malicious.count
        return owned if asked is None else min(asked, owned)

    def recruits(self, owned: OwnedRows, step: int) -> list[int]:
        """Draw the clients that the attack asked for (`Attack.recruits`), in the round or not."""
        count = self.recruiting(self.attack(step), step)
        if count == 0 or not len(owned):
            return []
        malicious = self.population.malicious
        return malicious.ids(distinct(owned.secret.key("recruits"), malicious.count, count))

    def recruited(
        self,
        owned: OwnedRows,
        clients: Sequence[Client],
        memories: Mapping[int, Memory],
        honest: Payload,
        step: int,
    ) -> tuple[Payload | None, int]:
        """Return the honest messages of `recruits`, and how many of them trained for it alone.

        Those of the round have made theirs. Each other one trains as if honest, from what a client
        of the adversary in the round has received, and forgets that it did.
        """
        ids = self.recruits(owned, step)
        if not ids:
            return None, 0
        rows = dict(zip(owned.ids, owned.rows.tolist(), strict=True))
        present = [rows[i] for i in ids if i in rows]
        absent = [i for i in ids if i not in rows]
        if not absent:
            return honest.take(present), 0
        extra = self.clients(absent, [clients[row].tree for row in rows.values()], memories, step)
        protocol = self.plugins.protocol
        updates, after = self.executor.trained(extra, step)
        sent, _ = hooks.message(protocol, self.shared, updates, self.keys(absent, step), after)
        return joined([honest.take(present), sent]), len(absent)

    def view(
        self,
        ids: Sequence[int],
        broadcast: Payload,
        step: int,
        memories: MutableMapping[int, Memory] | None = None,
    ) -> ServerView:
        """Return what the defense is shown of the clients ``ids``, beside their messages.

        Of the ``memories`` that of `SERVERS_CLIENT` may change, see `root_message`.
        """
        draw = self.scenario.defense_draw
        needs = ask(self.plugins.defense, "traits", Traits)
        return server_view(
            self.plugins,
            self.shared,
            self.population.sizes(ids),
            broadcast=broadcast,
            step=step,
            key=self.secret.key("defense", step, *([draw] if draw else [])),
            expected=self.scenario.per_round,
            ids=self.population.pseudonyms[list(ids)],
            root=self.root_message(broadcast, step, memories) if needs.root else None,
            truth=self.attacking(ids, step) if needs.oracle else None,
        )

    def root_message(
        self, broadcast: Payload, step: int, memories: MutableMapping[int, Memory] | None = None
    ) -> Payload:
        """Return one row: the message of a client that has the server's root data.

        That client is in every round. It remembers what clients do, in ``memories`` under
        `SERVERS_CLIENT`; by default nothing.
        """
        key = self.secret.key("root", step)
        protocol = self.plugins.protocol
        data = self.population.data
        memories = {} if memories is None else memories
        client = Client(
            tree=ask(protocol, "receive", dict, self.shared, broadcast.take([0])),
            x=data.floats(self.population.root),
            y=data.y[self.population.root],
            key=key,
            memory=memories.get(SERVERS_CLIENT) or ask(protocol, "memory", dict, self.shared),
            round=step,
        )
        updates, after = self.executor.trained([client], step)
        sent, (memory,) = hooks.message(protocol, self.shared, updates, [key], after)
        if memory:
            memories[SERVERS_CLIENT] = memory
            self.remember([SERVERS_CLIENT], sent, memories)
        return sent

    def remember(
        self, ids: Sequence[int], received: Payload, memories: MutableMapping[int, Memory]
    ) -> None:
        """Write what arrived into `Protocol.agreed`, where both ends remember it.

        A message whose values are not finite changes nothing at either end.
        """
        name = self.plugins.protocol.agreed
        if name is not None:
            for i, row in finite_values(ids, received).items():
                memories[i] = memories[i] | {name: row}


def server_view(plugins: Plugins, shared: Shared, sizes: Tensor, **fields: Any) -> ServerView:
    """Return the view of a server whose clients have these ``sizes (n,)``, with other ``fields``.

    All weights are equal where the protocol says so, or where central noise needs it.
    """
    alike = not plugins.protocol.weighted or plugins.mechanism.central
    return ServerView(
        torch.ones_like(sizes) if alike else sizes,
        layout=ask(plugins.protocol, "trained", Layout, shared),
        network=shared.network if ask(plugins.defense, "traits", Traits).network else None,
        **fields,
    )


def finite_values(ids: Sequence[int], received: Payload) -> dict[int, Tensor]:
    """Return the `Payload.values` ``(k,)`` of each client, without rows that are not finite."""
    values = received.values()
    rows = zip(ids, values, finite_rows(values).tolist(), strict=True)
    return {i: row.clone() for i, row, finite in rows if finite}


@dataclass(frozen=True, eq=False)
class Cohort(Sequence[Client]):
    """Clients of a round, each of which is made when it is asked for, its samples with it."""

    setup: Setup
    ids: Sequence[int]
    trees: Sequence[Tree]  # dealt in turn: one for all, or one for each
    memories: Mapping[int, Memory]  # of those that took part before
    step: int

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, row: Any) -> Any:
        i = self.ids[row]
        complies = self._complies[row]
        return self.setup.client(i, self.tree(row), self.memories.get(i), self.step, complies)

    def tree(self, row: int) -> Tree:
        """Return the tree that a client received."""
        return self.trees[row % len(self.trees)]

    @cached_property
    def _complies(self) -> list[bool]:
        answer: list[bool] = (~self.setup.noncompliant(self.ids)).tolist()
        return answer
