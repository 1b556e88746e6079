"""Malicious clients that are not in the round may train for it: who does, and what it costs."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from crafting import crafted, round_of
from torch import Tensor

import fedbench
from fedbench.adversary.threat_model import needs
from fedbench.api import Attack, AttackView, Knowledge
from fedbench.core import registry
from fedbench.core.errors import ConfigError, PluginError
from fedbench.executors.training import Loop
from fedbench.experiment.prepare import prepare
from fedbench.experiment.scenario import Scenario
from fedbench.experiment.setup import Setup
from fedbench.payload import Payload, Rankings, identical
from fedbench.run import begin, play_round
from fedbench_attacks.rankings import RankReversal

FSL = Scenario(
    protocol="fsl", clients=20, per_round=6, rounds=2, epochs=1, malicious=0.4, model="micro"
)


@dataclass(frozen=True)
class Asking(Attack):
    """Asks for so many recruits, and keeps its views."""

    wanted: int | None = 0
    tier: Any = "colluders"
    views: list[AttackView] = field(default_factory=list)

    @property
    def recruits(self) -> int | None:
        return self.wanted

    def needs(self) -> Knowledge:
        return Knowledge(self.tier)

    def craft(self, view: AttackView, memory: Any) -> tuple[Payload, Any]:
        self.views.append(view)
        return view.own, memory


def played(wanted: Any, scenario: Scenario = FSL, steps: int = 1) -> tuple[Setup, Any, Any, Any]:
    """The setup, its state before and after the last round, and that round's record and view."""
    setup = prepare(scenario, "cpu", "loop")
    attack = Asking(wanted)
    setup = dataclasses.replace(setup, plugins=dataclasses.replace(setup.plugins, attack=attack))
    state = begin(setup)
    for step in range(steps - 1):
        play_round(setup, state, step)
    before = dataclasses.replace(state, memories=dict(state.memories))
    seen = play_round(setup, state, steps - 1)
    assert 0 < seen.malicious < 8, "some of its eight clients are in the round"
    return setup, (before, state), seen, attack.views[-1]


def honest_message(setup: Setup, server: Any, memory: Any, i: int, step: int) -> Payload:
    """What this client would send if it were in the round alone."""
    protocol = setup.plugins.protocol
    shared = setup.shared
    sent = protocol.broadcast(shared, server, [i], setup.secret.key("broadcast", step))
    client = setup.client(i, protocol.receive(shared, sent), memory, step)
    executor = Loop(protocol, shared, setup.executor.schedule)
    updates, memories = executor.train([client])
    message: Payload = protocol.message(shared, updates, [client.key], memories)[0]
    return message


def which(setup: Setup, before: Any, view: AttackView, step: int) -> list[int]:
    """The clients whose honest messages these are, in their order."""
    owned = setup.population.malicious.ids()
    server = before.server
    messages = {i: honest_message(setup, server, before.memories.get(i), i, step) for i in owned}
    assert view.recruits is not None
    rows = [view.recruits.take([row]) for row in range(len(view.recruits))]
    return [next(i for i in owned if identical(messages[i], row)) for row in rows]


@pytest.mark.edges("None-8", "25-8", "5-5")
@pytest.mark.parametrize(("wanted", "count"), [(None, 8), (25, 8), (8, 8), (5, 5), (1, 1)])
def test_recruits_are_its_own_clients_in_the_round_or_not_with_their_honest_messages(
    wanted: int | None, count: int
) -> None:
    setup, (before, after), seen, view = played(wanted)
    ids = which(setup, before, view, 0)
    assert len(set(ids)) == count
    assert all(bool(setup.population.malicious[i]) for i in ids)
    absent = [i for i in ids if i not in seen.clients]
    assert seen.notes["recruited"] == len(absent), "they cost their training"
    assert absent or wanted == 1
    assert not set(absent) & set(after.memories)


def test_they_are_drawn_anew_in_every_round_and_all_of_them_can_be() -> None:
    drawn = []
    for steps in (1, 2):
        setup, (before, _), _, view = played(3, steps=steps)
        drawn.append(which(setup, before, view, steps - 1))
    assert drawn[0] != drawn[1]


@pytest.mark.parametrize("protocol", ["topk:k=0.1,error_feedback=true", "feddrop", "fedpm"])
def test_who_trains_for_it_forgets_that_it_did(protocol: str) -> None:
    scenario = FSL.model_copy(update={"protocol": protocol})
    _, (before, after), seen, view = played(None, scenario, steps=2)
    assert view.recruits is not None
    assert len(view.recruits) == 8
    for i, memory in before.memories.items():
        if i not in seen.clients:
            assert after.memories[i] is memory
    if protocol.startswith("topk"):
        assert set(after.memories) == set(before.memories) | set(seen.clients)


@pytest.mark.parametrize("protocol", ["byz-ef21:k=0.1", "rosdhb"])
def test_patches_of_who_trains_for_it_are_of_what_the_server_remembers_of_each(
    protocol: str,
) -> None:
    scenario = FSL.model_copy(update={"protocol": protocol})
    setup, (before, _), seen, view = played(None, scenario, steps=2)
    ids = which(setup, before, view, 1)
    assert sorted(ids) == setup.population.malicious.ids()
    assert (set(ids) - set(seen.clients)) & set(before.memories), "one that the server remembers"


def test_an_attack_that_asks_for_nobody_costs_nothing_and_is_shown_nobody() -> None:
    _, _, seen, view = played(0)
    assert view.recruits is None
    assert "recruited" not in seen.notes
    # the honest clients do not notice whether others train for the adversary
    other = played(None)[2]
    assert seen.uplink_bits == other.uplink_bits
    assert seen.accuracy == other.accuracy


@pytest.mark.parametrize("wanted", [-1, 2.5, "all"])
def test_a_number_of_recruits_must_be_one(wanted: Any) -> None:
    with pytest.raises(PluginError, match="None or a number of clients"):
        played(wanted)


@dataclass(frozen=True, kw_only=True)
class Undecided(Attack):
    """Attack whose number of recruits cannot be had."""

    @property
    def recruits(self) -> int:
        raise KeyError("recruits")

    def craft(self, view: AttackView, memory: Any) -> tuple[Payload, Any]:
        return view.own, memory


def test_a_number_of_recruits_that_cannot_be_had_is_the_plug_in_s_fault() -> None:
    with pytest.raises(PluginError, match=r"Undecided .*: recruits raised KeyError"):
        prepare(fedbench.Scenario(attack=Undecided(), model="micro"), "cpu", "loop")


def test_recruits_share_what_they_send_so_their_attack_must_collude() -> None:
    with pytest.raises(PluginError, match="must return the tier colluders or all"):
        needs(Asking(3, tier="own"))
    assert needs(Asking(0, tier="own")).tier == "own"


def reversed_vote(orders: Sequence[Sequence[int]]) -> list[int]:
    """REVERSE(VOTE(R_1 .. R_m)) of one layer, slowly: a sum of positions for every edge."""
    places = [{edge: place for place, edge in enumerate(order)} for order in orders]
    sums = [sum(place[edge] for place in places) for edge in range(len(orders[0]))]
    return sorted(range(len(sums)), key=sums.__getitem__)[::-1]


def rankings(*orders: Sequence[int]) -> Rankings:
    return Rankings(torch.tensor(orders, dtype=torch.int32), (len(orders[0]),))


def test_the_vote_of_the_attack_is_that_of_its_voters() -> None:
    # Of the round's two colluders the sums are 0+3, 1+2, 2+0, 3+1 and of the three recruits others.
    here = round_of(rankings((0, 1, 2, 3), (2, 3, 1, 0), (3, 2, 1, 0)))
    recruits = rankings((3, 2, 1, 0), (3, 1, 0, 2), (2, 3, 0, 1))
    here = dataclasses.replace(here, recruits=recruits)
    cases: list[tuple[Any, Any]] = [
        ("round", [(0, 1, 2, 3), (2, 3, 1, 0)]),
        ("all", recruits.symbols.tolist()),
        (25, recruits.symbols.tolist()),
    ]
    for voters, orders in cases:
        _, message = crafted(RankReversal(voters=voters), here)
        assert message.symbols.tolist() == [reversed_vote(orders)] * 2, voters
    # By hand: 3 is at 0, 0, 1 (1), 2 at 1, 3, 0 (4), 1 at 2, 1, 3 (6), 0 at 3, 2, 2 (7).
    assert reversed_vote(recruits.symbols.tolist()) == [0, 1, 2, 3]


def test_as_paper_all_vote_and_as_code_25() -> None:
    assert registry.load("attack", "rank-reversal").voters == "round"
    assert registry.load("attack", "rank-reversal:as=paper").recruits is None
    assert registry.load("attack", "rank-reversal:as=code").recruits == 25
    assert registry.load("attack", "rank-reversal:as=code,voters=3").recruits == 3
    for wrong in ("0", "-1", "some"):
        with pytest.raises(ConfigError, match="voters"):
            registry.load("attack", f"rank-reversal:voters={wrong}")


def test_every_malicious_client_of_a_round_sends_the_reverse_of_all_their_votes() -> None:
    setup, _, _, view = played(None)
    assert isinstance(view.recruits, Rankings)
    orders: Tensor = view.recruits.symbols
    _, message = crafted(
        RankReversal(voters="all"),
        dataclasses.replace(round_of(view.own, m=len(view.own)), recruits=view.recruits),
    )
    sizes = setup.shared.weights.sizes
    for layer, sent in zip(
        torch.split(orders, list(sizes), dim=1),
        torch.split(message.symbols, list(sizes), dim=1),
        strict=True,
    ):
        assert sent.tolist() == [reversed_vote(layer.tolist())] * len(view.own)
