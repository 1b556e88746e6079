"""The road of an entry, really played: plan, sweep, submit, check, reproduce, reveal."""

import hashlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import tomli_w
from test_leaderboard import RULES_1, TRACK_1

from fedbench.experiment.record import Record, read
from fedbench.leaderboard import board as boards
from fedbench.leaderboard.check import check
from fedbench.leaderboard.entry import Statement
from fedbench.leaderboard.entry_rules import errors
from fedbench.leaderboard.submission import submit
from fedbench.results.gather import gather

pytestmark = pytest.mark.slow
DIGITS = "8cf43c50f882cb62734c9275f9e7b436368c38a17cd1c2ca8f1958ad67de3885"
SET = {"dataset": "digits", "model": "micro", "clients": 12, "per_round": 4, "malicious": 0.25}
SET |= {"rounds": 2, "epochs": 1, "eval_every": 1}
TRACK = TRACK_1 | {"data": DIGITS, "clean": {"low": 0.0, "high": 1.0}, "scenario": SET}
RULES = RULES_1 | {"ensemble": {"SignBits": ["none", "sign-flip"]}, "track": [TRACK]}
RULES |= {"ranking_seeds": 3, "worst": 1}
RULES |= {"tolerance": RULES_1["tolerance"] | {"level": 0.3}}  # three seeds prove no less than 1/4
SAID = Statement(name="Tiny", authors="A. Uthor", tried=1).model_dump()


def fedbench(*words: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "fedbench", *words],
        capture_output=True,
        text=True,
        env=os.environ | {"COLUMNS": "120"},
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a board, its plan and the store that a sweep made of it."""
    folder = tmp_path_factory.mktemp("road")
    board = folder / "board"
    (board / "rules").mkdir(parents=True)
    (board / "rules" / "1.toml").write_text(tomli_w.dumps(RULES))
    system = ("--track", "tiny", "-p", "signsgd")
    planned = fedbench("leaderboard", "plan", *system, "--board", str(board))
    assert planned.returncode == 0, planned.stderr
    (folder / "tiny.toml").write_text(planned.stdout)
    swept = fedbench("sweep", str(folder / "tiny.toml"), "--out", str(folder / "store"))
    assert swept.returncode == 0, swept.stderr
    return folder


def fresh(played: Path, board: Path, records: list[Record] | None = None) -> Path:
    """An entry of these records, or of the sweep's, on a board of its own."""
    if not board.exists() or not (board / "rules").exists():
        shutil.copytree(played / "board" / "rules", board / "rules")
    done = submit(records or gather([played / "store"]), SAID, board, "closed")
    assert done.entry is not None, done.findings
    return done.write()


def good(target: Path) -> bool:
    return not any(errors(one.findings) for one in check(target, own_rules=True))


def test_a_plan_that_was_swept_is_an_entry_that_is_reproduced(played: Path, tmp_path: Path) -> None:
    board, store = str(played / "board"), str(played / "store")
    said = ("--name", "Tiny", "--authors", "A. Uthor", "--tried", "1", "--board", board)
    done = fedbench("leaderboard", "submit", store, *said)
    assert done.returncode == 0, done.stderr
    (path,) = (played / "board" / "closed" / "tiny").glob("*.json")
    assert good(played / "board")

    before = json.loads(path.read_text())
    out = ("--out", str(tmp_path / "again"))
    again = fedbench("leaderboard", "reproduce", str(path), "--by", "CI", *out)
    assert again.returncode == 0, again.stderr + again.stdout
    assert f"{path} is replayed: 6 runs by CI" in again.stdout
    assert len(list((tmp_path / "again").glob("*.json"))) == 6
    after = json.loads(path.read_text())
    (replay,) = after.pop("replays")
    assert (after.pop("status"), before.pop("status")) == ("replayed", "submitted")
    del before["replays"]
    assert after == before
    digests = [record.digest for record in boards.replay_records(path, 1)]
    assert replay["digests"] == digests
    assert set(digests) == {record.digest for record in boards.records(path)}  # played alike
    assert good(path)


def test_the_second_stage_is_planned_frozen_drawn_swept_and_completed(
    played: Path, tmp_path: Path
) -> None:
    path = fresh(played, tmp_path)
    board = ("--board", str(tmp_path))
    done = fedbench("leaderboard", "freeze", "2026", "--source", "a coin", *board)
    assert "1 entry frozen" in done.stdout
    assert "has no value yet" in fedbench("leaderboard", "plan-ranking", str(path)).stderr
    done = fedbench("leaderboard", "draw", "2026", "--value", "ab" * 32, *board)
    assert done.returncode == 0, done.stderr
    planned = fedbench("leaderboard", "plan-ranking", str(path))
    assert planned.returncode == 0, planned.stderr
    (tmp_path / "second.toml").write_text(planned.stdout)
    swept = fedbench("sweep", str(tmp_path / "second.toml"), "--out", str(tmp_path / "second"))
    assert swept.returncode == 0, swept.stderr
    done = fedbench("leaderboard", "complete", str(path), str(tmp_path / "second"))
    assert done.returncode == 0, done.stderr
    entry = boards.read(path)
    assert entry.ranking is not None
    assert len(entry.ranking.seeds) == 3
    assert good(path)
    again = fedbench("leaderboard", "reproduce", str(path), "--by", "CI")
    assert again.returncode == 0, again.stderr
    assert boards.read(path).status == "replayed"
    assert good(path)


def test_the_command_of_an_entry_plays_its_records_again(played: Path, tmp_path: Path) -> None:
    path = fresh(played, tmp_path)
    words = shlex.split(json.loads(path.read_text())["command"])
    assert words[0] == "fedbench"
    done = fedbench(*words[1:], "--out", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    made = {read(p).digest for p in (tmp_path / "out").glob("*.json")}
    assert made == {record.digest for record in boards.records(path)}


def test_an_entry_whose_records_were_made_up_is_contested(played: Path, tmp_path: Path) -> None:
    records = []
    for record in gather([played / "store"]):
        content = record.model_dump()
        if content["scenario"]["attack"] != "none":
            better = content["result"]["accuracy"] + 0.05
            content["result"]["accuracy"] = content["rounds"][-1]["accuracy"] = better
        records.append(Record.model_validate(content).sealed())
    path = fresh(played, tmp_path, records)
    assert good(path)  # it looks right
    done = fedbench("leaderboard", "reproduce", str(path), "--by", "CI")
    assert done.returncode == 1
    assert "too far" in done.stdout
    assert "is contested" in done.stdout
    assert good(path)  # a contested entry keeps the rules
    entry = boards.read(path)
    assert entry.status == "contested"
    assert entry.id == entry.content_id()
    assert len(boards.replay_records(path, 1)) == 6


def test_what_is_refused_or_stopped_leaves_the_entry_as_it_was(
    played: Path, tmp_path: Path
) -> None:
    path = fresh(played, tmp_path)
    before = path.read_bytes()
    by = ("--by", "CI")
    done = fedbench("leaderboard", "reproduce", str(path), *by, "--out", str(played / "store"))
    assert done.returncode == 2
    assert "--out must be a store without the records of the entry" in done.stderr
    assert path.read_bytes() == before
    words = ["leaderboard", "reproduce", str(path), *by, "--all", "--workers", "1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "fedbench", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("[1/"):
            break
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "the entry is as it was" in err
    assert path.read_bytes() == before


SOURCE = (Path(__file__).parents[1] / "examples" / "held_out_attack.py").read_bytes()
# The example, which notes in which program it runs.
NOTING = SOURCE.replace(
    b"        return view",
    b"        import __main__\n\n"
    b'        view.notes["program"] = str(__main__.__spec__.name)\n        return view',
)
RAISING = SOURCE.replace(b"        return view", b"        raise KeyError\n        return view")


def revealing(played: Path, folder: Path, source: bytes) -> tuple[Path, list[str]]:
    """An entry of a version that commits to this file, and the command that reveals it."""
    rules = folder / "board" / "rules"
    rules.mkdir(parents=True)
    held_out = {"digests": [hashlib.sha256(source).hexdigest()]}
    (rules / "1.toml").write_text(tomli_w.dumps(RULES | {"held_out": held_out}))
    path = fresh(played, folder / "board")
    (rules / "2.toml").write_text(tomli_w.dumps(RULES | {"version": 2}))
    (folder / "attack.py").write_bytes(source)
    words = ["leaderboard", "reveal", str(folder / "attack.py"), "--board", str(folder / "board")]
    return path, [*words, "--out", str(folder / "store"), "--workers", "1"]


def test_a_held_out_attack_is_played_in_its_own_process_and_leaves_the_entry_as_it_was(
    played: Path, tmp_path: Path
) -> None:
    path, words = revealing(played, tmp_path, NOTING)
    before = path.read_bytes()
    done = fedbench(*words)
    assert done.returncode == 0, done.stderr
    assert path.read_bytes() == before
    records = boards.held_out_records(path)
    assert [r.scenario.seed for r in records] == boards.read(path).seeds
    notes = {r.notes["program"] for record in records for r in record.rounds if r.notes}
    assert notes == {"fedbench.isolation.child"}
    findings = [f for one in check(path.parents[2], own_rules=True) for f in one.findings]
    assert {f.rule for f in findings if f.rule not in ("doubts", "harmless")} == {"version"}
    board = str(path.parents[2])
    (row,) = json.loads(fedbench("leaderboard", "rank", board, "--format", "json").stdout)
    assert row["held_out"].startswith("held-out-")
    worst = boards.read(path).score.worst.mean
    found = sum(record.result.accuracy for record in records) / len(records)
    assert row["gap"] == pytest.approx(worst - found)
    archive = boards.held_out(path).read_bytes()
    assert fedbench(*words).returncode == 0
    assert boards.held_out(path).read_bytes() == archive, "the records in --out are taken"


def test_a_held_out_attack_that_fails_is_said_and_nothing_is_written(
    played: Path, tmp_path: Path
) -> None:
    path, words = revealing(played, tmp_path, RAISING)
    done = fedbench(*words)
    assert done.returncode == 1
    assert "nothing is written for 1 of 1 pairs of entry and attack: 3 runs failed" in done.stderr
    assert not boards.held_out(path).exists()
    assert not (path.parents[2] / "held-out").exists()
