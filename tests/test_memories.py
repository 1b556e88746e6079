"""Memories of clients that lie in a file: equal to those in a dict, and a run does not notice."""

import dataclasses
from io import FileIO
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from fedbench import Scenario
from fedbench.api import Memory
from fedbench.core.errors import ConfigError
from fedbench.experiment.memories import MAX_HELD_BYTES, Memories, bytes_of
from fedbench.experiment.prepare import prepare
from fedbench.run import begin, play_round

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.bool, torch.int64)


def memory(number: int, form: int) -> Memory:
    """Return a memory with numbers of its own, in one of three forms; the last is empty."""
    if form == 2:
        return {}
    rows = torch.arange(12).reshape(3, 4) * (number + 1)
    named = {f"{dtype}": (rows % 7).to(dtype) for dtype in DTYPES}
    return (
        named | {"scalar": torch.tensor(float("nan")), "none": torch.empty(0, 3)}
        if form
        else {"residual": rows.float() / 3}
    )


def same(a: Memory, b: Memory) -> bool:
    """Whether two memories have the same names, types, shapes and bits."""
    pairs = [(a[name], b[name]) for name in a]
    alike = all(x.dtype == y.dtype and x.shape == y.shape for x, y in pairs)
    return (
        list(a) == list(b)
        and alike
        and all(torch.equal(x.double().nan_to_num(99), y.double().nan_to_num(99)) for x, y in pairs)
    )


@given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 2), st.booleans()), max_size=40),
    st.sampled_from([0, 100, 500, 10**6]),
)
def test_a_store_with_a_file_is_a_dict(steps: list[tuple[int, int, bool]], most: int) -> None:
    store = Memories(most)
    plain: dict[int, Memory] = {}
    for number, (i, form, gone) in enumerate(steps):
        if number % 3 == 2:  # it goes on from a copy
            value, files = store.parts()
            copy = Memories(most)
            copy.restore(value, files)
            assert (copy.filled, list(copy.held)) == (store.filled, list(store.held))
            store = copy
        if gone and i in plain:
            del store[i], plain[i]
        else:
            store[i] = plain[i] = memory(number, form)
        assert list(store) == list(plain)
        assert all(same(store[j], plain[j]) for j in plain)
        assert store.filled == sum(map(bytes_of, store.held.values())) <= most
    assert store.get(99) is None
    for shelf in store.shelves.values():
        assert sorted([*shelf.places.values(), *shelf.free]) == list(
            range(len(shelf.places) + len(shelf.free))
        ), "each place is there once"
        assert len(shelf.places) + len(shelf.free) <= 7, "places are used again"


@pytest.mark.parametrize(
    "change",
    [
        {"order": [7, 1, 2, 3]},
        {"order": [7, 7, 1, 2]},
        {"order": [7, 1]},
        {"order": [7, 1, 3]},
        {"held": None},
        {"shelves": []},
        {"places": {1: 0, 2: 0}},
        {"places": {1: -1, 2: 0}},
        {"places": {1: 0, 2: 2}},
        {"places": {}, "order": [7]},
        {"places": [1, 2]},
        {"example": {"residual": None}},
        {"example": None},
    ],
)
def test_parts_that_do_not_fit_together_are_refused(change: dict[str, Any]) -> None:
    store = Memories(20)
    for i in (1, 2, 7):
        store[i] = {"residual": torch.zeros(5)}
    value, files = store.parts()
    (shelf,) = value["shelves"]
    assert (value["order"], list(value["held"]), shelf["places"]) == ([1, 2, 7], [7], {1: 0, 2: 1})
    value |= {"shelves": [shelf | change]} | change
    with pytest.raises(ConfigError, match="do not fit together"):
        Memories().restore(value, files)
    with pytest.raises(ConfigError, match="do not fit together"):
        Memories().restore({}, [])


def test_what_is_held_keeps_no_rows_of_others_in_memory() -> None:
    rows = torch.zeros(1000, 10)
    store = Memories()
    store[3] = {"residual": rows[3]}
    assert store[3]["residual"].untyped_storage().nbytes() == 40


# Of runs whose clients remember what was not sent.
REMEMBERED: dict[str, Any] = {
    **{"protocol": "topk:error_feedback=true", "model": "micro", "per_round": 4, "epochs": 1}
}


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["loop", "stacked"])
def test_a_run_whose_memories_lie_in_a_file_has_the_same_record(executor: str) -> None:
    scenario = Scenario(**REMEMBERED, clients=8, rounds=5, attack="alie", malicious=0.25)
    setup = prepare(scenario, "cpu", executor)
    states = [begin(setup), begin(setup)]
    states[1].memories = Memories(0)
    for step in range(scenario.rounds):
        held, filed = (play_round(setup, state, step) for state in states)
        assert held == filed
    assert isinstance(states[1].memories, Memories)
    assert len(states[1].memories) > 4
    assert states[1].memories.held == {}
    assert list(states[0].memories) == list(states[1].memories)
    assert all(same(states[0].memories[i], states[1].memories[i]) for i in states[0].memories)


@pytest.mark.parametrize("at_once", [None, 2])
def test_a_run_keeps_the_memories_of_its_clients_in_the_store_that_has_a_file(
    at_once: int | None,
) -> None:
    scenario = Scenario(**REMEMBERED, clients=30, rounds=1)
    setup = dataclasses.replace(prepare(scenario, "cpu", "loop"), at_once=at_once)
    state = begin(setup)
    store = state.memories
    assert isinstance(store, Memories)
    assert store.most == MAX_HELD_BYTES == 2**30  # bytes, so that the memory of a run has a bound
    store.most = 2 * 4 * setup.shared.layout.d  # two residuals
    play_round(setup, state, 0)
    assert state.memories is store
    (shelf,) = store.shelves.values()
    assert (len(store), len(store.held), len(shelf.places)) == (4, 2, 2)


def test_a_full_disk_or_none_is_said_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Memories(0)
    store[0] = {"residual": torch.zeros(5)}
    (shelf,) = store.shelves.values()
    shelf.file.close()
    shelf.file = FileIO("/dev/full", "r+")
    with pytest.raises(ConfigError, match=r"memories of 2 clients, 20 bytes each, .*set TMPDIR"):
        store[1] = {"residual": torch.zeros(5)}
    monkeypatch.setattr("tempfile.tempdir", "/nowhere")
    with pytest.raises(
        ConfigError, match=r"memories of clients must find room in a .*; set TMPDIR"
    ):
        store[2] = {"residual": torch.zeros(6)}
