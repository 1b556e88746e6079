"""Momentum of the clients: two rounds by hand, what is remembered, what an attack sees of it."""

import dataclasses
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from exchanges import flat
from torch import Tensor

from fedbench.adversary.training import train, trained_by
from fedbench.api import Attack, AttackView, Batches, Shared
from fedbench.core.rng import Key
from fedbench.core.trees import Tree
from fedbench.experiment.prepare import prepare
from fedbench.experiment.scenario import Scenario
from fedbench.models.models import CNN4
from fedbench.payload import FloatVectors
from fedbench.protocols.momentum import WorkerMomentum
from fedbench.run import begin, play_round
from fedbench_attacks.label_flip import LabelFlip

LINE = flat(2)
ONE_BATCH = Batches([(torch.zeros(1, 1, 1, 2), torch.zeros(1, dtype=torch.int64))])
PLAIN: Any = {"lr": 0.5, "weight_decay": 0.0}


def trained(
    protocol: WorkerMomentum, shared: Shared, gradient: list[float], memory: Tree
) -> tuple[Tensor, Tree]:
    """Return the message and the memory of a client whose one step has this gradient."""
    layout = shared.layout
    slope = layout.unflatten(torch.tensor(gradient))
    state = protocol.init(shared)
    tree = protocol.receive(shared, protocol.broadcast(shared, state, [0], Key(0)))
    batches = dataclasses.replace(ONE_BATCH, statistics=shared.network.statistics)
    update, memory = protocol.local_update(tree, batches, lambda *_: slope, Key(0), memory)
    sent, memories = protocol.message(shared, layout.flatten(update)[None], [Key(0)], [memory])
    return sent.values()[0], memories[0]


def test_a_client_sends_the_average_of_its_rounds() -> None:
    # u = -g / 2. m1 = u1 / 4; m2 = 3/4 m1 + 1/4 (2, 0). Without 1 - beta it would be (1.25, 1.5),
    # from the first update on (-0.25, 1.5).
    protocol = WorkerMomentum(beta=0.75, **PLAIN)
    first, memory = trained(protocol, LINE, [2.0, -4.0], protocol.memory(LINE))
    assert first.tolist() == [-0.25, 0.5]
    second, memory = trained(protocol, LINE, [-4.0, 0.0], memory)
    assert second.tolist() == [0.3125, 0.375]
    moved = protocol.server_step(LINE, torch.ones(2), second, 3, Key(0))
    assert moved.tolist() == [1.3125, 1.375]
    assert FloatVectors(second[None]).encode()[0].bits == 64


def test_momentum_starts_again_where_it_is_not_finite() -> None:
    protocol = WorkerMomentum(beta=0.75, **PLAIN)
    sent, memory = trained(protocol, LINE, [float("inf"), 1.0], protocol.memory(LINE))
    assert not bool(torch.isfinite(sent).all())
    sent, _ = trained(protocol, LINE, [2.0, -4.0], memory)
    assert sent.tolist() == [-0.25, 0.5]
    _, memory = trained(protocol, LINE, [1e30, 1.0], protocol.memory(LINE))  # its square is not
    assert LINE.layout.flatten(memory).tolist() == [0.0, 0.0]


def test_running_statistics_have_no_momentum() -> None:
    shared = Shared(CNN4().build((1, 28, 28), 10), 3, torch.device("cpu"))
    protocol = WorkerMomentum(beta=0.75, **PLAIN)
    gradient = [1.0] * shared.layout.d
    first, memory = trained(protocol, shared, gradient, protocol.memory(shared))
    second, _ = trained(protocol, shared, gradient, memory)
    parameters = shared.layout.d - shared.statistics.d
    for sent, moved, statistic in ((first, -0.125, -1.0), (second, -0.21875, -1.0)):
        expected = torch.full_like(sent, moved)
        expected[parameters:] = statistic
        torch.testing.assert_close(sent, expected, rtol=0, atol=1e-6)  # w - lr g - w, in float32


def test_momentum_belongs_to_a_client_and_waits_for_it() -> None:
    scenario = Scenario(clients=12, per_round=7, epochs=1, malicious=0.3)
    setup = prepare(scenario.model_copy(update={"protocol": "worker-momentum"}), "cpu", "loop")
    state = begin(setup)
    first = play_round(setup, state, 0)
    before = {i: setup.shared.layout.flatten(state.memories[i]) for i in first.clients}
    second = play_round(setup, state, 1)
    after = {i: setup.shared.layout.flatten(state.memories[i]) for i in first.clients}
    again = set(first.clients) & set(second.clients)
    assert again
    assert {i for i in before if not torch.equal(before[i], after[i])} == again


def test_what_an_attack_compresses_is_sent_as_it_is() -> None:
    # its own momentum would make it ten times smaller
    protocol = WorkerMomentum()
    memory = [protocol.memory(LINE)]
    sent, _ = protocol.message(LINE, torch.tensor([[3.0, -7.0]]), [Key(0)], memory)
    assert sent.values().tolist() == [[3.0, -7.0]]


def test_a_malicious_client_has_the_momentum_of_its_own_training() -> None:
    # With that of honest training nine tenths of what it sends would be honest.
    fields: Any = {"clients": 6, "per_round": 6, "epochs": 1, "malicious": 0.34, "model": "micro"}
    scenario = Scenario(**fields, protocol="worker-momentum:beta=0.75", attack="label-flip")
    setup = prepare(scenario, "cpu", "loop")
    state = begin(setup)
    tree = setup.plugins.protocol.receive(
        setup.shared, setup.plugins.protocol.broadcast(setup.shared, state.server, [0], Key(0))
    )
    ids = list(range(6))
    honest = {i: {name: x + 9 for name, x in tree.items()} for i in ids}

    def sent(step: int, memories: Any) -> Tensor:
        clients = setup.clients(ids, [tree], honest, step)
        owned = setup.owned(ids, step)
        given = (clients, owned, None, step, None, memories)
        updates, after = train(setup.attack(step), setup.executor, *given)
        memories |= zip(map(trained_by, owned.ids), after, strict=True)
        return updates

    kept: dict[int, Any] = {}
    first, second, third = (sent(step, kept) for step in range(3))
    alone = [sent(step, {}) for step in range(3)]
    torch.testing.assert_close(first, alone[0])
    torch.testing.assert_close(second, 0.75 * first + alone[1])
    torch.testing.assert_close(third, 0.75 * second + alone[2])
    malicious = setup.population.malicious.ids()
    assert list(kept) == [trained_by(i) for i in malicious]
    play_round(setup, state, 0)
    assert set(state.memories) == {*ids, *kept}


@pytest.mark.parametrize("protocol", ["fedavg", "topk:k=0.1,error_feedback=true", "ef-signsgd"])
def test_an_attack_that_only_trains_sends_its_training_with_what_is_left_of_earlier_ones(
    protocol: str,
) -> None:
    # Compressed alone, most of what flipped labels teach would never be sent.
    seen = []

    @dataclass(frozen=True)
    class Watched(LabelFlip):
        def craft(self, view: AttackView, memory: Any) -> tuple[Any, Any]:
            seen.append(view)
            return super().craft(view, memory)

    fields: Any = {"clients": 4, "per_round": 4, "epochs": 1, "malicious": 0.25, "model": "micro"}
    setup = prepare(Scenario(**fields, protocol=protocol), "cpu", "loop")
    setup = replace(setup, plugins=replace(setup.plugins, attack=Watched()))
    state = begin(setup)
    for step in range(3):
        play_round(setup, state, step)
    left = torch.zeros_like(seen[0].trained)
    for view in seen:
        sent = view.poisoned.values()
        assert not torch.equal(sent, view.own.values())
        expected = view.compress(view.trained + left).values()
        torch.testing.assert_close(sent, expected)
        left = view.trained + left - sent
        assert Attack.craft(LabelFlip(), view, None) == (view.poisoned, None)
    assert len(seen) == 3
    assert bool(left.any()) == (protocol != "fedavg")


def test_what_both_ends_remember_is_the_same_in_both_trainings_of_a_malicious_client() -> None:
    fields: Any = {"clients": 6, "per_round": 6, "epochs": 1, "malicious": 0.34, "model": "micro"}
    scenario = Scenario(**fields, protocol="byz-dasha-page", attack="label-flip")
    setup = prepare(scenario, "cpu", "loop")
    state = begin(setup)
    malicious = setup.population.malicious.ids()
    for step in range(2):
        before = {i: state.memories[i]["g"] for i in malicious if i in state.memories}
        play_round(setup, state, step)
        for i, g in before.items():
            assert torch.equal(state.memories[trained_by(i)]["g"], g)
            assert not torch.equal(state.memories[trained_by(i)]["h"], state.memories[i]["h"])
    assert before
