"""Callbacks of runs and sweeps, and the trackers that are callbacks."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from sample_records import made

import fedbench
from fedbench.core.errors import ConfigError
from fedbench.experiment.callbacks import Callback, Follower, replay
from fedbench.experiment.cells import Cell
from fedbench.experiment.measurements import Round
from fedbench.experiment.record import Record
from fedbench.experiment.scenario import Scenario
from fedbench.sweeps.drive import play_each
from fedbench.sweeps.follow import Following
from fedbench.sweeps.local import Options
from fedbench.sweeps.watch import Watcher
from fedbench.tracking.trackers import TRACKERS, Outcome, Tracker, numbers, outcomes, tracking

SMALL = Scenario(model="micro", clients=6, per_round=3, rounds=2, epochs=1)


class Diary(Callback):
    """Everything that it was told, in order."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Any]] = []

    def started(self, scenario: Scenario) -> None:
        self.told.append(("started", scenario.seed))

    def round(self, scenario: Scenario, round: Round) -> None:
        self.told.append(("round", (scenario.seed, round.step)))

    def finished(self, record: Record) -> None:
        self.told.append(("finished", record.scenario.seed))

    def failed(self, scenario: Scenario, reason: str) -> None:
        self.told.append(("failed", (scenario.seed, reason)))


def test_a_run_tells_its_callbacks_each_round_and_its_record() -> None:
    diary = Diary()
    steps: list[int] = []
    progress: list[Round] = []
    followers: list[Follower] = [diary, lambda r: steps.append(r.step), progress.append]
    record = fedbench.play(SMALL, callbacks=followers)
    assert diary.told == [
        ("started", 0),
        ("round", (0, 0)),
        ("round", (0, 1)),
        ("finished", 0),
    ]
    assert steps == [0, 1]
    assert progress == record.rounds
    assert fedbench.play(SMALL).measured() == record.measured()


def test_what_a_callback_raises_ends_the_run_and_the_others_hear_of_it() -> None:
    class Pruned(Exception):
        pass

    def prune(round: Round) -> None:
        raise Pruned("no hope")

    diary = Diary()
    with pytest.raises(Pruned, match="no hope"):
        fedbench.play(SMALL, callbacks=[diary, prune])
    assert diary.told == [
        ("started", 0),
        ("round", (0, 0)),
        ("failed", (0, "Pruned: no hope")),
    ]


@pytest.mark.parametrize("wrong", [3, Diary, "mlflow"])
def test_what_is_no_callback_is_refused_before_anything_is_played(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="callbacks must be objects of Callback, or functions"):
        fedbench.play(SMALL.model_copy(update={"dataset": "unknown"}), callbacks=[wrong])


def test_a_record_can_tell_followers_afterwards_what_its_run_would_have() -> None:
    diary = Diary()
    accuracies: list[float | None] = []
    replay(made("alie", 3, 0.4), diary, lambda r: accuracies.append(r.accuracy))
    assert [event for event, _ in diary.told] == ["started", "round", "round", "finished"]
    assert accuracies == [0.4, 0.4]


class Witness(Watcher):
    def __init__(self) -> None:
        self.told: list[str] = []

    def recorded(self, cell: Cell, seed: int) -> None:
        self.told.append("found")

    def finished(self, cell: Cell, record: Record) -> None:
        self.told.append("finished")


def following(diary: Follower, watcher: Watcher | None = None) -> Following:
    return Following(watcher or Watcher(), [diary])


def test_an_engine_without_rounds_sends_them_with_the_record_and_none_twice() -> None:
    record = made("alie", 3, 0.4, data_seed=3)
    cell = Cell(record.scenario.model_copy(update={"seed": 0}))
    for sent in (0, 1, 2):
        diary = Diary()
        follow = following(diary)
        follow.started(cell, 3)
        for round in record.rounds[:sent]:
            follow.round(cell, 3, round)
        follow.finished(cell, record)
        rounds = [what for event, what in diary.told if event == "round"]
        assert rounds == [(3, 0), (3, 1)]


def test_a_run_that_lost_its_worker_starts_again_and_an_earlier_failure_is_not_told() -> None:
    record = made("alie", 3, 0.4, data_seed=3)
    cell = Cell(record.scenario.model_copy(update={"seed": 0}))
    diary = Diary()
    follow = following(diary)
    follow.failed(cell, 1, "of an earlier sweep")
    follow.started(cell, 3)
    follow.round(cell, 3, record.rounds[0])
    follow.started(cell, 3)  # its first worker was lost
    follow.finished(cell, record)
    events = [event for event, _ in diary.told]
    assert events == ["started", "round", "started", "round", "round", "finished"]
    follow.started(cell, 5)
    follow.failed(cell, 5, "killed")
    assert diary.told[-1] == ("failed", (5, "killed"))


@pytest.mark.slow
def test_a_sweep_tells_callbacks_of_runs_that_it_plays_and_not_of_those_it_found(
    tmp_path: Path,
) -> None:
    cells = [Cell(SMALL), Cell(SMALL.model_copy(update={"attack": "sign-flip"}))]
    options = Options(workers=2, device="cpu")
    diary = Diary()
    play_each(cells[:1], [0], options, Watcher(), tmp_path)
    witness = Witness()
    play_each(cells, [0], options, following(diary, witness), tmp_path)
    assert sorted(witness.told) == ["finished", "found"]
    assert [event for event, _ in diary.told] == ["started", "round", "round", "finished"]


def test_a_tracker_gets_numbers_and_no_lists_and_no_texts() -> None:
    record = made("alie", 3, 0.4, epsilon=2.5)
    told = numbers(record.rounds[1])
    assert told["step"] == 1.0
    assert told["rejected_malicious"] == 2.0
    assert told["skipped"] == 0.0
    assert told["sampled"] == 3.0
    assert not {"clients", "notes", "loss"} & set(told)  # the loss was not measured
    said = outcomes(record)
    assert said["result.accuracy"] == 0.4
    assert said["result.epsilon"] == 2.5
    assert not {"result.flags", "result.unit"} & set(said)


class Written(Tracker):
    """A tracker of no package, which writes into a list what it is told."""

    package = "json"
    lines: ClassVar[list[tuple[Any, ...]]] = []

    def _begin(self, scenario: Scenario) -> int:
        self.lines.append(("begin", scenario.seed))
        return scenario.seed

    def _log(self, run: int, metrics: dict[str, float], step: int) -> None:
        self.lines.append(("log", run, step, metrics["malicious"]))

    def _conclude(self, run: int, metrics: dict[str, float], record: Record) -> None:
        self.lines.append(("conclude", run, metrics["result.accuracy"]))

    def _end(self, run: int, outcome: Outcome) -> None:
        self.lines.append(("end", run, outcome))


def test_a_tracker_ends_each_run_as_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(TRACKERS, "written", Written)
    monkeypatch.setattr(Written, "lines", [])
    record = made("alie", 3, 0.4, malicious=(1, 0))
    lost, stopped = (record.scenario.model_copy(update={"seed": s}) for s in (8, 9))
    with tracking(["written", "written"], "e", tmp_path) as (tracker,):  # once is enough
        replay(record, tracker)
        tracker.started(lost)
        tracker.started(lost)  # its first worker was lost
        tracker.failed(lost, "memory")
        tracker.started(stopped)
    begun = [("begin", 3), ("log", 3, 0, 1), ("log", 3, 1, 0), ("conclude", 3, 0.4)]
    ended = [("end", 3, "finished"), ("begin", 8), ("end", 8, "failed"), ("begin", 8)]
    stop = [("end", 8, "failed"), ("begin", 9), ("end", 9, "stopped")]
    assert Written.lines == [*begun, *ended, *stop]


def test_an_absent_or_unknown_tracker_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with (
        pytest.raises(ConfigError, match=r"tracking needs mlflow.*pip install mlflow$"),
        tracking(["mlflow"], "e", tmp_path),
    ):
        pass
    with (
        pytest.raises(ConfigError, match="--track must be one of mlflow, tensorboard, wandb"),
        tracking(["comet"], "e", tmp_path),
    ):
        pass


# with the packages: make test-peers


def tracked(name: str, folder: Path) -> Record:
    """A record that the tracker was told of, with a run that failed and one that was stopped."""
    record = made("alie", 3, 0.4, epsilon=2.5).sealed()
    failed, stopped = (record.scenario.model_copy(update={"seed": s}) for s in (8, 9))
    with tracking([name], "our runs", folder) as (tracker,):
        assert isinstance(tracker, Tracker)
        replay(record, tracker)
        tracker.started(failed)
        tracker.failed(failed, "memory")
        tracker.started(stopped)
    return record


@pytest.mark.peers
@pytest.mark.parametrize("store", ["sqlite", "file"])
def test_mlflow_has_parameters_metrics_and_the_record(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = importlib.import_module("mlflow")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    where = {"sqlite": f"sqlite:///{tmp_path}/runs.db", "file": f"file://{tmp_path}/mlruns"}
    mlflow.set_tracking_uri(where[store])
    record = tracked("mlflow", tmp_path)
    client = mlflow.MlflowClient()
    home = client.get_experiment_by_name("our runs").experiment_id
    runs = {run.data.params["seed"]: run for run in client.search_runs([home])}
    assert {seed: run.info.status for seed, run in runs.items()} == {
        "3": "FINISHED",
        "8": "FAILED",
        "9": "KILLED",
    }
    run = runs["3"]
    assert run.info.run_name == "fsl-mean-alie-seed3"
    assert run.data.params["attack"] == "alie"
    assert run.data.metrics["result.accuracy"] == 0.4
    points = client.get_metric_history(run.info.run_id, "rejected_malicious")
    assert sorted((point.step, point.value) for point in points) == [(0, 0.0), (1, 2.0)]
    name = record.file_name
    path = client.download_artifacts(run.info.run_id, name, str(tmp_path))
    assert fedbench.load(path) == record


@pytest.mark.peers
def test_tensorboard_has_parameters_metrics_and_the_record(tmp_path: Path) -> None:
    events = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    record = tracked("tensorboard", tmp_path)
    tracked("tensorboard", tmp_path)  # again: it gets a folder of its own
    folders = sorted(path.name for path in (tmp_path / "tensorboard").iterdir())
    assert len(folders) == 6
    assert folders[0].startswith("fsl-mean-alie-seed3-")
    assert folders[1] == f"{folders[0]}-2"
    folder = tmp_path / "tensorboard" / folders[0]
    found = events.EventAccumulator(str(folder)).Reload()
    points = found.Scalars("rejected_malicious")
    assert [(point.step, point.value) for point in points] == [(0, 0.0), (1, 2.0)]
    assert found.Scalars("result.accuracy")[0].value == pytest.approx(0.4)
    assert fedbench.load(folder / record.file_name) == record


@pytest.mark.peers
def test_wandb_keeps_its_runs_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    tracked("wandb", tmp_path)
    runs = list((tmp_path / "wandb").glob("offline-run-*"))
    assert len(runs) == 3
    logs = b"".join(path.read_bytes() for run in runs for path in run.glob("*.wandb"))
    assert b"result.accuracy" in logs
    assert b"fsl-mean-alie-seed3" in logs


@pytest.mark.peers
def test_the_command_tracks_what_it_plays(
    command: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    sizes = "--model micro --clients 6 --per-round 3 --rounds 2 --epochs 1 --seeds 0"
    said = "--attack sign-flip --track tensorboard --out"
    code, _, _ = command("attack", *sizes.split(), *said.split(), str(tmp_path))
    assert code == 0
    assert len(list((tmp_path / "tensorboard").iterdir())) == 2  # and without attack
    assert set(TRACKERS) == {"mlflow", "tensorboard", "wandb"}
