"""The contracts are wide enough: a skeleton of a protocol to come passes one round.

Top-k with error feedback remembers. It is a test of the house, not that protocol.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from fedbench.api import Memory, Protocol, Shared
from fedbench.payload import Payload, SparseVectors
from fedbench.protocols.topk import TopK
from fedbench.rng import Key
from fedbench.run import World, play_round
from fedbench.scenario import Scenario
from fedbench.setup import Setup, prepare
from fedbench.testing import check_protocol
from fedbench.training import Schedule, executor
from fedbench_attacks.dyn_opt import DynOpt
from fedbench_attacks.none import NoAttack
from fedbench_attacks.sign_flip import SignFlip
from fedbench_defenses.trimmed_mean import TrimmedMean


@dataclass(frozen=True, kw_only=True)
class RememberingTopK(TopK):
    """Error feedback: what was not sent is added to the next update."""

    sends: ClassVar[type[Payload]] = SparseVectors
    k: float = 0.05

    def memory(self, shared: Shared) -> Memory:
        return {"residual": torch.zeros(shared.layout.d, device=shared.device)}

    def message(
        self, shared: Shared, updates: Tensor, keys: Sequence[Key], memory: Sequence[Memory]
    ) -> tuple[Payload, Sequence[Memory]]:
        wanted = updates + torch.stack([one["residual"] for one in memory])
        payload, _ = super().message(shared, wanted, keys, memory)
        left = wanted - payload.values()
        return payload, [{"residual": row} for row in left]


SKELETONS: list[Protocol[Any]] = [RememberingTopK()]
IDS = ["error feedback"]


def game(protocol: Protocol[Any], **plugins: Any) -> Setup:
    """A small run of a protocol that is not installed."""
    scenario = Scenario(clients=12, per_round=7, epochs=1, malicious=0.3)
    setup = prepare(scenario, "cpu")
    parts = dataclasses.replace(setup.plugins, protocol=protocol, **plugins)
    engine = executor("loop", protocol, setup.shared, Schedule(1, 8))
    return dataclasses.replace(setup, plugins=parts, executor=engine)


@pytest.mark.parametrize("protocol", SKELETONS, ids=IDS)
def test_a_skeleton_keeps_the_promises_of_a_protocol(protocol: Protocol[Any]) -> None:
    check_protocol(protocol)


@pytest.mark.parametrize("attack", [NoAttack(), SignFlip(via="wire"), DynOpt(via="wire")])
@pytest.mark.parametrize("protocol", SKELETONS, ids=IDS)
def test_a_skeleton_passes_a_round_with_attack_and_defense(
    protocol: Protocol[Any], attack: Any
) -> None:
    setup = game(protocol, attack=attack, defense=TrimmedMean(f=2))
    world = World(protocol.init(setup.shared))
    start = world.state.clone()
    one = play_round(setup, world, 0)
    assert one.malicious > 0
    assert one.accepted == 7
    assert not one.skipped
    assert not torch.equal(world.state, start)


def test_memory_goes_from_round_to_round_of_the_same_client_only() -> None:
    setup = game(RememberingTopK())
    world = World(RememberingTopK().init(setup.shared))
    first = play_round(setup, world, 0)
    residual = {i: memory["residual"].clone() for i, memory in world.clients.items()}
    assert set(residual) == set(first.clients)
    assert all(float(r.abs().sum()) > 0 for r in residual.values())
    second = play_round(setup, world, 1)
    again, away = set(first.clients) & set(second.clients), set(first.clients) - set(second.clients)
    assert again
    assert away
    assert all(not torch.equal(world.clients[i]["residual"], residual[i]) for i in again)
    assert all(torch.equal(world.clients[i]["residual"], residual[i]) for i in away)


def test_what_is_not_sent_is_kept() -> None:
    shared = game(RememberingTopK()).shared
    updates = Key(0).normal(1, shared.layout.d)
    memory = [RememberingTopK().memory(shared)]
    payload, (kept,) = RememberingTopK().message(shared, updates, [Key(0)], memory)
    torch.testing.assert_close(payload.values()[0] + kept["residual"], updates[0])
