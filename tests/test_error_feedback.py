"""Clients remember: error feedback from round to round."""

import dataclasses
from typing import Any

import pytest
import torch

from fedbench.executors.factory import executor
from fedbench.executors.training import Schedule
from fedbench.experiment.prepare import prepare
from fedbench.experiment.scenario import Scenario
from fedbench.experiment.setup import Setup
from fedbench.experiment.state import RunState
from fedbench.protocols.compressed import TopK
from fedbench.run import play_round
from fedbench_attacks.none import NoAttack
from fedbench_attacks.searched import DynOpt
from fedbench_attacks.sign_flip import SignFlip
from fedbench_defenses.median import TrimmedMean

FEEDBACK = TopK(k=0.05, error_feedback=True)


def game(**plugins: Any) -> tuple[Setup, RunState]:
    setup = prepare(Scenario(clients=12, per_round=7, epochs=1, malicious=0.3), "cpu")
    parts = dataclasses.replace(setup.plugins, protocol=FEEDBACK, **plugins)
    engine = executor("loop", FEEDBACK, setup.shared, Schedule(1, 8))
    setup = dataclasses.replace(setup, plugins=parts, executor=engine)
    return setup, RunState(FEEDBACK.init(setup.shared))


@pytest.mark.parametrize("attack", [NoAttack(), SignFlip(via="wire"), DynOpt(via="wire")])
def test_it_passes_an_attacked_round(attack: Any) -> None:
    setup, state = game(attack=attack, defense=TrimmedMean(f=2))
    start = state.server.clone()
    r = play_round(setup, state, 0)
    assert r.malicious > 0
    assert r.accepted == 7
    assert not r.skipped
    assert not torch.equal(state.server, start)


def test_memory_goes_from_round_to_round_of_the_same_client_only() -> None:
    setup, state = game()
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
