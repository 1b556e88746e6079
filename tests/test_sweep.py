"""Sweeps go on: after a failure, after a kill, beside another sweep."""

import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from conftest import Install
from moody import HUNDRED, failures, first, installed, records
from rich.console import Console
from sample_records import sample_record, sample_round

import fedbench
from fedbench.api import Defense, ServerView
from fedbench.cli.sweep import expectation, foresee, summarise
from fedbench.core.errors import ConfigError, Unavailable
from fedbench.experiment.cells import Cell, Run
from fedbench.experiment.measurements import Round
from fedbench.experiment.record import Record
from fedbench.experiment.scenario import Scenario
from fedbench.payload import Payload
from fedbench.results.store import Failure, Store
from fedbench.sweeps.drive import Sweep, Tally, play_each
from fedbench.sweeps.engine import Engine, Job, News, crash, play_job
from fedbench.sweeps.estimate import Estimate, _by_novelty, _expected, estimate
from fedbench.sweeps.local import LocalEngine, Options, main_left_out, see_only
from fedbench.sweeps.watch import Watcher

TINY = """
seeds = [0, 1]
[scenario]
model = "micro"
clients = 8
per_round = 4
malicious = 0.25
rounds = 1
epochs = 1
[[grid]]
protocol = ["fedavg", "signsgd"]
attack = "sign-flip"
"""
RUNS = 8  # of TINY
Environment = dict[str, str] | None
Finished = subprocess.CompletedProcess[str]


@pytest.fixture
def moody(tmp_path: Path) -> dict[str, str]:
    """An environment in which a package with the attack `moody` is installed."""
    return os.environ | {
        "PYTHONPATH": first(installed(tmp_path / "site")),
        "DIARY": str(tmp_path / "diary"),
    }


def command(folder: Path, text: str, *options: str) -> list[str]:
    """The command of a sweep, its store in ``folder / "store"``."""
    (folder / "s.toml").write_text(text)
    words = ["sweep", str(folder / "s.toml"), "--out", str(folder / "store"), *options]
    return [sys.executable, "-m", "fedbench", *words]


def finished(words: list[str], env: Environment = None) -> Finished:
    return subprocess.run(words, capture_output=True, text=True, env=env, timeout=300)


def sweep(folder: Path, text: str, *options: str, env: Environment = None) -> Finished:
    return finished(command(folder, text, *options), env)


class Listener(Watcher):
    def __init__(self) -> None:
        self.heard: list[tuple[str, str]] = []

    def recorded(self, cell: Cell, seed: int) -> None:
        self.heard.append(("found", cell.attack))

    def started(self, cell: Cell, seed: int) -> None:
        self.heard.append(("started", cell.attack))

    def round(self, cell: Cell, seed: int, round: Round) -> None:
        self.heard.append(("round", cell.attack))

    def finished(self, cell: Cell, record: Record) -> None:
        self.heard.append(("finished", cell.attack))


def small(**fields: object) -> Cell:
    base = {"model": "micro", "clients": 8, "per_round": 4, "rounds": 2, "epochs": 1}
    return Cell(Scenario.of(**(base | fields)))


class Ending(Engine):
    """Ends every run at once, with an error and without playing it."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.submitted: list[Run] = []
        self.ended: list[Run] = []

    def __enter__(self) -> "Ending":
        return self

    def __exit__(self, *_: object) -> None: ...

    def free(self) -> int:
        return 1

    def submit(self, run: Run, chunk: int) -> None:
        self.submitted.append(run)
        self.ended.append(run)

    def news(self, wait_seconds: float) -> list[News]:
        news, self.ended = [News(run, crash(self.error)) for run in self.ended], []
        return news


@pytest.mark.parametrize(
    ("error", "kind", "played"),
    [(Unavailable("no such device"), "machine", 3), (ConfigError("no such run"), "user", 2)],
)
def test_a_lack_of_devices_is_retried(
    error: ConfigError, kind: str, played: int, tmp_path: Path
) -> None:
    runs = [Run(small(), 0), Run(small(), 1)]
    engine = Ending(error)
    for asked in (runs[:1], runs):  # the second sweep has a run that the first one had not
        with Store(tmp_path) as store:
            tally = Sweep(engine, store, Watcher()).play(asked)
        assert {failure.kind for failure in tally.failed.values()} == {kind}
        assert set(tally.failed) == set(asked)
    assert len(engine.submitted) == played


def test_a_store_has_what_is_whole(tmp_path: Path) -> None:
    from fedbench.run import play

    run = Run(small(), 0)
    record = play(run.scenario, device="cpu")
    with Store(tmp_path / "s") as store:
        assert not store.has(run)
        assert store.claim(run)
        torn = store.folder / f".{run.file_name}.abc"
        torn.write_text("{")  # a writer was killed here
        crashed = {"kind": "crash", "error": "E", "message": "m", "traceback": "t"}
        fields = {"id": run.id, "scenario": run.resolved, "tries": 1, "chunk": 32, **crashed}
        store.fail(run, Failure.model_validate(fields))
        assert store.failure(run) is not None
        store.keep(run, record)
        assert store.path(run).name == record.file_name
        assert store.has(run)
        assert store.record(run) == record
        assert store.failure(run) is None
        assert not torn.exists()
        whole = store.path(run).read_bytes()
        accuracy = f'"accuracy": {record.result.accuracy}'.encode()
        assert accuracy in whole
        inner = whole[: whole.index(b"}\n") + 2]
        edited = whole.replace(accuracy, b'"accuracy": 0.9999')
        for spoilt in (whole[:-1], whole[: len(whole) // 2], inner, edited, b"", b"}\n"):
            store.path(run).write_bytes(spoilt)
            assert not store.has(run)
        with pytest.raises(ConfigError, match="the code changed meanwhile; start the sweep again"):
            store.keep(Run(run.cell, 1), record)


def test_what_is_missing_since_code_changed_is_counted_before_a_sweep(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cell = small()
    runs = [Run(cell, 0), Run(cell, 1)]
    for seed, name in ((0, "0" * 16), (2, "1" * 16)):
        scenario = Run(cell, seed).resolved
        sample_record(scenario, [sample_round(0, 0.5)], {}, id=name).write(tmp_path)
    begin = runs[1].file_name.removesuffix(f"{runs[1].id}.json")
    (tmp_path / f"{begin}{'2' * 16}.json").write_text("{")
    scenario = runs[1].resolved
    edited = sample_record(scenario, [sample_round(0, 0.5)], {}, id="3" * 16).write(tmp_path)
    edited.write_text(edited.read_text().replace('"accuracy": 0.5', '"accuracy": 0.9'))
    assert Store(tmp_path).by_other_code(runs) == 1
    foresee(Console(width=200), runs, tmp_path, Options(device="cpu"), 1)
    others = "another version of fedbench or of a plug-in played 1 of the others"
    assert f"0 of 2 runs have a record; {others}\n" in capsys.readouterr().out


def test_a_store_that_cannot_be_written_is_an_error_and_an_unreadable_failure_is_none(
    tmp_path: Path,
) -> None:
    run = Run(small(), 0)
    with Store(tmp_path) as store:
        (tmp_path / "failed").mkdir()
        path = tmp_path / "failed" / run.file_name
        assert store.failed_at(run) is None
        for spoilt in ("{", "{}", '{"scenario": {"per_round": 999}}'):
            path.write_text(spoilt)
            assert store.failure(run) is None
        assert store.failed_at(run) == path.stat().st_mtime_ns
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match="must be a folder that can be written"):
        Store(tmp_path / "file").__enter__()
    (tmp_path / "store" / ".claims").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"\.claims must be a file that can be written, got Is a"):
        Store(tmp_path / "store").__enter__()


CLAIM = """
import sys, time
from pathlib import Path
from fedbench.experiment.cells import Cell, Run
from fedbench.results.store import Store
from fedbench.experiment.scenario import Scenario
with Store(Path(sys.argv[1])) as store:
    print(*[store.claim(Run(Cell(Scenario()), seed)) for seed in (0, 1)], flush=True)
    time.sleep(float(sys.argv[2]))
"""


@pytest.mark.slow
def test_a_claim_holds_against_other_processes_and_ends_with_its_own(tmp_path: Path) -> None:
    def claimer(seconds: float) -> subprocess.Popen[str]:
        words = [sys.executable, "-c", CLAIM, str(tmp_path), str(seconds)]
        return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)

    def said(process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        return process.stdout.readline().strip()

    first = claimer(60)
    assert said(first) == "True True"
    with Store(tmp_path) as store:
        zeroth, two, three = (Run(Cell(Scenario()), seed) for seed in (0, 1, 2))
        assert not store.claim(zeroth)
        assert store.claim(three)
        first.kill()
        first.wait()
        assert store.claim(zeroth)
        store.release(zeroth)
        with claimer(0) as second:  # 0 is free again, 1 was never ours
            assert said(second) == "True True"
        assert store.claim(two)
        with claimer(0) as third:
            assert said(third) == "True False"


@pytest.mark.slow
def test_a_sweep_plays_what_is_missing_and_tells_it(tmp_path: Path) -> None:
    cells = [small(), small(attack="sign-flip")]
    runs = [Run(cell, 0) for cell in cells]
    options = Options(device="cpu", workers=1)
    with Store(tmp_path) as store:
        with LocalEngine(options, 1) as engine, Listener() as first:
            tally = Sweep(engine, store, first).play(runs[1:])
        assert (tally.played, tally.recorded, tally.left) == (runs[1:], [], [])
        with LocalEngine(options, 1) as engine, Listener() as second:
            tally = Sweep(engine, store, second).play(runs)
        assert (tally.played, tally.recorded) == (runs[:1], runs[1:])
    life = ["started", "round", "round", "finished"]
    assert first.heard == [(what, "sign-flip") for what in life]
    assert sorted(second.heard) == sorted([("found", "sign-flip"), *((x, "none") for x in life)])


def test_workers_are_one_per_group_of_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    for options, runs, processes in (
        *(({}, 100, 8), ({"threads": 3}, 100, 2), ({"threads": 16}, 100, 1)),
        *(({"workers": 5}, 100, 5), ({"workers": 5}, 3, 3)),
    ):
        assert Options("cpu", **options).processes(runs) == processes  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "seen"), [(None, "1"), ("", "1"), ("4,7", "7"), ("GPU-a,GPU-b", "GPU-b")]
)
def test_a_worker_sees_its_own_accelerator_of_those_that_there_are(
    given: str | None, seen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if given is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
    see_only(1)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == seen


def test_memory_that_is_short_has_several_names() -> None:
    short = (MemoryError(), torch.OutOfMemoryError("x"), RuntimeError("can't allocate memory: y"))
    assert [crash(error).kind for error in short] == ["memory"] * 3
    assert crash(RuntimeError("shapes differ")).kind == "crash"
    user = crash(ConfigError("--rounds"))
    assert (user.kind, user.message) == ("user", "--rounds")


def test_on_a_terminal_an_estimate_says_that_it_plays(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # a terminal, says rich
    tiny = Scenario(model="micro", clients=8, per_round=2, rounds=9, epochs=1)
    assert "from two rounds of 1 of 1 cells" in expectation([Run(Cell(tiny), 0)], Options(), 1)
    assert "playing two rounds of some cells to estimate the time" in capsys.readouterr().err


@dataclass(frozen=True, kw_only=True)
class Sleepy(Defense[int]):
    """The mean of rows, which takes its time."""

    before: float = 4.0  # seconds, once
    each: float = 0.5  # seconds, in every round

    def tolerates(self, n: int) -> int:
        return 0

    def init(self, spec: Any) -> int:
        time.sleep(self.before)
        return 0

    def aggregate(self, received: Payload, state: int | None, view: ServerView) -> tuple[Any, int]:
        time.sleep(self.each)
        return received.values().mean(dim=0), state or 0


@pytest.mark.slow
def test_an_estimate_is_the_start_and_the_rounds_of_every_run(still_clock: None) -> None:
    tiny: dict[str, Any] = {"model": "micro", "clients": 8, "per_round": 2, "epochs": 1}
    tiny["malicious"] = 0.0
    short = Cell(Scenario(defense=Sleepy(), rounds=6, **tiny))
    long = Cell(Scenario(defense=Sleepy(before=1.0, each=2.0), rounds=10, **tiny))
    runs = [Run(short, 0), Run(short, 1), Run(long, 0)]
    expected = estimate(runs, Options(device="cpu"))
    assert expected == Estimate(2 * (4.0 + 6 * 0.5) + 1.0 + 10 * 2.0, probed=2, cells=2)
    # The second cell is taken for the first one, which is probed however little time there is.
    expected = estimate(runs, Options(device="cpu"), budget=-1.0)
    assert expected == Estimate(2 * (4.0 + 6 * 0.5) + 4.0 + 10 * 0.5, probed=1, cells=2)


@dataclass(frozen=True, kw_only=True)
class SleepyPerRow(Sleepy):
    """The mean of rows, which takes its time for each of them."""

    def aggregate(self, received: Payload, state: int | None, view: ServerView) -> tuple[Any, int]:
        time.sleep((len(received) - 1) * self.each)
        return super().aggregate(received, state, view)


@pytest.mark.slow
def test_a_large_cohort_is_probed_with_fewer_clients(
    still_clock: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def watched(job: Job, **rest: Any) -> Record:
        asked.append(job.scenario.per_round)
        return play_job(job, **rest)

    monkeypatch.setattr("fedbench.sweeps.estimate.play_job", watched)
    monkeypatch.setattr("fedbench.sweeps.estimate.PROBED_CLIENTS", 2)
    tiny: dict[str, Any] = {"model": "micro", "clients": 8, "epochs": 1, "malicious": 0.0}
    large = Cell(Scenario(defense=SleepyPerRow(), per_round=8, rounds=10, **tiny))
    expected = estimate([Run(large, 0)], Options(device="cpu"))
    assert expected.seconds == 4.0 + 10 * 8 * 0.5
    assert set(asked) == {2}


def test_cells_are_probed_by_novelty_and_others_take_as_long_as_what_is_most_like_them() -> None:
    plain, alike, other = (
        Cell(Scenario(protocol=protocol, attack=attack, defense=defense, rounds=10))
        for protocol, attack, defense in (
            ("fedavg", "none", "mean"),
            ("fedavg", "ipm", "mean"),
            ("signsgd", "alie", "median"),
        )
    )
    assert list(_by_novelty([plain, alike, other])) == [plain, other, alike]
    speeds = {plain: (3.0, 2.0), other: (100.0, 100.0)}
    assert _expected(alike, speeds) == 3.0 + 10 * 2.0
    both = Cell(Scenario(protocol="fedpm", attack="ipm", defense="krum:f=1", rounds=10))
    assert _expected(both, speeds) == (3.0 + 100.0) / 2 + 10 * (2.0 + 100.0) / 2


def test_the_table_of_a_folder_with_a_space_is_suggested_as_a_shell_reads_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = Run(Cell(Scenario()), 0)
    parts: dict[str, Any] = {
        "kind": "crash",
        "error": "Boom",
        "message": "",
        "traceback": "",
        "tries": 1,
    }
    failure = Failure(id=run.id, scenario=run.cell.scenario, chunk=1, **parts)
    with pytest.raises(typer.Exit):  # 1, for a run failed
        summarise(Tally(failed={run: failure}), Path("my store"), 1, 0.0)
    shown = capsys.readouterr()
    assert shown.out.endswith("now: fedbench results 'my store'\n")
    assert "see fedbench results 'my store' --failed " in shown.err


@pytest.mark.slow
def test_the_command_plays_once_and_says_what_it_did(tmp_path: Path) -> None:
    dry = sweep(tmp_path, TINY, "--dry-run")
    assert dry.returncode == 0, dry.stderr
    assert f"4 cells x seeds 0,1 = {RUNS} runs" in dry.stdout
    assert f"0 of {RUNS} runs have a record" in dry.stdout
    assert re.search(r"about [\d.]+ \w+.* on \d workers?, from two rounds of 4 of 4 ", dry.stdout)
    assert not (tmp_path / "store").exists()
    first = sweep(tmp_path, TINY)
    assert first.returncode == 0, first.stderr
    assert len(records(tmp_path)) == RUNS
    assert first.stdout.count("accuracy") == RUNS
    times = {p: p.stat().st_mtime_ns for p in (tmp_path / "store").glob("*.json")}
    again = sweep(tmp_path, TINY)
    assert again.returncode == 0
    assert f"{RUNS} of {RUNS} runs have a record" in again.stdout
    assert "accuracy" not in again.stdout
    assert times == {p: p.stat().st_mtime_ns for p in times}


BOTH = '["fedavg", "signsgd"]'


def attacked_by(moody: str, protocols: str = '"fedavg"') -> str:
    text = TINY.replace("seeds = [0, 1]", "seeds = [0]").replace('"sign-flip"', moody)
    return text.replace(BOTH, protocols)


@pytest.mark.slow
def test_a_crash_is_recorded_and_the_sweep_goes_on(tmp_path: Path, moody: dict[str, str]) -> None:
    text = attacked_by('["moody:times=1", "sign-flip"]')
    ended = sweep(tmp_path, text, "--workers", "1", env=moody)
    assert ended.returncode == 1
    assert "1 run failed; see fedbench results " in ended.stderr
    start = "moody:times=1, seed 0: failed: attack moody (package moody 1.0): craft in round 0 for "
    assert start in ended.stdout
    assert " raised ZeroDivisionError: moody today (moody_package.py, line " in ended.stdout
    assert len(records(tmp_path)) == 2
    (failure,) = failures(tmp_path)
    assert (failure.kind, failure.error, failure.tries) == ("crash", "PluginError", 1)
    assert "in craft" in failure.traceback
    again = sweep(tmp_path, text, env=moody)  # it is not tried again by itself
    assert again.returncode == 1
    assert " (moody_package.py, line 37) (earlier; --retry-failed plays it)" in again.stdout
    retried = sweep(tmp_path, text, "--retry-failed", env=moody)
    assert retried.returncode == 0
    assert len(records(tmp_path)) == 3
    assert failures(tmp_path) == []


@pytest.mark.slow
def test_two_retrying_sweeps_play_a_failing_run_once(tmp_path: Path, moody: dict[str, str]) -> None:
    text = attacked_by('"moody:times=99"')
    assert sweep(tmp_path, text, env=moody).returncode == 1
    tries = len(Path(moody["DIARY"]).read_text().split())
    assert tries == 1
    words = command(tmp_path, text, "--retry-failed", "--workers", "1")
    pair = [subprocess.Popen(words, env=moody, stdout=subprocess.DEVNULL) for _ in range(2)]
    assert [process.wait(timeout=300) for process in pair] == [1, 1]
    assert len(Path(moody["DIARY"]).read_text().split()) in (2, 3)  # 3: one ended before the other
    assert len(failures(tmp_path)) == 1


@pytest.mark.slow
def test_only_the_run_that_kills_a_worker_fails(tmp_path: Path, moody: dict[str, str]) -> None:
    text = attacked_by('["moody:times=99,how=kill", "sign-flip"]', BOTH)
    ended = sweep(tmp_path, text, "--workers", "1", env=moody)
    assert ended.returncode == 1, ended.stderr
    names = {record.scenario.attack.partition(":")[0] for record in records(tmp_path).values()}
    assert names == {"none", "sign-flip"}
    assert len(records(tmp_path)) == 4
    assert {failure.kind for failure in failures(tmp_path)} == {"lost"}
    assert len(failures(tmp_path)) == 2  # one for each protocol


@pytest.mark.slow
def test_ctrl_c_while_workers_start_says_one_line(tmp_path: Path) -> None:
    endless = TINY.replace("rounds = 1", "rounds = 100000")  # however late the signal comes
    stopped = subprocess.Popen(
        command(tmp_path, endless),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # a shell starts background jobs deaf to Ctrl-C, and what they start inherits that
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        end = time.monotonic() + 60
        while not (tmp_path / "store" / ".claims").exists() and time.monotonic() < end:
            time.sleep(0.01)
        time.sleep(0.3)
        os.killpg(stopped.pid, signal.SIGINT)
        _, complaint = stopped.communicate(timeout=60)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(stopped.pid, signal.SIGKILL)  # its workers, too
    assert stopped.returncode == 130
    assert complaint == f"fedbench: stopped with {RUNS} runs left\n"


@pytest.mark.slow
def test_the_attack_command_names_the_traceback_of_a_crash(
    tmp_path: Path, moody: dict[str, str]
) -> None:
    words = "attack -a moody:times=1 -a sign-flip --seeds 0 --model micro --clients 8 --rounds 1"
    words += f" --per-round 4 --malicious 0.25 --epochs 1 --workers 1 --out {tmp_path / 'out'}"
    attack = [sys.executable, "-m", "fedbench", *words.split()]
    first = finished(attack, moody)
    assert first.returncode == 1
    assert first.stderr == "fedbench: 1 run failed; the same command plays them again\n"
    assert len(list((tmp_path / "out").glob("*.json"))) == 2
    (line,) = (line for line in first.stdout.splitlines() if line.startswith("failed: "))
    assert ": attack moody (package moody 1.0): craft in round 0 for client" in line
    line_start, _, place = line.partition("; see ")
    assert " raised ZeroDivisionError: moody today (moody_package.py, line " in line_start
    assert "in craft" in Failure.model_validate_json(Path(place).read_bytes()).traceback
    again = finished(attack, moody)
    assert again.returncode == 0, again.stderr
    assert "2 of 3 runs have a record in" in again.stdout
    assert "moody:times=1" in again.stdout
    assert "failed" not in again.stdout


@pytest.mark.slow
@pytest.mark.parametrize("how", ["memory", "allocator", "kill"])
def test_lack_of_memory_means_smaller_chunks(
    how: str, tmp_path: Path, moody: dict[str, str]
) -> None:
    text = attacked_by(f'"moody:times=2,how={how}"')
    ended = sweep(tmp_path, text, "--executor", "stacked", "--workers", "1", env=moody)
    assert ended.returncode == 0, ended.stderr
    plays = {r.scenario.attack.partition(":")[0]: r for r in records(tmp_path).values()}
    assert plays["none"].environment.chunk == 32
    assert plays["moody"].environment.chunk == 2  # 32, 8, 2
    assert Path(moody["DIARY"]).read_text().split() == [how] * 3


@pytest.mark.slow
def test_a_run_fails_that_does_not_fit_as_one(tmp_path: Path, moody: dict[str, str]) -> None:
    text = attacked_by('"moody:times=99,how=kill"')
    ended = sweep(tmp_path, text, "--workers", "1", env=moody)
    assert ended.returncode == 1
    (failure,) = failures(tmp_path)
    assert (failure.kind, failure.tries, failure.chunk) == ("lost", 4, 1)  # 32, 8, 2, 1
    assert "ended with signal 9" in failure.message
    assert len(records(tmp_path)) == 1  # the clean run


@pytest.mark.slow
def test_what_cannot_be_played_is_a_failure_of_its_cell(tmp_path: Path) -> None:
    text = TINY.replace("[scenario]", '[scenario]\ndataset = ["digits", "fashion-mnist"]')
    nowhere = dict.fromkeys(("http_proxy", "https_proxy"), "http://127.0.0.1:9")
    ended = sweep(tmp_path, text, env=os.environ | nowhere | {"FEDBENCH_DATA": str(tmp_path)})
    assert ended.returncode == 1
    assert len(records(tmp_path)) == RUNS
    assert {failure.kind for failure in failures(tmp_path)} == {"machine"}  # data is not there
    assert len(failures(tmp_path)) == RUNS


@pytest.mark.slow
def test_two_sweeps_share_a_store_and_play_nothing_twice(tmp_path: Path) -> None:
    words = command(tmp_path, TINY, "--workers", "1")
    pair = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = [process.communicate(timeout=300)[0] for process in pair]
    assert [process.returncode for process in pair] == [0, 0]
    played = re.findall(r"\] (.*): accuracy", "".join(outputs))
    assert len(played) == len(set(played)) == RUNS
    assert len(records(tmp_path)) == RUNS
    for text in outputs:  # each of them ends when all runs are done
        assert f"{RUNS} of {RUNS} runs have a record" in text


def marked(mark: str) -> list[int]:
    """Processes with this in their environment."""
    plays = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark.encode() in path.read_bytes():
                plays.append(int(path.parent.name))
        except OSError:  # it has ended, or is not ours
            continue
    return plays


@pytest.mark.slow
def test_a_sweep_killed_three_times_ends_like_an_undisturbed_one(tmp_path: Path) -> None:
    calm, rough = tmp_path / "calm", tmp_path / "rough"
    calm.mkdir()
    rough.mkdir()
    assert sweep(calm, HUNDRED).returncode == 0
    assert len(records(calm)) == 100
    words = command(rough, HUNDRED)
    draw = random.Random(6)
    played = []
    for number in range(3):
        mark = f"SWEEP_TEST={rough.name}-{number}-{os.getpid()}"
        name, value = mark.split("=")
        log = rough / f"log{number}"
        with log.open("w") as file:
            killed = subprocess.Popen(words, stdout=file, env=os.environ | {name: value})
            enough = draw.randrange(5, 30)  # runs, and then a moment
            while log.read_text().count(": acc") < enough:
                assert killed.poll() is None
                time.sleep(0.02)
            time.sleep(draw.random())
            killed.send_signal(signal.SIGKILL)
            killed.wait()
        played += re.findall(r"\] (.*): accuracy", log.read_text())
        end = time.monotonic() + 10
        while marked(mark) and time.monotonic() < end:
            time.sleep(0.1)
        assert marked(mark) == []  # no worker goes on alone
    last = sweep(rough, HUNDRED)
    assert last.returncode == 0
    played += re.findall(r"\] (.*): accuracy", last.stdout)
    assert len(played) == len(set(played))  # nothing was played twice and said so
    undisturbed, other = records(calm), records(rough)
    assert undisturbed.keys() == other.keys()
    for name, record in undisturbed.items():
        assert record.measured() == other[name].measured()


@dataclass(frozen=True, kw_only=True)
class Unhurried(Defense[Payload]):
    """Take the mean, in six minutes."""

    def tolerates(self, n: int) -> int:
        return 0

    def aggregate(self, received: Payload, state: Any, view: ServerView) -> tuple[Any, Any]:
        time.sleep(360)
        return received.values().mean(dim=0), state


# Twelve minutes leave a checkpoint, of the second round, and six leave none.
@pytest.mark.usefixtures("heard")
@pytest.mark.parametrize(("rounds", "checkpoints", "played_again"), [(1, 0, 4), (2, 1, 2)])
def test_a_sweep_of_python_goes_on_within_a_run_that_took_ten_minutes(
    rounds: int,
    checkpoints: int,
    played_again: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits: list[float] = []  # of the rounds, which nobody waits for

    def interrupted(seconds: float) -> None:
        if len(waits) == rounds:
            raise KeyboardInterrupt
        waits.append(seconds)

    monkeypatch.setattr(time, "sleep", interrupted)
    monkeypatch.setattr(time, "perf_counter", lambda: sum(waits))
    fields: dict[str, Any] = {"clients": 30, "per_round": 2, "rounds": 4, "epochs": 1}
    scenario = Scenario(model="micro", defense=Unhurried(), **fields)
    folder = Store(tmp_path).checkpoints
    with pytest.raises(KeyboardInterrupt):
        fedbench.sweep(scenario, out=tmp_path, device="cpu")
    assert len(list(folder.glob("*.safetensors"))) == checkpoints
    waits.clear()
    monkeypatch.setattr(time, "sleep", waits.append)
    (record,) = fedbench.sweep(scenario, out=tmp_path, device="cpu")
    assert [played.step for played in record.rounds] == [0, 1, 2, 3]
    assert len(waits) == played_again
    assert list(folder.glob("*")) == []


# An attack during whose rounds eleven minutes pass, and which ends its process in the third one.
ENDED_LATE = """
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from fedbench.api import Attack

CLOCK = time.perf_counter


@dataclass(frozen=True, kw_only=True)
class Late(Attack):
    def craft(self, view, memory):
        diary = Path(os.environ["DIARY"])
        with diary.open("a") as file:
            file.write(f"{view.step} ")
        passed = 660.0 * (view.step + 1)
        time.perf_counter = lambda: CLOCK() + passed
        if diary.read_text().split() == ["0", "1", "2"]:
            os.kill(os.getpid(), signal.SIGKILL)
        return view.own, memory
"""


@pytest.mark.slow
def test_a_run_that_takes_long_goes_on_when_its_worker_was_killed(
    tmp_path: Path, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(ENDED_LATE, {"late": "Late"})
    diary = tmp_path / "diary"
    monkeypatch.setenv("DIARY", str(diary))
    one_attacker = {"malicious": 0.125, "per_round": 8}
    cell = small(attack="late", rounds=3, batch_size=64, **one_attacker)
    out = tmp_path / "store"
    played, failed = play_each([cell], [0], Options(device="cpu", workers=1), Watcher(), out)
    assert failed == {}
    ((record,),) = played.values()
    assert diary.read_text().split() == ["0", "1", "2", "2"]
    assert [measured.step for measured in record.rounds] == [0, 1, 2]
    assert list(Store(out).checkpoints.iterdir()) == []


def test_sweeps_in_two_threads_leave_the_script_where_it_was() -> None:
    script = sys.modules["__main__"]
    entered = threading.Event()

    def second() -> None:
        with main_left_out():
            entered.set()

    thread = threading.Thread(target=second)
    with main_left_out():
        assert sys.modules["__main__"] is not script
        thread.start()
        overtaken = entered.wait(0.2)
    thread.join()
    assert not overtaken
    assert sys.modules["__main__"] is script
