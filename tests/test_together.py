"""Runs that train in the same launches get what they would have got alone."""

import dataclasses
import time
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from fedbench.api import Grad, Gradient
from fedbench.core import registry
from fedbench.core.errors import ConfigError
from fedbench.core.rng import Key
from fedbench.core.trees import Tree
from fedbench.executors.cuda_graphs import Recorder
from fedbench.executors.multi_run import RunGroup, Together, now, recorder
from fedbench.executors.training import Client, Loop, Schedule, WrapGrad
from fedbench.executors.vmap import BUDGET, Stacked, footprint, launches, train_all
from fedbench.experiment.record import Record
from fedbench.experiment.scenario import Scenario
from fedbench.models.network import Shared
from fedbench.privacy.mechanisms.dp_sgd import DPSGD
from fedbench.protocols.fedavg import FedAvg
from fedbench.run import play
from fedbench.testing import NETWORK, assert_rounded_alike, doubled, example_clients, in_float64

TWO = (Shared(NETWORK, 1, torch.device("cpu")), Shared(NETWORK, 2, torch.device("cpu")))


def part(
    shared: Shared, text: str = "fedpm", batch: int = 4, **settings: Any
) -> tuple[Stacked, list[Client]]:
    protocol = in_float64(registry.load("protocol", text))
    engine = Stacked(protocol, shared, Schedule(2, batch), **settings)
    return engine, doubled(example_clients(protocol, shared))


def part_with(shared: Shared, wrap: WrapGrad) -> tuple[Stacked, list[Client]]:
    engine, clients = part(shared)
    return engine, [dataclasses.replace(client, wrap_grad=wrap) for client in clients]


def alone(engine: Stacked, clients: list[Client]) -> Tensor:
    loop = Loop(engine.protocol, engine.shared, engine.schedule, precision=engine.precision)
    return loop.train(clients)[0]


@pytest.mark.parametrize("text", ["fedavg", "fedpm", "fsl", "fedmrn", "eden", "fedsparse"])
def test_two_seeds_share_launches_and_each_keeps_its_own_network(text: str) -> None:
    parts = [part(shared, text) for shared in TWO]
    together = len(list(launches(parts)))
    assert together == len(list(launches(parts[:1])))  # the second one costs no launch
    first, second = train_all(parts)
    assert_rounded_alike((first[0], second[0]), tuple(alone(*pair) for pair in parts))
    assert not torch.allclose(first[0], second[0], atol=1e-3)  # the seeds do matter here


def test_what_differs_shares_no_launch() -> None:
    ours = part(TWO[0])
    wide = Shared(dataclasses.replace(NETWORK, hidden=(6,)), 2, torch.device("cpu"))
    others = [part(TWO[1], "fedpm:lr=0.2"), part(TWO[1], "fsl"), part(wide)]
    for other in (*others, part(TWO[1], batch=5), part(TWO[1], precision="bf16")):
        apart = len(list(launches([ours]))) + len(list(launches([other])))
        assert len(list(launches([ours, other]))) == apart


def test_methods_of_equal_mechanisms_are_one_and_closures_are_their_own() -> None:
    def of(*wraps: WrapGrad) -> int:
        return len(list(launches([part_with(*pair) for pair in zip(TWO, wraps, strict=True)])))

    once = len(list(launches([part(TWO[0])])))
    one, equal, stronger = (DPSGD(z=z, clip=0.1).wrap_grad for z in (0.5, 0.5, 2.0))
    assert [of(one, equal), of(one, stronger)] == [once, 2 * once]
    assert of(lambda grad: grad, lambda grad: grad) == 2 * once
    parts = [part_with(shared, one) for shared in TWO]  # each its own network, sample by sample
    trained = tuple(updates for updates, _ in train_all(parts))
    assert_rounded_alike(trained, tuple(alone(*pair) for pair in parts))


def test_a_launch_takes_what_the_footprint_of_its_clients_leaves_room_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine, clients = part(TWO[0], chunk=32)
    engine = dataclasses.replace(engine, chunk=32)
    assert engine.width == 32  # 32 of this network are nothing
    bytes_each = footprint(NETWORK, 4)
    monkeypatch.setattr("fedbench.executors.vmap.BUDGET", 2 * bytes_each + 1)
    engine = dataclasses.replace(engine)
    assert engine.width == 2
    assert all(len(group) <= 2 for group in launches([(engine, clients)]))
    monkeypatch.setattr("fedbench.executors.vmap.BUDGET", bytes_each // 2)
    assert dataclasses.replace(engine).width == 1  # never none
    assert BUDGET == 1 << 29
    # A convolution of 3 channels on 4 x 4, a pool to 2 x 2, layers of 5 and 3. A sample keeps: the
    # image, 16; the 48 after the convolution's ReLU twice, for the ReLU and as input of the pool;
    # the pool's 12 places in 8 bytes; its 12 values as input of a layer; the 5 after that one's
    # ReLU twice. Four samples, values and gradients; six copies of the weights.
    floats = 16 + 48 + 48 + 12 + 5 + 5
    weights = 3 * 9 + 12 * 5 + 5 * 3
    per_sample = 4 * floats + 8 * 12
    assert footprint(NETWORK, 4) == 6 * 4 * weights + 2 * 4 * per_sample


def all_ended(group: RunGroup[Any]) -> dict[int, Any]:
    """Return the results and errors of the runs, in the order in which they end."""
    ended: dict[int, Any] = {}
    while group.members:
        ended |= {member.name: member.ended for member in group.turn()}
    return ended


@pytest.mark.slow
def test_runs_of_a_group_are_those_that_would_have_been_played_alone_and_one_may_fail() -> None:
    small = Scenario(model="micro", clients=8, per_round=4, malicious=0.25, rounds=2)
    first = small.model_copy(update={"attack": "label-flip", "protocol": "fedpm"})
    others: list[dict[str, Any]] = [{}, {"seed": 1}, {"rounds": 1}, {"protocol": "fsl"}]
    scenarios = [first.model_copy(update=fields) for fields in others]
    group: RunGroup[Record] = RunGroup()
    failing = first.model_copy(update={"partition": "dirichlet:beta=0"})
    for name, asked in enumerate([*scenarios, failing]):
        group.add(name, partial(play, asked, executor="together"))
    records = all_ended(group)
    assert list(records) == [4, 2, 0, 1, 3]  # the shortest leaves first
    assert isinstance(records[4], ConfigError)
    for name, asked in enumerate(scenarios):
        record, expected = records[name], play(asked, executor="stacked")
        assert isinstance(record, Record)
        assert record.environment.executor == "together"
        assert record.environment.chunk == 32
        assert len(record.rounds) == asked.rounds
        for mine, theirs in zip(record.rounds, expected.rounds, strict=True):
            assert mine.clients == theirs.clients
            assert mine.benign_uplink_bits == theirs.benign_uplink_bits
        # In float32 a bit falls otherwise where its draw lies within rounding, about 2**-20, of its
        # chance: hardly one of 9,936 in a step, and one of so many moves the loss by much less.
        assert record.result.loss == pytest.approx(expected.result.loss, rel=0.02)


def test_a_launch_that_fails_is_its_own_runs_failure() -> None:
    """A wrapped gradient that cannot be mapped fails in the launch, not in the run's thread."""
    good, clients = part(TWO[0])
    grouped = Together(good.protocol, good.shared, good.schedule)
    assert torch.equal(grouped.train(clients)[0], good.train(clients)[0])  # outside of a group

    def odd(grad: Gradient) -> Grad:
        def wrapped(tree: Any, x: Tensor, y: Tensor, key: Key) -> Any:
            raise ZeroDivisionError("odd today")

        return wrapped

    group: RunGroup[Tensor] = RunGroup()
    group.add(0, lambda: grouped.train(clients)[0])
    poisoned = [dataclasses.replace(client, wrap_grad=odd) for client in clients]
    group.add(1, lambda: grouped.train(poisoned)[0])
    ended = all_ended(group)
    assert isinstance(ended[1], ZeroDivisionError)
    assert_rounded_alike(ended[0], alone(good, clients))


@dataclass(frozen=True, kw_only=True)
class Napping(FedAvg):
    """A launch takes two seconds, however many clients share it."""

    def local_update(self, tree: Tree, *rest: Any) -> Any:
        time.sleep(2.0)
        return super().local_update(tree, *rest)


def test_a_run_is_charged_its_share_of_a_launch_and_no_wait_for_others(still_clock: None) -> None:
    """Of two runs the one with three times the clients bears three quarters; nobody the sleep."""
    grouped = Together(Napping(), TWO[0], Schedule(2, 4))
    clients = example_clients(Napping(), TWO[0])

    def run(group: list[Client], nap: float) -> float:
        start = now()
        time.sleep(nap)
        grouped.train(group)
        return now() - start - nap

    group: RunGroup[float] = RunGroup()
    group.add(0, lambda: run(clients[:1], 0.0))
    group.add(1, lambda: run([clients[0]] * 3, 1.0))
    members = list(group.members)
    assert group.turn() == []
    assert [member.share for member in members] == pytest.approx([0.5, 1.5])
    group.turn()
    assert [member.ended for member in members] == pytest.approx([0.5, 1.5])


def test_runs_of_a_group_share_a_recorder() -> None:
    tables: list[RunGroup[Recorder]] = [RunGroup(), RunGroup()]
    for group in tables * 2:
        group.add(len(group.members), recorder)
    (a, b), (c, d) = (all_ended(group).values() for group in tables)
    assert isinstance(a, Recorder)
    assert a is b is not c is d
    assert recorder() is not recorder()
