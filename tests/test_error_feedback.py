"""Clients remember: error feedback from round to round."""

import dataclasses
from typing import Any

import pytest
import torch

from fedbench.api import Protocol
from fedbench.core.rng import Key
from fedbench.executors.factory import executor
from fedbench.executors.training import Schedule
from fedbench.experiment.prepare import prepare
from fedbench.experiment.scenario import Scenario
from fedbench.experiment.setup import Setup
from fedbench.experiment.state import RunState
from fedbench.protocols.sparse import TopK
from fedbench.run import play_round
from fedbench_attacks.none import NoAttack
from fedbench_attacks.searched import DynOpt
from fedbench_attacks.sign_flip import SignFlip
from fedbench_defenses.median import TrimmedMean

SKELETONS: list[Protocol[Any]] = [TopK(k=0.05, error_feedback=True)]
IDS = ["error feedback"]


def game(protocol: Protocol[Any], **plugins: Any) -> Setup:
    scenario = Scenario(clients=12, per_round=7, epochs=1, malicious=0.3)
    setup = prepare(scenario, "cpu")
    parts = dataclasses.replace(setup.plugins, protocol=protocol, **plugins)
    engine = executor("loop", protocol, setup.shared, Schedule(1, 8))
    return dataclasses.replace(setup, plugins=parts, executor=engine)


@pytest.mark.parametrize("attack", [NoAttack(), SignFlip(via="wire"), DynOpt(via="wire")])
@pytest.mark.parametrize("protocol", SKELETONS, ids=IDS)
def test_a_skeleton_passes_an_attacked_round(protocol: Protocol[Any], attack: Any) -> None:
    setup = game(protocol, attack=attack, defense=TrimmedMean(f=2))
    state = RunState(protocol.init(setup.shared))
    start = state.server.clone()
    r = play_round(setup, state, 0)
    assert r.malicious > 0
    assert r.accepted == 7
    assert not r.skipped
    assert not torch.equal(state.server, start)


def test_memory_goes_from_round_to_round_of_the_same_client_only() -> None:
    setup = game(TopK(k=0.05, error_feedback=True))
    state = RunState(TopK(k=0.05, error_feedback=True).init(setup.shared))
    first = play_round(setup, state, 0)
    residual = {i: memory["residual"].clone() for i, memory in state.memories.items()}
    assert set(residual) == set(first.clients)
    assert all(float(r.abs().sum()) > 0 for r in residual.values())
    second = play_round(setup, state, 1)
    again, away = set(first.clients) & set(second.clients), set(first.clients) - set(second.clients)
    assert again
    assert away
    assert all(not torch.equal(state.memories[i]["residual"], residual[i]) for i in again)
    assert all(torch.equal(state.memories[i]["residual"], residual[i]) for i in away)


def test_what_is_not_sent_is_kept() -> None:
    shared = game(TopK(k=0.05, error_feedback=True)).shared
    updates = Key(0).normal(1, shared.layout.d)
    memory = [TopK(k=0.05, error_feedback=True).memory(shared)]
    payload, (left,) = TopK(k=0.05, error_feedback=True).message(shared, updates, [Key(0)], memory)
    torch.testing.assert_close(payload.values()[0] + left["residual"], updates[0])
