"""``auto``: which executor is faster here is measured once, and kept."""

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from fedbench.core.choices import Precision
from fedbench.core.trees import Tree
from fedbench.executors import cached_answers
from fedbench.executors.cached_answers import folder
from fedbench.executors.factory import asked, choose, crowd, executor
from fedbench.executors.training import Loop, Schedule
from fedbench.executors.vmap import Stacked
from fedbench.models.network import ConvNet, Shared
from fedbench.protocols.fedavg import FedAvg

SHARED = Shared(ConvNet((1, 4, 4), ((3,),), (5,), 3), 1, torch.device("cpu"))
PLAN = Schedule(2, 4)


@dataclass(frozen=True, kw_only=True)
class Sleepy(FedAvg):
    def local_update(self, tree: Tree, *rest: Any) -> Any:
        time.sleep(0.05)
        return super().local_update(tree, *rest)


@dataclass(frozen=True, kw_only=True)
class Crowded(FedAvg):
    """Lock step is the slower way: a step costs a wait for each of its clients."""

    def local_update(self, tree: Tree, *rest: Any) -> Any:
        if torch._C._functorch.maybe_current_level():
            time.sleep(0.3)
        return super().local_update(tree, *rest)


@pytest.fixture
def measuring(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, still_clock: None) -> Path:
    monkeypatch.delenv("FEDBENCH_PROBE")
    monkeypatch.setattr("fedbench.executors.factory.HEAVY", 10)  # a sleep is no heavy step
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "fedbench" / "answers"


def answer(question: str) -> str | None:
    return cached_answers.stored(question, {"loop", "stacked"}.__contains__)


def kept(question: str, found: str) -> str:
    return cached_answers.store(question, found, {"loop", "stacked"}.__contains__)


def chosen(protocol: FedAvg, together: float = 8.0) -> str:
    return choose(Stacked(protocol, SHARED, PLAN), together)


def test_what_is_faster_is_chosen(measuring: Path) -> None:
    assert chosen(Sleepy()) == "stacked"
    assert chosen(Crowded(), 2.0) == "loop"
    entries = [json.loads(path.read_text()) for path in measuring.iterdir()]
    assert sorted(entry["answer"] for entry in entries) == ["loop", "stacked"]
    assert isinstance(executor("auto", Sleepy(), SHARED, PLAN, together=8), Stacked)
    assert isinstance(executor("auto", Crowded(), SHARED, PLAN, together=2), Loop)


def test_heavy_steps_are_the_loop_s_unmeasured(
    measuring: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "fedbench.executors.factory.HEAVY", 0.02
    )  # of a step; `Sleepy` waits longer
    assert chosen(Sleepy()) == "loop"


def test_the_answer_is_kept_and_the_first_one_holds(measuring: Path) -> None:
    question = asked(Stacked(Sleepy(), SHARED, PLAN), 8, "loop", "stacked")
    assert answer(question) is None
    assert kept(question, "loop") == "loop"
    assert kept(question, "stacked") == "loop"
    assert chosen(Sleepy()) == "loop"  # no measurement would say so
    assert [path.suffix for path in measuring.iterdir()] == [".json"]  # nothing else is left


@pytest.mark.parametrize("text", ["", "{", '{"question": "another", "answer": "stacked"}', "[]"])
def test_a_file_that_says_nothing_is_no_answer(measuring: Path, text: str) -> None:
    question = asked(Stacked(Crowded(), SHARED, PLAN), 2, "loop", "stacked")
    kept(question, "stacked")
    (path,) = measuring.iterdir()
    path.write_text(text)
    assert answer(question) is None
    assert chosen(Crowded(), 2.0) == "loop"


def test_a_folder_that_cannot_be_written_is_no_hindrance(
    measuring: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert chosen(Sleepy()) == "stacked"


def test_other_questions_have_other_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    def question(
        batch: int = 4, clients: int = 8, hidden: Sequence[int] = (5,), half: bool = False
    ) -> str:
        shared = Shared(ConvNet((1, 4, 4), ((3,),), tuple(hidden), 3), 1, torch.device("cpu"))
        precision: Precision = "bf16" if half else "fp32"
        engine = Stacked(FedAvg(), shared, Schedule(1, batch), precision=precision)
        return asked(engine, clients)

    asks = {question(), question(5), question(4, 2), question(hidden=(6,)), question(half=True)}
    asks.add(asked(Stacked(FedAvg(), SHARED, PLAN), 8, "loop", "stacked"))
    assert len(asks) == 6
    assert question() == asked(Stacked(FedAvg(lr=0.3), SHARED, Schedule(9, 4)), 8)


def test_who_trains_alone_or_switched_measuring_off_is_not_measured(
    measuring: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert chosen(Sleepy(), 1.9) == "loop"
    assert not measuring.exists()
    monkeypatch.setenv("FEDBENCH_PROBE", "off")
    assert chosen(Sleepy()) == "loop"
    assert not measuring.exists()


def test_answers_lie_in_the_users_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/home/someone")
    assert folder() == Path("/home/someone/.cache/fedbench/answers")


def test_a_crowd_is_counted_by_steps() -> None:
    """10 clients, 9 with two steps an epoch and one with three; 4 are drawn, with replacement.

    Launches on average: 1 - 0.1^4 of the nine, 1 - 0.9^4 of the one: 0.9999 + 0.3439.
    """
    assert crowd([5] * 9 + [9], 4, Schedule(1, 4)) == pytest.approx(4 / 1.3438)


@pytest.mark.slow
def test_a_command_measures_once_and_says_what_it_used(tmp_path: Path) -> None:
    import os

    home = {key: value for key, value in os.environ.items() if key != "FEDBENCH_PROBE"}
    home["XDG_CACHE_HOME"] = str(tmp_path)
    command = [sys.executable, "-m", "fedbench", "attack", "-a", "none", "--seeds", "0"]
    command += ["--model", "micro", "--partition", "iid", "--clients", "16", "--per-round", "8"]
    command += ["--rounds", "1", "--workers", "1", "--malicious", "0"]
    for turn in ("a", "b"):
        out = ["--out", str(tmp_path / turn)]
        subprocess.run([*command, *out], env=home, check=True, capture_output=True, timeout=300)
    (path,) = (tmp_path / "fedbench" / "answers").iterdir()
    winner = json.loads(path.read_text())["answer"]
    for turn in ("a", "b"):
        (record,) = (tmp_path / turn).glob("*.json")
        assert json.loads(record.read_text())["environment"]["executor"] == winner
