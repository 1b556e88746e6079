"""Commitments of rounds: what they cover, and states that are kept, read and played on from."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import zlib
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch

from fedbench import Scenario, play
from fedbench.core.errors import ConfigError
from fedbench.experiment import commitments
from fedbench.experiment.measurements import Round
from fedbench.experiment.prepare import prepare
from fedbench.experiment.setup import Setup
from fedbench.experiment.state import RunState
from fedbench.experiment.state_bytes import decode, digest, encode
from fedbench.payload.packets import Packet
from fedbench.run import begin, play_round

SMALL = {"model": "micro", "clients": 8, "per_round": 5, "malicious": 0.25, "rounds": 3}
# Every kind of state: a rule's, a mechanism's ledger, memories of clients, and an attack's.
FULL = Scenario.of(
    **SMALL,
    protocol="topk",
    defense="centered-clipping",
    attack="chameleon",
    epochs=1,
    eval_every=1,
    local_models=True,
)


@pytest.fixture(scope="module")
def setup() -> Setup:
    """A run that commits, whatever the processor: within one process numbers are the same."""
    return dataclasses.replace(prepare(FULL, "cpu", "loop"), canonical=True)


@pytest.fixture(scope="module")
def rounds(setup: Setup, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Round]]:
    """The rounds of the run, and the folder with the states before them."""
    folder = tmp_path_factory.mktemp("states")
    state = begin(setup)
    played = []
    for step in range(3):
        played.append(play_round(setup, state, step))
        commitments.keep(folder, setup, state, step + 1)
    return folder, played


def test_a_commitment_is_the_one_worked_by_hand() -> None:
    packets = [Packet(b"\x80", 1), Packet(b"", 0)]
    arrived = digest([(b"\x80", 1, True), (b"", 0, False)])
    assert commitments.received(packets, torch.tensor([True, False])) == arrived
    text = (
        "74 0400000000000000"
        + "73 0e00000000000000 66656462656e636820726f756e64"  # fedbench round
        + "69 0100000000000000 07"
        + "62 0200000000000000 6162 62 0100000000000000 63"
    )
    expected = sha256(bytes.fromhex(text)).hexdigest()
    assert commitments.combined(7, b"ab", b"c") == expected


def test_rounds_that_go_on_from_a_kept_state_are_the_same(
    setup: Setup, rounds: tuple[Path, list[Round]]
) -> None:
    folder, played = rounds
    assert all(each.commitment for each in played)
    assert play_round(setup, begin(setup), 0) == played[0]
    for step in (1, 2):
        path = commitments.place(folder, setup.id, step)
        state = commitments.read(path, step, str(played[step - 1].commitment))
        assert state.memories.keys() == {i for each in played[:step] for i in each.clients}
        assert play_round(setup, state, step) == played[step]


def test_numbers_do_not_depend_on_whether_a_run_commits(
    setup: Setup, rounds: tuple[Path, list[Round]]
) -> None:
    ordinary = dataclasses.replace(setup, canonical=False)
    state = begin(ordinary)
    for step, expected in enumerate(rounds[1]):
        played = play_round(ordinary, state, step)
        assert played == dataclasses.replace(expected, commitment=None)


def changed(name: str, state: RunState) -> RunState:
    """Return the state with another value of a field."""
    values: dict[str, Any] = {
        "score": None,
        "learned": torch.zeros(1),
        "local_accuracies": {0: 0.5},
    }
    values["memories"] = dict(state.memories) | {min(state.memories): {"other": torch.zeros(2)}}
    return dataclasses.replace(state, **{name: values.get(name, {"other": torch.zeros(2)})})


COVERED = [
    *("server", "defense", "mechanism", "adversary", "learned", "memories", "ledger", "score"),
    *("local_accuracies", "last_broadcast"),
]


@pytest.mark.parametrize("name", COVERED)
def test_a_commitment_covers_everything_but_the_seconds(
    name: str, setup: Setup, rounds: tuple[Path, list[Round]], tmp_path: Path
) -> None:
    folder, played = rounds
    names = {field.name for field in dataclasses.fields(RunState)}
    assert names == {*COVERED, "attack_seconds", "digests", "arrived"}
    commitment = str(played[1].commitment)
    state = commitments.read(commitments.place(folder, setup.id, 2), 2, commitment)
    other = changed(name, state)
    commitments.keep(tmp_path, setup, other, 2)
    with pytest.raises(ConfigError, match="must be the state that round 1 committed to"):
        commitments.read(commitments.place(tmp_path, setup.id, 2), 2, commitment)


def test_another_packet_flag_or_round_has_another_commitment() -> None:
    packets = [Packet(b"\x80", 1), Packet(b"\x80", 1)]
    accepted = torch.tensor([True, False])
    arrived = {
        commitments.received(packets, accepted),
        commitments.received(packets, ~accepted),
        commitments.received([packets[0], Packet(b"\x80", 2)], accepted),
        commitments.received([packets[0], Packet(b"\x81", 1)], accepted),
    }
    assert len(arrived) == 4
    assert len({commitments.combined(step, b"a", b"b") for step in (0, 1)}) == 2


def test_a_state_file_that_was_tampered_with_is_refused(
    setup: Setup, rounds: tuple[Path, list[Round]], tmp_path: Path
) -> None:
    folder, played = rounds
    data = commitments.place(folder, setup.id, 2).read_bytes()
    start = len(commitments.MAGIC)
    kept = decode(zlib.decompress(data[start:]))
    first = next(iter(kept["state"]["memories"]))
    broken = {
        "cut": data[:-9],
        "longer": data + b"x",
        "another file": b"fedbench state 2\n" + data[start:],
        "no zlib": commitments.MAGIC + b"x" * 30,
        "a memory": {**kept, "state": {**kept["state"], "memories": {first: {}}}},
        "the packets": {**kept, "arrived": b"\0" * 32},
        "more": {**kept, "more": None},
        "fewer": {"arrived": b"", "state": {}},
        "no memories": {**kept, "state": {**kept["state"], "memories": None}},
        "a list": [],
    }
    commitment = str(played[1].commitment)
    for name, content in broken.items():
        path = tmp_path / f"{name}.state"
        if not isinstance(content, bytes):
            content = commitments.MAGIC + zlib.compress(encode(content))
        path.write_bytes(content)
        with pytest.raises(ConfigError, match=r"must (be|have) "):
            commitments.read(path, 2, commitment)
    with pytest.raises(ConfigError, match="cannot be read"):
        commitments.read(tmp_path / "absent.state", 2, commitment)


def test_a_state_without_bytes_has_no_commitment_and_ends_nothing(
    setup: Setup, tmp_path: Path
) -> None:
    state = begin(setup)
    state.adversary[99] = lambda: 0  # what no attack of ours remembers
    played = play_round(setup, state, 0)
    assert played.commitment is None
    commitments.keep(tmp_path, setup, state, 1)
    assert list(tmp_path.iterdir()) == []


def test_ordinary_records_have_neither_field() -> None:
    record = play(FULL.model_copy(update={"rounds": 1}), device="cpu", executor="loop")
    text = record.to_json()
    assert '"commitment"' not in text
    assert '"canonical"' not in text


def test_states_are_kept_of_canonical_runs_only(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="states must be left out without canonical"):
        play(FULL, states=tmp_path)


CANONICAL = """
import os
from fedbench.core import canonical
canonical.enter()
import torch
assert canonical.in_force()
for name in ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_CBWR", "OMP_NUM_THREADS"):
    value = os.environ.pop(name)
    assert not canonical.in_force(), name
    os.environ[name] = value
torch.set_num_threads(2)
assert not canonical.in_force()
"""


@pytest.mark.slow
def test_a_process_is_in_canonical_mode_only_with_every_variable_and_one_thread() -> None:
    subprocess.run([sys.executable, "-c", CANONICAL], check=True)
