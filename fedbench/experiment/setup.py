"""Setup of a run: everything that does not change from round to round."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from fedbench.adversary import threat_model
from fedbench.adversary.rehearsal import rehearsal
from fedbench.adversary.threat_model import OwnedRows
from fedbench.api import Attack, Memory, Rehearsal, Sees, ServerView, Shared, Traits, hooks
from fedbench.core.blame import Hook, ask
from fedbench.core.rng import Secret
from fedbench.core.sources import SourceFile
from fedbench.core.trees import Layout, Tree
from fedbench.data.datasets import Data
from fedbench.executors.training import Client, Executor, untouched
from fedbench.experiment import cohorts
from fedbench.experiment.compatibility import Plugins
from fedbench.experiment.scenario import Scenario
from fedbench.payload import Payload


@dataclass(frozen=True, eq=False)
class Population:
    """The ``N`` clients: their samples, and which of them the adversary owns."""

    data: Data  # pool of samples, on the device
    train: list[Tensor]  # indices of each client's samples
    validation: list[Tensor]  # empty ones under a split without validation
    test: list[Tensor]  # empty ones where the published test images test
    published: Tensor | None  # indices of the published test images if they test, else None
    root: Tensor  # indices of the server's root data; empty for defenses that need none
    sizes: Tensor  # ``(N,)`` float64, number of training samples of each client
    malicious: Tensor  # ``(N,)`` bool
    pseudonyms: Tensor  # ``(N,)`` int64, numbers by which the defense knows the clients

    def of_benign(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """Return those of the parts, one per client, whose client is not malicious."""
        return [part for i, part in enumerate(parts) if not self.malicious[i]]

    @property
    def judged(self) -> list[Tensor]:
        """Parts on which models are judged: the test parts of the benign clients, one for each.

        Where the published test images test, they are the only part.
        """
        return self.of_benign(self.test) if self.published is None else [self.published]


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

    @property
    def noncompliant(self) -> Tensor:
        """``(N,)`` bool: clients that never add noise, the adversary's if its attack acts."""
        return self.population.malicious & ~torch.tensor(self.plugins.attack.idle)

    @property
    def sees(self) -> Sees:
        """Observation of privacy's adversary; by default where the mechanism protects most."""
        default: Sees = "model" if self.plugins.mechanism.central else "messages"
        return self.scenario.sees or default

    def with_population(self, **changes: Any) -> Self:
        """Return the same setup with other fields of its population."""
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

    def hostile(self, ids: Sequence[int], step: int) -> Tensor:
        """``(n,)`` bool: clients whose messages are not honest ones in this round."""
        active = self.acts(step) and not self.plugins.attack.idle
        return self.population.malicious[list(ids)] & torch.tensor(active)

    def owned(self, ids: Sequence[int], step: int) -> OwnedRows:
        """Return the rows of a round, of the clients ``ids``, that belong to the adversary."""
        malicious = self.population.malicious
        rows = malicious[list(ids)].nonzero()[:, 0]
        owned = [ids[row] for row in rows.tolist()]
        return OwnedRows(
            rows=rows,
            ids=owned,
            numbers=(malicious.cumsum(0) - 1)[owned].tolist(),
            total=int(malicious.sum()),
            secret=self.secret.derive("adversary", step),
        )

    def rehearse(
        self, server: Any, step: int, ids: Sequence[int], alone: bool, received: Payload, n: int
    ) -> Rehearsal:
        """Return the rehearsal of the adversary's clients ``ids``, or of all that it owns."""
        population = self.population
        owned = ids if alone else population.malicious.nonzero()[:, 0].tolist()
        rows = torch.cat([population.train[i] for i in owned])
        x = population.data.floats(rows)
        y = population.data.y[rows]
        secret = self.secret.derive("rehearsal", step)
        state = threat_model.alone(server)
        return rehearsal(self.executor, state, received, ids[0], n, x, y, secret)

    def sample(self, step: int) -> list[int]:
        """Draw the clients of a round."""
        return cohorts.draw(self.scenario, self.population.malicious, self.secret, step)

    def client(self, i: int, tree: Tree, memory: Memory | None, step: int) -> Client:
        """Client ``i`` of a round, with the tree that it received and what it remembers."""
        population = self.population
        honest = self.plugins.mechanism.wrap_grad
        return Client(
            tree=tree,
            x=population.data.floats(population.train[i]),
            y=population.data.y[population.train[i]],
            key=self.secret.key("client", step, i),
            memory=memory or ask(self.plugins.protocol, "memory", dict, self.shared),
            wrap_grad=untouched if self.noncompliant[i] else honest,
            round=step,
        )

    def clients(
        self, ids: Sequence[int], trees: Sequence[Tree], memories: Mapping[int, Memory], step: int
    ) -> list[Client]:
        """Return the clients of a round; ``trees`` has one for all, or one for each."""
        return [
            self.client(i, trees[row % len(trees)], memories.get(i), step)
            for row, i in enumerate(ids)
        ]

    def recruits(self, owned: OwnedRows, step: int) -> list[int]:
        """Draw the clients that the attack asked for (`Attack.recruits`), in the round or not."""
        attack = self.attack(step)
        hook = Hook(attack, "recruits", step)
        with hook:
            wanted = attack.recruits
        counts = isinstance(wanted, int) and wanted >= 0
        hook.must(wanted is None or counts, "None or a number of clients", wanted)
        if wanted == 0 or not len(owned):
            return []
        everyone = self.population.malicious.nonzero()[:, 0]
        count = len(everyone) if wanted is None else min(wanted, len(everyone))
        drawn = owned.secret.key("recruits").permutation(len(everyone))[:count]
        return sorted(everyone[drawn].tolist())

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
        with Hook(protocol, "local_update", step):
            updates, after = self.executor.train(extra)
        keys = [client.key for client in extra]
        sent, _ = hooks.message(protocol, self.shared, updates, keys, after)
        form = honest.take(present + [owned.rows.tolist()[0]] * len(absent))
        return form.put(list(range(len(present), len(ids))), sent), len(absent)

    def announced(self, received: Payload) -> int:
        """Number of messages that the server step is told; central noise hides the real one."""
        return self.scenario.per_round if self.plugins.mechanism.central else len(received)

    def view(self, ids: Sequence[int], broadcast: Payload, step: int) -> ServerView:
        """Return what the defense is shown of the clients ``ids``, beside their messages.

        All weights are equal where the protocol says so, or where central noise needs it.
        """
        alike = not self.plugins.protocol.weighted or self.plugins.mechanism.central
        rows = list(ids)
        sizes = self.population.sizes[rows]
        draw = self.scenario.defense_draw
        needs = ask(self.plugins.defense, "traits", Traits)
        return ServerView(
            torch.ones_like(sizes) if alike else sizes,
            broadcast,
            step,
            key=self.secret.key("defense", step, *([draw] if draw else [])),
            expected=self.scenario.per_round,
            ids=self.population.pseudonyms[rows],
            layout=ask(self.plugins.protocol, "trained", Layout, self.shared),
            network=self.shared.network if needs.network else None,
            root=self.root_message(broadcast, step) if needs.root else None,
            truth=self.hostile(rows, step) if needs.oracle else None,
        )

    def root_message(self, broadcast: Payload, step: int) -> Payload:
        """One row: the message of a client with the server's root data, and without memory."""
        key = self.secret.key("root", step)
        protocol = self.plugins.protocol
        data = self.population.data
        client = Client(
            tree=ask(protocol, "receive", dict, self.shared, broadcast.take([0])),
            x=data.floats(self.population.root),
            y=data.y[self.population.root],
            key=key,
            memory=ask(protocol, "memory", dict, self.shared),
            round=step,
        )
        with Hook(protocol, "local_update", step):
            updates, memories = self.executor.train([client])
        return hooks.message(protocol, self.shared, updates, [key], memories)[0]
