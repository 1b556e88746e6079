"""Checkpoints: a run that was stopped ends with the record of one that never was."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import fedbench
from fedbench import Checkpoint, Record, Round, Scenario
from fedbench.api import Defense, ServerView, Traits
from fedbench.core import registry
from fedbench.core.errors import ConfigError, Incompatible
from fedbench.executors.training import Client, Loop, Trained
from fedbench.experiment import tensor_store
from fedbench.experiment.checkpoints import KEY, Keeper, fields, read_head
from fedbench.experiment.memories import Memories
from fedbench.experiment.prepare import prepare
from fedbench.experiment.record import read
from fedbench.experiment.state import RunState
from fedbench.experiment.tensor_store import PACKED, TABLE, TREE
from fedbench.payload import Payload, Spec
from fedbench.results.store import Store
from fedbench.run import begin, play, play_round

SMALL: dict[str, Any] = {
    **{"model": "micro", "clients": 8, "per_round": 5, "malicious": 0.25, "rounds": 3},
    **{"epochs": 1, "eval_every": 2},
}
# Every part of a state is in use.
FULL = Scenario.of(
    **SMALL,
    protocol="topk:error_feedback=true",
    defense="centered-clipping",
    attack="chameleon",
    mechanism="none",
    local_models=True,
)


def text(record: Record) -> str:
    """JSON of a record without its times, byte for byte."""
    return record.to_json().partition('"timing"')[0]


@dataclasses.dataclass
class Stop:
    """Follower that ends a run after so many rounds, as a kill would."""

    rounds: int

    def __call__(self, round: Round) -> None:
        if round.step + 1 == self.rounds:
            raise KeyboardInterrupt


def at(folder: Path, rounds: int = 2) -> Checkpoint:
    return Checkpoint(folder / "run.safetensors", rounds=rounds)


def require_same_end(scenario: Scenario, folder: Path) -> None:
    """Play a run whole, and again from the checkpoint that it left after its second round."""
    checkpoint = at(folder)
    whole = play(scenario, device="cpu", executor="loop", checkpoint=checkpoint)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "the run begins anew")
        resumed = play(scenario, device="cpu", executor="loop", checkpoint=checkpoint)
    assert text(resumed) == text(whole)


@pytest.fixture(scope="module")
def whole() -> Record:
    """Record of the run that never was stopped and wrote no checkpoint."""
    return play(FULL, device="cpu", executor="loop")


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Checkpoint of the same run after two rounds."""
    checkpoint = at(tmp_path_factory.mktemp("stopped"), rounds=1)
    with pytest.raises(KeyboardInterrupt):
        play(FULL, device="cpu", executor="loop", checkpoint=checkpoint, callbacks=[Stop(2)])
    return checkpoint.path.read_bytes()


@pytest.fixture
def checkpoint(stopped: bytes, tmp_path: Path) -> Checkpoint:
    """The checkpoint, in a folder of the test's own."""
    at(tmp_path).path.write_bytes(stopped)
    return at(tmp_path)


def rewrite(checkpoint: Checkpoint, changes: dict[str, Any], head: dict[str, Any]) -> None:
    """Write the checkpoint again with other parts of the state, rounds or metadata."""
    path = checkpoint.path
    value, files = tensor_store.read(path, torch.device("cpu"), ())
    value["rounds"] = changes.pop("rounds", value["rounds"])
    value["state"] |= changes
    about = read_head(path).model_copy(update=head).model_dump_json()
    tensor_store.write(path, value, {KEY: about}, (), files)


def mark(path: Path) -> None:
    """Note in the first round of a checkpoint; a run that plays it again does not."""
    value, files = tensor_store.read(path, torch.device("cpu"), ())
    (first, *others) = value["rounds"]
    value["rounds"] = [dataclasses.replace(first, notes={"marked": True}), *others]
    about = tensor_store.read_about(path)
    tensor_store.write(path, value, {KEY: about[KEY]}, (), files)


def test_a_run_that_was_stopped_ends_with_the_record_of_one_that_was_not(
    whole: Record, checkpoint: Checkpoint
) -> None:
    heard: list[int] = []
    before = read_head(checkpoint.path)
    resumed = fedbench.play(
        FULL, device="cpu", checkpoint=checkpoint, callbacks=[lambda r: heard.append(r.step)]
    )
    assert text(resumed) == text(whole)
    assert resumed.digest == whole.digest
    assert heard == [0, 1, 2]
    assert resumed.timing.seconds > before.seconds > 0
    assert list(checkpoint.path.parent.iterdir()) == []  # nothing is left of a run that is over


def test_the_rounds_before_the_checkpoint_are_not_played_again(
    whole: Record, checkpoint: Checkpoint
) -> None:
    mark(checkpoint.path)
    resumed = play(FULL, device="cpu", executor="loop", checkpoint=checkpoint)
    assert resumed.rounds[0].notes == {"marked": True}
    assert resumed.rounds[1:] == whole.rounds[1:]


PRIVATE = {
    "protocol": "fedavg",
    "attack": "none",
    "defense": "mean",
    "mechanism": "dp-fedavg:adaptive=true,z=0.4",
}
# What is in a state beside the digests of canonical runs and seconds, and runs that use it.
USED: dict[str, dict[str, str]] = {
    **{name: {} for name in ("server", "defense", "memories", "local_accuracies")},
    **{"adversary": {"attack": "poisonedfl"}, "learned": {"attack": "a3fl"}},
    **{"last_broadcast": {"attack": "neurotoxin"}, "ledger": PRIVATE, "mechanism": PRIVATE},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", USED)
@pytest.mark.edges("server", "memories")
def test_without_any_part_of_the_state_the_record_is_another(name: str, tmp_path: Path) -> None:
    scenario = FULL.model_copy(update=USED[name])
    checkpoint = at(tmp_path)
    whole = play(scenario, device="cpu", executor="loop", checkpoint=checkpoint)
    fresh = begin(prepare(scenario, "cpu", "loop"))
    rewrite(checkpoint, {name: fields(fresh)[0][name]}, {})
    resumed = play(scenario, device="cpu", executor="loop", checkpoint=checkpoint)
    assert text(resumed) != text(whole)


@pytest.mark.slow
@pytest.mark.parametrize("protocol", registry.names("protocol"))
@pytest.mark.edges("fedpm", "fsl")
def test_every_protocol_goes_on_with_its_own_rule(protocol: str, tmp_path: Path) -> None:
    require_same_end(Scenario.of(**SMALL, protocol=protocol), tmp_path)


def first_that_fits(**fields: Any) -> Scenario:
    """Scenario with the first protocol that fits a plug-in."""
    for protocol in ("fedavg", "signsgd", "fedpm", "fsl", *registry.names("protocol")):
        scenario = Scenario.of(**SMALL | fields, protocol=protocol)
        try:
            prepare(scenario, "cpu", "loop")
        except (Incompatible, ConfigError):
            continue
        return scenario
    raise AssertionError(fields)


@pytest.mark.slow
@pytest.mark.parametrize("defense", registry.names("defense"))
@pytest.mark.edges("foolsgold")
def test_every_rule_goes_on(defense: str, tmp_path: Path) -> None:
    rows = {"per_round": 7, "malicious": 0.125}  # as many as bulyan needs
    require_same_end(first_that_fits(defense=defense, attack="label-flip", **rows), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("attack", registry.names("attack"))
@pytest.mark.edges("alie")
def test_every_attack_goes_on(attack: str, tmp_path: Path) -> None:
    require_same_end(first_that_fits(attack=attack), tmp_path)


MECHANISMS = [name for name in registry.names("mechanism") if name != "none"]


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.edges("dp-fedavg")
def test_every_mechanism_goes_on(mechanism: str, tmp_path: Path) -> None:
    require_same_end(first_that_fits(mechanism=mechanism), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["centered-clipping", "nna"])  # nna: the server remembers, too
def test_a_canonical_run_goes_on_with_its_commitments(rule: str, tmp_path: Path) -> None:
    scenario = FULL.model_copy(update={"defense": rule})
    setup = dataclasses.replace(prepare(scenario, "cpu", "loop"), canonical=True)
    state = begin(setup)
    played: list[Round] = []
    for step in range(2):
        played.append(play_round(setup, state, step))
        Keeper(at(tmp_path), setup, 0.0).after(state, played)
    last = play_round(setup, state, 2)
    _, resumed, rounds = Keeper(at(tmp_path), setup, 0.0).resume(begin(setup), chooses=False)
    assert rounds == played
    assert play_round(setup, resumed, 2) == last
    assert last.commitment is not None


# Runs whose rounds may be streamed: their clients remember, their packets are kept, noise is added.
STREAMED: dict[str, dict[str, Any]] = {
    "memories": {"protocol": "ef-signsgd", "attack": "ipm:knows=colluders", "local_models": True},
    "packets": {"protocol": "fedavg", "attack": "neurotoxin", "defense": "median"},
    "noise": {"protocol": "fedavg", "attack": "min-max", "mechanism": "dp-fedavg:clip=1,z=0.4"},
}


@pytest.mark.slow
@pytest.mark.usefixtures("heard")
@pytest.mark.parametrize("kind", STREAMED)
def test_a_run_that_was_killed_within_a_streamed_round_goes_on(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = SMALL | {"clients": 20, "batch_size": 32, "malicious": 0.4}
    scenario = Scenario.of(**small | STREAMED[kind])
    streamed = partial(play, scenario, device="cpu", executor="loop", stream=True, chunk=2)
    whole = streamed()
    begun: list[int] = []  # round of each client that began to train
    train = Loop.train

    def watched(self: Loop, clients: Sequence[Client]) -> Trained:
        begun.extend(client.round for client in clients)
        return train(self, clients)

    def killed(self: Loop, clients: Sequence[Client]) -> Trained:
        if begun.count(2) == 2:  # of the five clients of the last round
            raise KeyboardInterrupt
        return watched(self, clients)

    checkpoint = at(tmp_path, rounds=1)
    monkeypatch.setattr(Loop, "train", killed)
    with pytest.raises(KeyboardInterrupt):
        streamed(checkpoint=checkpoint)
    monkeypatch.setattr(Loop, "train", watched)
    begun.clear()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "the run begins anew")
        resumed = streamed(checkpoint=checkpoint)
    assert set(begun) == {2}
    assert text(resumed) == text(whole)
    assert resumed.rounds[-1].malicious > 0


@pytest.mark.slow
def test_time_decides_without_rounds_and_the_last_round_needs_none(tmp_path: Path) -> None:
    scenario = Scenario.of(**SMALL)
    never = Checkpoint(tmp_path / "never.safetensors")  # ten minutes
    always = Checkpoint(tmp_path / "always.safetensors", minutes=0.0)
    for checkpoint in (never, always):
        play(scenario, device="cpu", executor="loop", checkpoint=checkpoint)
    assert not never.path.exists()
    assert len(tensor_store.read(always.path, torch.device("cpu"), ())[0]["rounds"]) == 2


def test_the_choice_of_an_executor_is_that_of_the_checkpoint(checkpoint: Checkpoint) -> None:
    rewrite(checkpoint, {}, {"environment": with_environment(checkpoint, "stacked", 4)})
    for chooses, executor, played in ((True, "stacked", 2), (False, "loop", 0)):
        setup = prepare(FULL, "cpu", "loop")
        keeper = Keeper(checkpoint, setup, 0.0)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            setup, _, rounds = keeper.resume(begin(setup), chooses)
        assert type(setup.executor).__name__.lower() == executor
        assert len(rounds) == played
        assert bool(said) is not chooses


def with_environment(checkpoint: Checkpoint, executor: str, chunk: int | None) -> Any:
    before = read_head(checkpoint.path).environment
    return before.model_copy(update={"executor": executor, "chunk": chunk})


def test_a_checkpoint_of_another_run_is_refused_in_one_line(checkpoint: Checkpoint) -> None:
    data = checkpoint.path.read_bytes()
    other = FULL.model_copy(update={"seed": 7})
    with pytest.raises(ConfigError, match=r"^checkpoint must be of the run .*seed 0.*remove "):
        fedbench.play(other, device="cpu", checkpoint=checkpoint)
    rewrite(checkpoint, {}, {"id": "0" * 16})
    with pytest.raises(ConfigError, match=r"got one of 0{16} .other code or data"):
        play(FULL, device="cpu", executor="loop", checkpoint=checkpoint)
    checkpoint.path.write_bytes(data[: len(data) // 2])
    with pytest.raises(ConfigError, match="must be a file of safetensors"):
        play(FULL, device="cpu", executor="loop", checkpoint=checkpoint)
    save_file({"a": torch.zeros(1)}, checkpoint.path)
    with pytest.raises(ConfigError, match="must be a checkpoint of fedbench"):
        play(FULL, device="cpu", executor="loop", checkpoint=checkpoint)


@pytest.mark.parametrize("kept", [0, 4, 100, -5])
def test_of_a_store_one_that_was_cut_is_not_used_and_elsewhere_it_is_refused(
    kept: int, checkpoint: Checkpoint
) -> None:
    checkpoint.path.write_bytes(checkpoint.path.read_bytes()[:kept])
    setup = prepare(FULL, "cpu", "loop")
    fresh = begin(setup)
    ours = dataclasses.replace(checkpoint, ours=True)
    with pytest.warns(UserWarning, match="begins anew"):
        assert Keeper(ours, setup, 0.0).resume(fresh, chooses=False)[1] is fresh
    with pytest.raises(ConfigError, match=r"must be a file of safetensors.*; remove it"):
        Keeper(checkpoint, setup, 0.0).resume(fresh, chooses=False)
    assert Checkpoint.of("every=2", checkpoint.path) == dataclasses.replace(ours, rounds=2)


@pytest.mark.slow
def test_a_damaged_one_or_one_of_another_machine_is_not_used_and_a_warning_says_so(
    whole: Record, checkpoint: Checkpoint
) -> None:
    data = bytearray(checkpoint.path.read_bytes())
    data[-1] ^= 1
    checkpoint.path.write_bytes(data)
    with pytest.warns(UserWarning, match="begins anew, because .* the file is damaged"):
        resumed = play(FULL, device="cpu", executor="loop", checkpoint=checkpoint)
    assert text(resumed) == text(whole)
    assert read_head(checkpoint.path).id == whole.id  # it was written anew
    before = read_head(checkpoint.path).environment
    rewrite(checkpoint, {}, {"environment": before.model_copy(update={"torch": "1.0"})})
    with pytest.warns(UserWarning, match="it was written with torch 1.0, not "):
        play(FULL, device="cpu", executor="loop", checkpoint=checkpoint)


@pytest.mark.parametrize(
    "changes",
    [
        {"memories": None},
        {"memories": {"order": [1], "held": {}, "shelves": []}},
        {"ledger": {}},
        {"arrived": "text"},
        {"more": None},
        {"rounds": []},
        {"rounds": [None]},
    ],
)
def test_other_parts_than_those_of_a_state_are_not_used(
    changes: dict[str, Any], checkpoint: Checkpoint
) -> None:
    rewrite(checkpoint, dict(changes), {})
    setup = prepare(FULL, "cpu", "loop")
    fresh = begin(setup)
    with pytest.warns(UserWarning, match="begins anew"):
        _, state, rounds = Keeper(checkpoint, setup, 0.0).resume(fresh, chooses=False)
    assert state is fresh
    assert rounds == []


@dataclasses.dataclass
class Last:
    """State of a user's rule, in a class of the user's own."""

    aggregate: Tensor | None = None
    seen: Any = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Halfway(Defense[Any]):
    """Move halfway from the last answer to the mean.

    Args:
        odd: Whether the state holds what has no bytes.
    """

    odd: bool = False

    def traits(self) -> Traits:
        return Traits()

    def tolerates(self, n: int) -> int:
        return 0

    def init(self, spec: Spec) -> Last:
        return Last()

    def aggregate(self, received: Payload, state: Any, view: ServerView) -> tuple[Tensor, Last]:
        mean = received.values().mean(dim=0)
        mean = mean if state.aggregate is None else (mean + state.aggregate) / 2
        return mean, Last(mean, {1, 2} if self.odd else None)


@pytest.mark.slow
def test_a_rule_of_ones_own_may_keep_a_class_of_its_own(tmp_path: Path) -> None:
    require_same_end(Scenario(**SMALL, defense=Halfway()), tmp_path)


@pytest.mark.slow
def test_a_state_that_cannot_be_written_is_refused_after_the_first_round(tmp_path: Path) -> None:
    scenario = Scenario(**SMALL, defense=Halfway(odd=True))
    heard: list[Round] = []
    with pytest.raises(ConfigError, match=r"one of defense halfway:odd=true: a set has no bytes"):
        play(scenario, device="cpu", checkpoint=at(tmp_path), callbacks=[heard.append])
    assert heard == []
    automatic = dataclasses.replace(at(tmp_path), automatic=True)
    assert len(play(scenario, device="cpu", checkpoint=automatic).rounds) == 3
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_an_automatic_checkpoint_that_cannot_be_written_ends_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    nowhere = Checkpoint(tmp_path / "file" / "run.safetensors", rounds=1, automatic=True)
    with pytest.warns(UserWarning, match="the run goes on without checkpoints"):
        record = play(Scenario.of(**SMALL), device="cpu", executor="loop", checkpoint=nowhere)
    assert len(record.rounds) == 3
    asked = dataclasses.replace(nowhere, automatic=False)
    with pytest.raises(ConfigError, match="must be a folder that can be written"):
        play(Scenario.of(**SMALL), device="cpu", executor="loop", checkpoint=asked)


@pytest.mark.slow
def test_memories_that_lie_in_a_file_go_on_from_a_copy_of_it(tmp_path: Path, whole: Record) -> None:
    setup = prepare(FULL, "cpu", "loop")
    state = begin(setup)
    store = Memories(0)
    state.memories = store
    rounds = [play_round(setup, state, step) for step in range(2)]
    del store[next(iter(store))]  # so that a place is free
    store.most = 1 << 20
    store[99] = {"residual": torch.eye(3).t()}  # held, as it lies in memory
    checkpoint = dataclasses.replace(at(tmp_path), automatic=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Keeper(checkpoint, setup, 0.0).after(state, rounds)
        _, resumed, _ = Keeper(checkpoint, setup, 0.0).resume(begin(setup), chooses=False)
    again = resumed.memories
    assert isinstance(again, Memories)
    assert list(again) == list(store)
    assert all(torch.equal(again[i][name], x) for i in store for name, x in store[i].items())
    assert list(again.held) == [99]
    assert again.held[99]["residual"].stride() == (1, 3)
    assert again.filled == store.filled
    (shelf,) = again.shelves.values()
    (before,) = store.shelves.values()
    assert shelf.file.fileno() != before.file.fileno()
    assert (shelf.places, shelf.free) == (before.places, before.free)
    del again[99], store[99]
    again.most = 0
    assert play_round(setup, resumed, 2) == play_round(setup, state, 2)


def test_an_option_says_how_often() -> None:
    path = Path("x")
    assert Checkpoint.of("every=5", path) == Checkpoint(path, rounds=5, ours=True)
    assert Checkpoint.of("every=2min", path) == Checkpoint(path, minutes=2.0, ours=True)
    assert Checkpoint.of("none", path) is None
    assert Checkpoint.of(None, path) == Checkpoint(path, minutes=10.0, automatic=True, ours=True)
    for wrong in ("5", "every=0", "every=-1", "every=1.5", "every=5 min", "every=²", ""):
        with pytest.raises(ConfigError, match="--checkpoint must be every=N rounds, every=Nmin or"):
            Checkpoint.of(wrong, path)
    with pytest.raises(ConfigError, match=r"Checkpoint\.rounds must be >= 1, got 0"):
        Checkpoint(path, rounds=0)
    with pytest.raises(ConfigError, match=r"Checkpoint\.minutes must be >= 0, got -1"):
        Checkpoint(path, minutes=-1.0)


def test_a_file_with_our_mark_and_other_metadata_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    save_file({"a": torch.zeros(1)}, path, {KEY: '{"format": 2}'})
    with pytest.raises(ConfigError, match="must be a checkpoint of this version"):
        read_head(path)


def test_a_run_that_goes_on_from_nothing_takes_only_its_own_time(tmp_path: Path) -> None:
    setup = prepare(FULL, "cpu", "loop")
    keeper = Keeper(at(tmp_path), setup, time.perf_counter())
    keeper.resume(begin(setup), True)
    assert keeper.seconds == 0


def test_commands_refuse_what_they_do_not_have(command: Any, tmp_path: Path) -> None:
    code, _, err = command("attack", "--checkpoint", "often", "--out", str(tmp_path))
    assert code == 2
    assert err.count("\n") == 1
    assert "--checkpoint must be every=N rounds, every=Nmin or none, got 'often'" in err


LINE = (
    *("-m", "fedbench", "attack", "--protocol", "topk", "--attack", "none"),
    *("--defense", "centered-clipping", "--clients", "8", "--per-round", "5", "--rounds", "30"),
    *("--epochs", "1", "--model", "micro", "--seeds", "0", "--workers", "1", "--device", "cpu"),
    *("--executor", "loop", "--checkpoint", "every=2"),
)


def waited_for(folder: Path, process: subprocess.Popen[bytes]) -> Iterator[Path]:
    """Yield the checkpoint once it is there, while its run goes on."""
    until = time.monotonic() + 120
    while time.monotonic() < until and process.poll() is None:
        yield from folder.glob("*.safetensors")
        time.sleep(0.02)


@pytest.mark.slow
def test_a_killed_command_goes_on_within_its_run(tmp_path: Path) -> None:
    out = tmp_path / "out"
    folder = Store(out).checkpoints
    line = [sys.executable, *LINE, "--out", str(out)]
    process = subprocess.Popen(line, start_new_session=True, stdout=subprocess.DEVNULL)
    path = next(waited_for(folder, process))
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    mark(path)
    assert list(out.glob("*.json")) == []
    subprocess.run(line, check=True, stdout=subprocess.DEVNULL)
    assert list(folder.iterdir()) == []
    (written,) = out.glob("*.json")
    resumed = read(written)
    assert resumed.rounds[0].notes == {"marked": True}  # the first round was not played again
    whole = play(resumed.scenario, device="cpu", executor="loop")
    assert resumed.rounds[1:] == whole.rounds[1:]
    assert resumed.result == whole.result


def views() -> dict[str, Tensor]:
    """Tensors whose strides, place or memory are unlike those of a copy."""
    base = torch.arange(24.0).reshape(4, 6)
    large = torch.arange(40_000.0)
    return {
        "base": base,
        "row": base[2],
        "column": base[:, 1],
        "transposed": base.t(),
        "expanded": torch.ones(1, 3).expand(5, 3),
        "empty": torch.empty(0, 3),
        "scalar": torch.tensor(2.5),
        "bits": torch.tensor([True, False])[1:],
        "half": torch.ones(3, dtype=torch.bfloat16),
        "large": large[100:],
        "the same": large[:50],
    }


def test_tensors_come_back_with_their_strides_and_the_memory_that_they_share(
    tmp_path: Path,
) -> None:
    path = tmp_path / "x.safetensors"
    before = views()
    beside = [torch.full((i,), i, dtype=torch.uint8) for i in range(12)]
    tensor_store.write(path, before, {"a": "b"}, (), beside)
    after, files = tensor_store.read(path, torch.device("cpu"), ())
    assert all(map(torch.equal, files, beside)), "in their order"
    assert tensor_store.read_about(path)["a"] == "b"
    for name, x in before.items():
        y = after[name]
        assert torch.equal(x, y), name
        assert (y.dtype, y.stride(), y.storage_offset()) == (
            *(x.dtype, x.stride(), x.storage_offset()),
        )
        assert y.data_ptr() % 64 == x.data_ptr() % 64, name
    after["base"][2, 1] = -1.0
    assert after["row"][1] == after["column"][2] == after["transposed"][1, 2] == -1
    after["the same"][:] = 0.0
    assert after["large"][0] == 100.0
    assert after["large"].untyped_storage().nbytes() == 160_000


def test_a_tensor_beyond_its_memory_is_refused(tmp_path: Path) -> None:
    writer = tensor_store.Tensors()
    data = b"".join(writer.pieces(torch.zeros(3)))
    again = tensor_store.TensorReader(memoryview(data), writer.memories).whole()
    assert torch.equal(again, torch.zeros(3))
    flags = b"".join(tensor_store.Tensors().pieces(torch.zeros(3, dtype=torch.bool)))
    broken: list[tuple[bytes, list[Tensor]]] = [
        (data, []),
        (data, [torch.zeros(11, dtype=torch.uint8)]),
        (flags, [torch.full((3,), 2, dtype=torch.uint8)]),
    ]
    for tree, memories in broken:
        with pytest.raises(ConfigError, match="a state must be bytes that fedbench wrote"):
            tensor_store.TensorReader(memoryview(tree), memories).whole()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"more": torch.zeros(1, dtype=torch.uint8)}, "not those of its table"),
        ({PACKED: None}, "other names or types"),
        ({TREE: torch.zeros(3, dtype=torch.int8)}, "other names or types"),
        ({TREE: torch.zeros(3, 1, dtype=torch.uint8)}, "other names or types"),
        ({TABLE: torch.tensor([[12.0, 0.0]])}, "no list of memories"),
        ({TABLE: torch.tensor([12, 0])}, "no list of memories"),
        ({TABLE: torch.tensor([[12, 0, 0]])}, "no list of memories"),
        ({TABLE: torch.tensor([[-1, 0]])}, "no list of memories"),
        ({TABLE: torch.tensor([[13, 0]])}, "memory 0 has another size"),
        ({TABLE: torch.tensor([[11, 0]])}, "does not cover the file"),
        ({TABLE: torch.tensor([[1 << 16, 0]])}, "not those of its table"),
    ],
)
def test_a_file_whose_tensors_do_not_fit_together_is_refused_whatever_its_digest(
    change: dict[str, Tensor | None], text: str, tmp_path: Path
) -> None:
    path = tmp_path / "x.safetensors"
    tensor_store.write(path, torch.zeros(3), {}, ())
    tensors = {name: x for name, x in (load_file(path) | change).items() if x is not None}
    save_file(tensors, path, {"sha256": tensor_store._digest(tensors)})
    with pytest.raises(ConfigError, match=text):
        tensor_store.read(path, torch.device("cpu"), ())


def test_a_file_of_which_a_byte_or_a_name_changed_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    beside = [torch.zeros(5, dtype=torch.uint8)]
    tensor_store.write(path, torch.zeros(3), {}, (), beside)
    about = tensor_store.read_about(path)
    tensors = load_file(path)
    renamed = {name.replace("beside 0", "beside 1"): x for name, x in tensors.items()}
    for damaged in (renamed, *({**tensors, name: x + 1} for name, x in tensors.items())):
        save_file(damaged, path, about)
        with pytest.raises(ConfigError, match="the file is damaged"):
            tensor_store.read(path, torch.device("cpu"), ())
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ConfigError, match="must be a file of safetensors, got another one"):
        tensor_store.read(path, torch.device("cpu"), ())
    save_file(tensors, path)
    with pytest.raises(ConfigError, match="the file is damaged"):
        tensor_store.read(path, torch.device("cpu"), ())


def test_every_part_of_a_state_is_in_a_checkpoint() -> None:
    names = {field.name for field in dataclasses.fields(RunState)}
    assert fields(RunState(server=None))[0].keys() == names
