"""Forked processes train as the loop does, stay, and end."""

import dataclasses
import gc
import os
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedbench.api import Grad, Shared
from fedbench.core.rng import Key
from fedbench.core.trees import Tree
from fedbench.executors.process_pool import Forked
from fedbench.executors.training import Client, Loop, Schedule, WrapGrad, untouched
from fedbench.protocols.fedavg import FedAvg
from fedbench.protocols.fedsparse import FedSparse
from fedbench.protocols.fsl import FSL
from fedbench.testing import NETWORK, assert_rounded_alike, doubled, example_clients, in_float64

SHARED = Shared(NETWORK, 3, torch.device("cpu"))


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    known, fork = [], os.fork

    def remembered() -> int:
        known.append(fork())
        return known[-1]

    monkeypatch.setattr(os, "fork", remembered)
    return known


@pytest.mark.parametrize("protocol", [FedAvg(), FSL(), FedSparse()], ids=repr)
def test_forked_processes_train_as_the_loop_does(protocol: FedAvg, two_threads: None) -> None:
    clients, schedule = doubled(example_clients(protocol, SHARED)), Schedule(2, 3)
    precise = in_float64(protocol)
    torch.set_num_threads(1)
    loop, loop_memories = Loop(precise, SHARED, schedule).train(clients)
    torch.set_num_threads(2)
    forked, memories = Forked(precise, SHARED, schedule).train(clients)
    assert_rounded_alike(forked, loop)
    assert not torch.equal(forked[0], forked[1])
    assert [sorted(memory) for memory in memories] == [sorted(memory) for memory in loop_memories]
    assert all(memories) == isinstance(protocol, FedSparse)  # who remembers something
    assert_rounded_alike(memories, loop_memories)
    assert Forked(protocol, SHARED, schedule).train([])[0].shape == (0, loop.shape[1])


@pytest.mark.parametrize(
    ("who", "raised", "says"),
    [
        ("parent", KeyboardInterrupt, "never again"),
        ("child", LookupError, "never again"),
        ("killed", MemoryError, "status -9"),
        ("left", RuntimeError, "status 3"),
    ],
)
def test_a_process_that_fails_is_an_error_and_leaves_none_behind(
    who: str, raised: type[BaseException], says: str, two_threads: None, children: list[int]
) -> None:
    parent = os.getpid()

    class Failing(FedAvg):
        def local_update(self, tree: Tree, *rest: Any) -> Any:
            if (os.getpid() == parent) != (who == "parent"):
                return super().local_update(tree, *rest)
            if who == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if who == "left":
                os._exit(3)
            raise raised("never again")

    engine = Forked(Failing(), SHARED, Schedule(1, 4))
    with pytest.raises(raised, match=says) as updates:
        engine.train(example_clients(Failing(), SHARED))
    if who == "child":
        assert "in local_update" in updates.value.__notes__[0], "where it was"
    assert len(children) == 1
    assert torch.get_num_threads() == 2
    assert engine.crew.hands == []
    with pytest.raises(ChildProcessError):
        os.waitpid(children[0], os.WNOHANG)


def ascend(grad: Grad) -> Grad:
    """Another gradient, and one that can be sent to a process."""

    def wrapped(tree: Tree, x: Tensor, y: Tensor, key: Key) -> Tree:
        return {name: -g for name, g in grad(tree, x, y, key).items()}

    return wrapped


def another(clients: Sequence[Client], round: int, wrap: WrapGrad = untouched) -> list[Client]:
    return [
        dataclasses.replace(
            client,
            tree={name: x + round for name, x in client.tree.items()},
            key=client.key.fold(round),
            wrap_grad=wrap,
        )
        for client in clients
    ]


def as_the_loop(engine: Forked, clients: Sequence[Client]) -> Tensor:
    threads = torch.get_num_threads()
    updates, memories = engine.train(clients)
    torch.set_num_threads(1)
    expected, loop_memories = Loop(engine.protocol, engine.shared, engine.schedule).train(clients)
    torch.set_num_threads(threads)
    assert_rounded_alike(updates, expected)
    assert_rounded_alike(memories, loop_memories)
    return updates


def test_children_stay_until_their_executor_ends(two_threads: None, children: list[int]) -> None:
    protocol = in_float64(FedSparse())
    clients = doubled(example_clients(protocol, SHARED))
    engines = [Forked(protocol, SHARED, Schedule(1, 3))]
    first = as_the_loop(engines[0], clients[:3])
    before = first.clone()
    as_the_loop(engines[0], another(clients[:2], 1, ascend))
    as_the_loop(engines[0], another(clients[:3], 2, ascend))
    assert torch.equal(first, before), "a later round must not write into an earlier one's updates"
    assert len(children) == 1
    # Four clients: there is no room for the last. Then a function that cannot be sent.
    as_the_loop(engines[0], another(clients, 3))
    as_the_loop(engines[0], another(clients, 4, lambda grad: ascend(grad)))
    assert len(children) == 3
    os.kill(children[-1], signal.SIGKILL)
    os.waitid(os.P_PID, children[-1], os.WEXITED | os.WNOWAIT)
    as_the_loop(engines[0], another(clients, 5))
    assert len(children) == 4
    engines.clear()
    gc.collect()
    for child in children:
        with pytest.raises(ChildProcessError):
            os.waitpid(child, os.WNOHANG)


def test_a_round_of_fewer_clients_keeps_children(two_threads: None, children: list[int]) -> None:
    torch.set_num_threads(4)
    engine = Forked(FedAvg(), SHARED, Schedule(1, 3))
    clients = doubled(example_clients(FedAvg(), SHARED))
    for round, n in enumerate((4, 2, 3, 4)):
        as_the_loop(engine, another(clients[:n], round))
    assert len(children) == 3


def test_children_end_after_their_killed_parent(two_threads: None, children: list[int]) -> None:
    class Sleeping(FedAvg):
        def local_update(self, tree: Tree, *rest: Any) -> Any:
            if os.getpid() != parent:
                os.write(tells, b"%d\n" % os.getpid())
            time.sleep(60)
            return tree, rest[-1]

    hears, tells = os.pipe()
    middle = os.fork()
    if not middle:
        parent = os.getpid()
        torch.set_num_threads(2)
        Forked(Sleeping(), SHARED, Schedule(1, 4)).train(example_clients(Sleeping(), SHARED))
        os._exit(0)
    child = int(os.read(hears, 20))
    os.kill(middle, signal.SIGKILL)
    os.waitpid(middle, 0)
    state = Path(f"/proc/{child}/stat")
    for _ in range(100):
        if not state.exists() or ") Z " in state.read_text():
            break
        time.sleep(0.1)
    else:
        pytest.fail("it is still there")


def test_beside_an_accelerator_only_children_train(
    two_threads: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Autograd starts threads for it at the first gradient, and then refuses in a forked child.
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    parent, protocol = os.getpid(), FedAvg()

    class Local(FedAvg):
        def local_update(self, tree: Tree, *rest: Any) -> Any:
            assert os.getpid() != parent
            return super().local_update(tree, *rest)

    clients, schedule = doubled(example_clients(protocol, SHARED)), Schedule(1, 4)
    for some in (clients[:1], clients):
        updates, _ = Forked(Local(), SHARED, schedule).train(some)
        torch.set_num_threads(1)
        expected, _ = Loop(protocol, SHARED, schedule).train(some)
        torch.set_num_threads(2)
        assert_rounded_alike(updates, expected)
