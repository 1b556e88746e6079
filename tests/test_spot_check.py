"""Canonical mode and spot checks, really played: in processes that began without torch."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import json
import os
import shutil
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
from conftest import Install
from test_leaderboard import changed, identified
from test_leaderboard import played as played_once
from test_red_team import a_board

from fedbench.core import canonical, seal
from fedbench.core.errors import ConfigError
from fedbench.experiment import commitments
from fedbench.experiment.record import Record, parse, read
from fedbench.experiment.state_bytes import decode, digest, encode
from fedbench.leaderboard.spot_check import (
    DrawnRound,
    Evidence,
    draw,
    evidence,
    require_states,
    spot_check,
)
from fedbench.results.gather import gather

PLAN = """
seeds = [0]
[scenario]
model = "micro"
clients = 8
per_round = 5
malicious = 0.25
rounds = 3
epochs = 1
eval_every = 1
[[grid]]
protocol = "topk"
defense = "median"
attack = ["none", "sign-flip"]
"""
# The command line, several times in one process: each start would import torch again.
SEVERAL = """
import contextlib, io, json, sys
from fedbench.cli import main
answers = []
for words in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(words)
        except SystemExit as end:
            code = end.code
    answers.append([code, out.getvalue(), err.getvalue()])
print(json.dumps(answers))
"""
PUBLIC = "0123456789abcdef"
ALL = ("--public-value", PUBLIC, "--rounds", "6")


def environment(**ambient: str) -> dict[str, str]:
    own = {name: text for name, text in os.environ.items() if name not in canonical.VARIABLES}
    return own | {"COLUMNS": "200", "NO_COLOR": "1"} | ambient


def commands(*lines: list[str], **ambient: str) -> list[tuple[int, str, str]]:
    """Run command lines in a new process; return the code, stdout and stderr of each."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SEVERAL, json.dumps(lines)],
        capture_output=True,
        text=True,
        env=environment(**ambient),
    )
    assert done.returncode == 0, done.stderr
    return [(code, out, err) for code, out, err in json.loads(done.stdout.splitlines()[-1])]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store of two canonical records and the states that they committed to."""
    folder = tmp_path_factory.mktemp("spots")
    (folder / "plan.toml").write_text(PLAN)
    options = ["--canonical", "--keep-states", str(folder / "states"), "--workers", "1"]
    line = ["sweep", str(folder / "plan.toml"), "--out", str(folder / "store"), *options]
    ((code, _, err),) = commands(line)
    assert code == 0, err
    return folder


def rewritten(record: Record, folder: Path, step: int, **changes: object) -> Record:
    """Return a record with one round edited and sealed again, as a forger would, in a store."""
    fields = json.loads(record.to_json())
    fields["rounds"][step] |= changes
    text = seal.laid_out(json.dumps(fields))
    forged = parse(text.replace(fields["digest"], seal.digest(text)).encode(), "forged")
    forged.write(folder)
    return forged


# Prints the digest of what torch, oneDNN and MKL compute: an exponential, a deviation, a product of
# matrices and a convolution, whose last digits tell their kernels apart.
KERNELS = """
import hashlib, torch
numbers = (torch.arange(64_000) * 7919 % 1009).float() / 1009
x = numbers.reshape(64, 1000)
images = numbers[:18_816].reshape(8, 3, 28, 28)
filters = numbers[:1200].reshape(16, 3, 5, 5)
results = [x.exp(), x.std(1), x @ x.T, torch.nn.functional.conv2d(images, filters)]
print(hashlib.sha256(b"".join(r.numpy().tobytes() for r in results)).hexdigest())
"""


def kernels(**ambient: str) -> str:
    """Return the digest of some results of torch in a process that began with these variables."""
    line = [sys.executable, "-W", "ignore", "-c", KERNELS]
    done = subprocess.run(line, env=environment(**ambient), check=True, capture_output=True)
    return done.stdout.decode()


@pytest.mark.slow
def test_canonical_records_are_equal_whatever_the_process_was_started_with(
    played: Path, tmp_path: Path
) -> None:
    for i, ambient in enumerate((
        {"ATEN_CPU_CAPABILITY": "avx2", "MKL_CBWR": "AVX2"},
        {"ONEDNN_MAX_CPU_ISA": "AVX", "OMP_NUM_THREADS": "2"},
    )):  # fmt: skip
        assert kernels(**ambient) != kernels(**canonical.VARIABLES)  # otherwise this shows nothing
        out = tmp_path / f"canonical-{i}"
        line = ["sweep", str(played / "plan.toml"), "--out", str(out), "--workers", "1"]
        ((code, _, err),) = commands([*line, "--canonical"], **ambient)
        assert code == 0, err
        assert all_measured(out) == all_measured(played / "store")
    assert all(record.environment.canonical for record in gather([played / "store"]))


def all_measured(store: Path) -> str:
    """Return the text of all records of a store up to their times."""
    texts = [path.read_text() for path in sorted(store.glob("*.json"))]
    assert len(texts) == 2
    return "".join(text[: text.index(' "timing":')] for text in texts)


@pytest.mark.slow
def test_rounds_that_were_played_agree_and_forged_ones_differ(played: Path, tmp_path: Path) -> None:
    records = sorted(gather([played / "store"]), key=lambda record: record.scenario.attack)
    attacked = records[1]
    stores = {name: tmp_path / name for name in ("accuracy", "commitment", "state")}
    for store in stores.values():
        shutil.copytree(played / "store", store)
    rewritten(attacked, stores["accuracy"], 1, accuracy=0.99)
    rewritten(attacked, stores["commitment"], 1, commitment="0" * 64)
    states = tmp_path / "states"
    shutil.copytree(played / "states", states)
    ours, theirs = (states / attacked.id / f"{step}.state" for step in (1, 2))
    shutil.copyfile(theirs, ours)
    spot = ["leaderboard", "spot-check"]
    kept = str(played / "states")
    answers = commands(
        [*spot, str(played / "store"), "--states", kept, *ALL],
        [*spot, str(stores["accuracy"]), "--states", kept, *ALL],
        [*spot, str(stores["commitment"]), "--states", kept, *ALL],
        [*spot, str(stores["state"]), "--states", str(states), *ALL],
        [*spot, str(stores["state"]), "--states", str(tmp_path / "none"), *ALL],
    )
    (code, out, err), accuracy, commitment, state, absent = answers
    assert (code, err) == (0, ""), out
    assert "6 rounds played again, all agree" in out
    assert accuracy[0] == 1
    assert "accuracy 0.99, here 0." in accuracy[1]
    assert "1 of 6 rounds differ" in accuracy[1]
    # Its own round has another one, and the state after it is not the one that it names.
    assert commitment[0] == 1
    assert "2 of 6 rounds differ" in commitment[1]
    assert "must be the state that round 1 committed to" in " ".join(commitment[1].split())
    assert state[0] == 1
    assert "must be the state that round 0 committed to" in " ".join(state[1].split())
    assert absent[0] == 2
    assert f"{attacked.id}/1.state" in absent[2]


NOTHING_OF_OURS = """
import pathlib
from dataclasses import dataclass

from fedbench.api import Attack

pathlib.Path(__file__).with_name("was_run").touch()


@dataclass(frozen=True)
class Theirs(Attack):
    def craft(self, view, memory):
        return view.own, memory
"""


@pytest.mark.slow
def test_what_cannot_be_played_here_is_refused_and_no_code_of_others_runs(
    played: Path, tmp_path: Path, install: Install
) -> None:
    attacked = next(r for r in gather([played / "store"]) if r.scenario.attack != "none")
    path = install(NOTHING_OF_OURS, {"theirs": "Theirs"})["PYTHONPATH"]
    foreign = attacked.scenario.model_copy(update={"attack": "theirs"})
    other_code = changed(attacked, environment__fedbench="0.0.1+0123456789ab")
    stores = {
        "foreign": identified(attacked.model_copy(update={"scenario": foreign})),
        "code": other_code,
        "honest": attacked,
    }
    for name, record in stores.items():
        record.write(tmp_path / name)
        for step in (1, 2):
            state = played / "states" / attacked.id / f"{step}.state"
            kept = tmp_path / "states" / record.id / state.name
            kept.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(state, kept)
    # A state that the record commits to, of a server whose weights are nothing.
    fields = decode(zlib.decompress(kept.read_bytes()[len(commitments.MAGIC) :]))
    fields["state"]["server"] = None
    hollow = tmp_path / "hollow" / attacked.id / "2.state"
    shutil.copytree(kept.parent, hollow.parent)
    packed = zlib.compress(encode(fields))
    hollow.write_bytes(commitments.MAGIC + packed)
    digests = {i: digest(m) for i, m in fields["state"]["memories"].items()}
    after = digest(fields["state"] | {"memories": digests})
    commitment = commitments.combined(1, fields["arrived"], after)
    rewritten(attacked, tmp_path / "unplayable", 1, commitment=commitment)
    states = ["--states", str(tmp_path / "states"), "--public-value", PUBLIC, "--rounds", "3"]
    spot = ["leaderboard", "spot-check"]
    answers = commands(
        *([*spot, str(tmp_path / name), *states] for name in stores),
        [*spot, str(tmp_path / "unplayable"), "--states", str(tmp_path / "hollow"), *states[2:]],
        PYTHONPATH=path,
    )
    theirs, code, honest, unplayable = answers
    assert theirs[0] == 2
    assert "plays plug-ins of fedbench only, got attack theirs" in theirs[2]
    assert not list((tmp_path / "site").rglob("was_run"))
    assert code[0] == 2
    assert f"record {other_code.id} must be of the code that is installed" in code[2]
    assert "got 0.0.1+0123456789ab; install that version" in code[2]
    assert honest[0] == 0, honest
    assert unplayable[0] == 1, unplayable
    assert "the state cannot be played" in " ".join(unplayable[1].split())


@pytest.mark.slow
def test_an_ordinary_record_is_no_canonical_one_and_binds_nobody(
    played: Path, tmp_path: Path
) -> None:
    store = str(tmp_path / "store")
    line = ["sweep", str(played / "plan.toml"), "--out", store, "--workers", "1"]
    usual, again, checked = commands(
        line,
        [*line, "--canonical"],
        ["leaderboard", "spot-check", store, "--states", store, *ALL],
    )
    assert usual[0] == 0, usual
    # This process has imported torch for the first line.
    for refused in (again, checked):
        assert refused[0] == 2
        assert "--canonical must be chosen before torch is imported" in refused[2]
    ((code, _, err),) = commands([*line, "--canonical"])
    assert code == 2
    assert "--out must be a store of canonical records" in err
    with pytest.raises(ConfigError, match="every round must have a commitment"):
        draw(evidence(Path(store)), PUBLIC, 5)


def some(records: int, rounds: int) -> Evidence:
    """Evidence whose rounds say that they committed to something."""
    path = next((Path(__file__).parent / "frozen" / "store").glob("*.json"))
    record = read(path)
    first = record.rounds[0]
    every = [dataclasses.replace(first, step=step, commitment="0" * 64) for step in range(rounds)]
    made = [record.model_copy(update={"rounds": every, "id": f"{i:016x}"}) for i in range(records)]
    return Evidence("0123456789ab", made)


GOLDEN = [(2, 2), (0, 2), (0, 4)]


def numbers(drawn: list[DrawnRound]) -> list[tuple[int, int]]:
    return [(int(each.record.id, 16), each.step) for each in drawn]


def test_rounds_are_drawn_by_the_public_value_and_the_id() -> None:
    of = some(3, 7)
    # int(SHA-256("0123456789abcdef 0123456789ab 0"), 16) % 21 and so on, by sha256sum and bc
    assert numbers(draw(of, PUBLIC, 3)) == GOLDEN
    assert numbers(draw(of, PUBLIC, 2)) == GOLDEN[:2]
    assert numbers(draw(of, PUBLIC, 1)) == GOLDEN[:1]
    assert numbers(draw(of, "f" * 16, 3)) != GOLDEN
    assert numbers(draw(Evidence("a" * 12, of.records), PUBLIC, 3)) != GOLDEN
    everything = numbers(draw(of, PUBLIC, 100))
    assert sorted(everything) == [(i, step) for i in range(3) for step in range(7)]


@pytest.mark.parametrize("public", ["", "12", "0123456789ABCDEF", "g" * 16, "0" * 257])
def test_a_public_value_is_a_long_number(public: str) -> None:
    with pytest.raises(ConfigError, match="--public-value must be"):
        draw(some(1, 2), public, 1)
    with pytest.raises(ConfigError, match="--rounds must be >= 1"):
        draw(some(1, 2), PUBLIC, 0)


def test_a_single_round_without_a_commitment_binds_nobody() -> None:
    first, second = some(2, 3).records
    bare = [first.rounds[0], dataclasses.replace(first.rounds[1], commitment=None), first.rounds[2]]
    lacks = Evidence("a" * 12, [first, second.model_copy(update={"rounds": bare})])
    with pytest.raises(ConfigError, match=f"got none in record {second.id}"):
        draw(lacks, PUBLIC, 1)


def test_a_process_that_is_not_canonical_compares_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="must be chosen before torch is imported"):
        spot_check([], tmp_path)


def test_all_states_that_are_missing_are_named(tmp_path: Path) -> None:
    drawn = draw(some(1, 3), PUBLIC, 3)
    name = f"{0:016x}"
    # The first of the three rounds needs no state.
    with pytest.raises(ConfigError, match=rf" have {name}/[12].state, {name}/[12].state, got none"):
        require_states(drawn, tmp_path)
    for each in drawn:
        if (path := each.state(tmp_path)) is not None:
            path.parent.mkdir(exist_ok=True)
            path.touch()
    require_states(drawn, tmp_path)


def test_no_order_of_files_or_lines_chooses_the_rounds(tmp_path: Path) -> None:
    store = tmp_path / "store"
    runs = [played_once(attack, seed) for attack in ("sign-flip", "none") for seed in (10, 9)]
    for record in runs:
        record.write(store)
    ordered = runs[::-1]  # by attack, then by the number of the seed
    mine = evidence(store)
    assert [record.digest for record in mine.records] == [record.digest for record in ordered]
    digests = "".join(record.digest for record in ordered)
    assert mine.id == hashlib.sha256(digests.encode()).hexdigest()[:12]
    a_board(tmp_path / "board")
    path = next((tmp_path / "board" / "closed" / "tiny").glob("*.json"))
    before = [record.digest for record in evidence(path).records]
    packed = path.with_name(path.name.removesuffix(".json") + ".jsonl.gz")
    lines = gzip.decompress(packed.read_bytes()).splitlines(keepends=True)
    packed.write_bytes(gzip.compress(b"".join(lines[::-1])))  # the id says nothing of their order
    assert [record.digest for record in evidence(path).records] == before
    attacks = [record.scenario.attack for record in evidence(path).records]
    assert attacks == sorted(attacks)


def test_an_entry_that_was_edited_is_not_checked(tmp_path: Path) -> None:
    a_board(tmp_path / "board")
    path = next((tmp_path / "board" / "closed" / "tiny").glob("*.json"))
    packed = path.with_name(path.name.removesuffix(".json") + ".jsonl.gz")
    assert evidence(path).id == json.loads(path.read_text())["id"]
    for file in (path, packed):
        shutil.copy(file, tmp_path / file.name)
    copied = tmp_path / path.name
    archive = tmp_path / packed.name
    lines = gzip.decompress(packed.read_bytes()).splitlines(keepends=True)
    refused = "must have the id of its content and the records"
    archive.write_bytes(gzip.compress(b"".join(lines[1:])))
    with pytest.raises(ConfigError, match=refused):
        evidence(copied)
    archive.write_bytes(packed.read_bytes())  # all is there, but another id draws other rounds
    content = json.loads(path.read_text())
    copied.write_text(json.dumps(content | {"id": "0" * 12}))
    with pytest.raises(ConfigError, match=refused):
        evidence(copied)
