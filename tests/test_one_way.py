"""A key that a plug-in is handed leads to no other draw of the run."""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor
from unfolding import unfold

from fedbench.adversary.threat_model import malicious_clients
from fedbench.api import Attack, AttackView, Knowledge, Local, Mechanism, ServerView
from fedbench.core.rng import Key, Secret
from fedbench.experiment.prepare import prepare
from fedbench.experiment.scenario import Scenario
from fedbench.experiment.setup import Setup
from fedbench.experiment.state import RunState
from fedbench.payload import Payload
from fedbench.protocols.fedavg import FedAvg
from fedbench.run import play_round
from fedbench_defenses.mean import Mean

SMALL = Scenario(clients=20, per_round=6, rounds=6, epochs=1, malicious=0.4, eval_every=6)
Handed = dict[str, set[int]]  # by what it is for, the seeds of keys


def keys_of(given: Sequence[Any]) -> list[Key]:
    """The keys among a method's arguments, alone or in a list; without any, those of its view."""
    items = [item for x in given for item in (x if isinstance(x, Sequence) else [x])]
    views = (x.key for x in given if isinstance(x, AttackView | Local | ServerView))
    return [item for item in items if isinstance(item, Key)] or list(views)


def noting(plugin: type, handed: Handed, **purposes: str) -> Any:
    """A plug-in of this class whose methods of these names note the keys that they are handed."""

    def watched(name: str) -> Any:
        def method(self: Any, *given: Any) -> Any:
            for key in keys_of(given):
                assert isinstance(key.seed, int)
                handed.setdefault(purposes[name], set()).add(key.seed)
            return getattr(plugin, name)(self, *given)

        return method

    return type("Noting", (plugin,), {name: watched(name) for name in purposes})()


class Idle(Attack):
    """It could change the data and the message, and leaves both."""

    def needs(self) -> Knowledge:
        return Knowledge("own")

    def poison(self, xs: Tensor, ys: Tensor, local: Local) -> tuple[Tensor, Tensor]:
        return xs, ys

    def craft(self, view: AttackView, memory: Any) -> tuple[Payload, Any]:
        return view.own, memory


def played(setup: Setup, rounds: int, **plugins: Any) -> Setup:
    """The setup with these plug-ins, so many rounds later."""
    setup = dataclasses.replace(setup, plugins=dataclasses.replace(setup.plugins, **plugins))
    run_state = RunState(setup.plugins.protocol.init(setup.shared))
    for step in range(rounds):
        play_round(setup, run_state, step)
    return setup


@pytest.fixture(scope="module")
def small() -> Setup:
    return prepare(SMALL, "cpu", "loop")


def paths(clients: Sequence[int]) -> Iterator[tuple[str | int, ...]]:
    """The names under which a harness might fold the keys of round 0 and of these clients."""
    yield ()
    for purpose in ("defense", "broadcast", "server", "mechanism", "model", "adversary"):
        yield purpose, 0
    for i in clients:
        yield "client", 0, i
        yield "client", 0, i, "privacy"
        yield "client", 0, i, "poison"
    for row in range(SMALL.per_round):
        yield "adversary", 0, row


def test_a_key_that_is_handed_out_leads_to_no_other_one(small: Setup) -> None:
    handed: Handed = {}
    plugins = {
        "attack": noting(Idle, handed, poison="poison", craft="craft"),
        "defense": noting(Mean, handed, aggregate="rule"),
        "mechanism": noting(
            Mechanism, handed, on_updates="noise", on_payload="noise", on_aggregate="central noise"
        ),
        "protocol": noting(
            FedAvg,
            handed,
            broadcast="broadcast",
            message="clients",
            server_step="server",
            model="model",
        ),
    }
    often = small.scenario.model_copy(update={"eval_every": 1})
    played(dataclasses.replace(small, scenario=often), 1, **plugins)
    assert len(handed) == 9, "or somebody was not asked"
    known = {seed: purpose for purpose, seeds in handed.items() for seed in seeds}
    assert len(known) == sum(map(len, handed.values())), "a key for two purposes"
    names = list(paths(small.sample(0)[:3]))
    for seed, purpose in known.items():
        roots = {unfold(seed, *path) for path in names}
        reached = {Key(root).fold(*path).seed for root in roots for path in names}
        assert not (reached & set(known)) - handed[purpose], purpose


@dataclass(frozen=True)
class Divining(Mean):
    """The mean. It takes its key back to the run's, and draws the malicious clients from there."""

    ids: list[list[int]] = field(default_factory=list)
    guesses: list[bool] = field(default_factory=list)

    def aggregate(self, received: Any, state: Any, view: ServerView) -> Any:
        assert isinstance(view.key.seed, int)
        root = Key(unfold(view.key.seed, "defense", view.step))
        drawn = malicious_clients(SMALL.clients, SMALL.malicious, root.fold("malicious"))
        self.guesses.extend(drawn[view.ids].tolist())
        self.ids.append(view.ids.tolist())
        return super().aggregate(received, state, view)


def test_a_rule_cannot_compute_who_is_malicious_and_knows_clients_by_pseudonyms_that_stay(
    small: Setup,
) -> None:
    divined = Divining()
    played(small, 6, defense=divined)
    truth = [bool(small.population.malicious[i]) for step in range(6) for i in small.sample(step)]
    right = [guess == fact for guess, fact in zip(divined.guesses, truth, strict=True)]
    # 36 rows of two independent sets of 40 %: they agree on 18.7 +- 3.0; five sigma above is 33.7.
    assert sum(right) < 34
    pairs = {
        (client, pseudonym)
        for step, ids in enumerate(divined.ids)
        for client, pseudonym in zip(small.sample(step), ids, strict=True)
    }
    clients, pseudonyms = ({pair[side] for pair in pairs} for side in (0, 1))
    assert len(pairs) == len(clients) == len(pseudonyms), "one pseudonym a client, and back"
    assert any(client != pseudonym for client, pseudonym in pairs)


def test_pseudonyms_say_nothing_of_malice() -> None:
    # Mean pseudonym of 8 of 20 clients, 40 runs: 9.5, standard error (35 / 8 * 12/19 / 40) ** .5.
    setups = [prepare(SMALL.model_copy(update={"seed": seed}), "cpu", "loop") for seed in range(40)]
    people = [setup.population for setup in setups]
    means = [float(p.pseudonyms[p.malicious.ids()].double().mean()) for p in people]
    assert abs(sum(means) / 40 - 9.5) < 5 * 0.263
    numbers = torch.stack(
        [torch.stack([p.pseudonyms[:].double(), torch.arange(20.0)]) for p in people]
    )
    correlation = torch.corrcoef(numbers.transpose(0, 1).reshape(2, -1))[0, 1]
    assert abs(float(correlation)) < 5 / 800**0.5


def test_pseudonyms_do_not_follow_from_the_draw_of_the_malicious_clients() -> None:
    # The malicious one of two clients is the first of a permutation: applied twice it is none.
    numbers = set()
    for seed in range(20):
        pair = SMALL.model_copy(update={"clients": 2, "per_round": 1, "malicious": 0.5})
        people = prepare(pair.model_copy(update={"seed": seed}), "cpu", "loop").population
        numbers |= set(people.pseudonyms[people.malicious.ids()].tolist())
    assert numbers == {0, 1}


def test_a_secret_has_32_bytes_and_another_one_for_each_seed_purpose_and_name() -> None:
    run = Secret.of(0, "run")
    others = [Secret.of(1, "run"), Secret.of(0, "data"), run.derive("a"), run.derive("a", 0)]
    others += [run.derive("a0"), run.derive("a").derive(0), run.derive("a", "0")]
    assert len({run.root, *(other.root for other in others)}) == 8
    assert {len(secret.root) for secret in others} == {32}
    seeds = [run.key(), run.key("a"), run.key("a", 0), run.key("a", "0"), run.derive("a").key(0)]
    assert len({key.seed for key in seeds}) == 5
    assert repr(run) == "Secret()", "a traceback does not print it"
