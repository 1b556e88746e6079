"""Held-out attacks: the commitment, what it lets in later, and the gap that they measure."""

import hashlib
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from conftest import Command
from test_leaderboard import RULES_1, RULES_OF, SAID, case, changed, kept, of, played, runs

from fedbench.core import registry
from fedbench.core.errors import ConfigError, UnknownPluginError
from fedbench.experiment.record import Record
from fedbench.leaderboard import board as boards
from fedbench.leaderboard.build import build
from fedbench.leaderboard.check import check
from fedbench.leaderboard.held_out import (
    FOLDER,
    HeldOutAttack,
    commit,
    gaps,
    installed,
    opened,
    results,
)
from fedbench.leaderboard.reveal import Target, keep, targets
from fedbench.leaderboard.rules import Rules, versions
from fedbench.leaderboard.site.words import committed

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "held_out_attack.py"
SOURCE = EXAMPLE.read_bytes()
ATTACK = HeldOutAttack(SOURCE, 1)
OTHER = HeldOutAttack(SOURCE.replace(b"-3 *", b"-4 *"), 1)


def committing(board: Path, *digests: str, versions: int = 2) -> Path:
    """Write so many versions of the rules, of which the first commits to these digests."""
    (board / "rules").mkdir(parents=True, exist_ok=True)
    for number in range(1, versions + 1):
        held_out = {"digests": list(digests) if number == 1 else []}
        text = tomli_w.dumps(RULES_1 | {"version": number, "held_out": held_out})
        (board / "rules" / f"{number}.toml").write_text(text)
    return board


@pytest.fixture
def board(tmp_path: Path) -> Path:
    """A board with an entry of version 1, which committed to the example; version 2 is there."""
    board = committing(tmp_path / "board", ATTACK.digest, versions=1)
    kept(board)
    return committing(board, ATTACK.digest)


def under(attack: HeldOutAttack, accuracies: tuple[float, ...], **fields: Any) -> list[Record]:
    """Records of an attack, one a seed."""
    records = [played("sign-flip", s, a, **fields) for s, a in enumerate(accuracies)]
    return [of(record, attack=attack.name) for record in records]


def met(board: Path, records: list[Record], attack: HeldOutAttack = ATTACK) -> Path:
    """Write these records beside the entry of a board, and the attack's source; return its path."""
    (path,) = filter(boards.is_entry, boards.files(board))
    with installed([attack]):
        cells, _ = targets(board, [attack])
    for target in cells:
        keep(target, records)
    return path


def texts(board: Path, severity: str = "error") -> list[str]:
    """Texts of the rule about held-out attacks; no other may be broken."""
    findings = [f for file in check(board, own_rules=True) for f in file.findings]
    assert {f.rule for f in findings} <= {"held-out", "version"}
    return [f.text for f in findings if (f.rule, f.severity) == ("held-out", severity)]


# The commitment


def test_a_commitment_is_the_digest_of_the_file_with_a_salt_and_no_two_are_alike(
    tmp_path: Path,
) -> None:
    file = tmp_path / "mine.py"
    salt, _, source = SOURCE.partition(b"\n")
    file.write_bytes(source)
    digests = [commit(file, tmp_path / name) for name in ("a.py", "b.py")]
    assert len(set(digests)) == 2, "whoever guesses the file cannot check the guess"
    first, _, rest = (tmp_path / "a.py").read_bytes().partition(b"\n")
    assert rest == source
    assert len(bytes.fromhex(first.decode().removeprefix("# salt: "))) == 32
    assert digests[0] == hashlib.sha256((tmp_path / "a.py").read_bytes()).hexdigest()
    with pytest.raises(ConfigError, match=r"--out must be a new file"):
        commit(file, tmp_path / "a.py")
    assert salt.startswith(b"# salt: ")


def test_what_could_not_be_revealed_is_not_committed_to(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    for text in (b"", SOURCE.replace(b"class HeldOut", b"class Mine"), b"from .crafted import a\n"):
        file.write_bytes(text)
        with pytest.raises(ConfigError, match="must have a class HeldOut"):
            commit(file, tmp_path / "out.py")
    assert not (tmp_path / "out.py").exists()


def test_a_file_opens_a_commitment_byte_for_byte_and_only_when_it_is_due(tmp_path: Path) -> None:
    file = tmp_path / "revealed.py"
    file.write_bytes(SOURCE)
    rules = versions(committing(tmp_path / "board", ATTACK.digest))
    assert opened(file, rules) == ATTACK
    due = r"while version 1 takes entries; reveal it when rules/2\.toml is there"
    with pytest.raises(ConfigError, match=f"must stay secret {due}"):
        opened(file, {1: rules[1]})
    file.write_bytes(SOURCE + b"\n")
    with pytest.raises(ConfigError, match="byte for byte, got SHA-256"):
        opened(file, rules)


def test_an_attack_is_a_plug_in_for_as_long_as_it_is_revealed(tmp_path: Path) -> None:
    before = [*sys.path], {*sys.modules}
    with installed([ATTACK, OTHER]):
        plugin = registry.load("attack", ATTACK.name)
        assert type(plugin).__name__ == "HeldOut"
        assert type(plugin) is not type(registry.load("attack", OTHER.name))
        assert registry.is_foreign("attack", ATTACK.name)
    assert ([*sys.path], {name for name in sys.modules if "held_out_" in name}) == (
        before[0],
        set(),
    )
    with pytest.raises(UnknownPluginError):
        registry.load("attack", ATTACK.name)


def test_rules_that_commit_to_nothing_say_so() -> None:
    assert committed(RULES_OF).startswith("Version 1 commits to none: how far")
    some = {"held_out": {"digests": [ATTACK.digest, OTHER.digest]}}
    text = committed(Rules.model_validate(RULES_1 | some))
    assert text.startswith("Version 1 commits to 2 attacks by SHA-256; they are published with ver")


def test_the_example_in_the_readme_is_the_file_and_no_version_commits_to_it() -> None:
    text = (ROOT / "leaderboards" / "README.md").read_text()
    assert f'digests = ["{ATTACK.digest}"]' in text
    for rules in versions(ROOT / "leaderboards").values():
        assert ATTACK.digest not in rules.held_out.digests


# The gap


def test_the_gap_is_the_worst_case_minus_the_held_out_accuracy_over_paired_seeds() -> None:
    # Worst case 0.5, 0.6, 0.7; held out 0.3, 0.5, 0.4: 0.2, 0.1, 0.3 lower. Mean 0.2; of 27
    # resamples one is all 0.1 and one all 0.3, which are the ends.
    entry = build(case(runs()), SAID)
    records = under(ATTACK, (0.3, 0.5, 0.4)) + under(OTHER, (0.9, 0.9, 0.9))
    worst, other = results(entry, records[::-1], RULES_OF)
    assert (worst.attack, other.attack) == (ATTACK.name, OTHER.name)
    assert worst.gap.mean == pytest.approx(0.2)
    assert [worst.gap.low, worst.gap.high] == pytest.approx([0.1, 0.3])
    assert worst.accuracy.mean == pytest.approx(0.4)
    # 0.5 - 0.9, 0.6 - 0.9, 0.7 - 0.9: the ensemble was harder
    assert other.gap.mean == pytest.approx(-0.3)
    # On the ranking seeds another attack may be the worst, which is milder on these.
    milder = entry.cells[0].model_copy(update={"attack": "ipm"})
    score = entry.score.model_copy(update={"attack": milder.attack})
    second = entry.model_copy(update={"cells": [*entry.cells, milder], "score": score})
    assert results(second, records, RULES_OF) == [worst, other]
    with pytest.raises(
        ConfigError, match=r"\[0, 1, 2\], got \[0, 1\]; play them anew with fedbench"
    ):
        results(entry, under(ATTACK, (0.3, 0.5)), RULES_OF)


@pytest.mark.slow
def test_rank_and_page_show_the_gap_where_there_is_one(
    board: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert "gap" not in command("leaderboard", "rank", board)[1]
    command("leaderboard", "render", board)
    assert "Gap" not in (board / "index.html").read_text()
    met(board, under(ATTACK, (0.3, 0.5, 0.4)))
    shown = command("leaderboard", "rank", board)[1]
    assert "+20.0 [+10.0, +30.0]" in shown
    assert "the ensemble flatters" in shown
    (row,) = json.loads(command("leaderboard", "rank", board, "--format", "json")[1])
    assert (row["held_out"], row["gap"]) == (ATTACK.name, pytest.approx(0.2))
    assert [row["gap_low"], row["gap_high"]] == pytest.approx([0.1, 0.3])
    command("leaderboard", "render", board)
    index = (board / "index.html").read_text()
    assert '<span>+20.0 <span class="interval">[+10.0, +30.0]</span>' in index
    assert "Version 2 commits to none" in index
    (page,) = (board / "entries").glob("*.html")
    assert ATTACK.name in page.read_text()
    assert "held-out.jsonl.gz" in page.read_text()


# What is on a board


def test_an_attack_is_held_out_for_entries_of_its_version_and_before(board: Path) -> None:
    with installed([ATTACK]):
        (target,), left_out = targets(board, [ATTACK])
        assert (target.cell.attack, left_out) == (ATTACK.name, [])
        assert target.cell.scenario.data_seed is None
        kept(board, runs(defense="median"))  # scored under version 2
        again, (reason,) = targets(board, [ATTACK])
    assert [each.path for each in again] == [target.path]
    assert f"version 2 came after {ATTACK.name}" in reason
    picky = HeldOutAttack(SOURCE.replace(b"    def craft", b"    accepts = ()\n\n    def craft"), 1)
    with installed([picky]):
        none, reasons = targets(board, [picky])
    assert (none, len(reasons)) == ([], 2)


def test_records_of_two_attacks_lie_side_by_side_and_the_later_play_counts(tmp_path: Path) -> None:
    board = committing(tmp_path / "board", ATTACK.digest, OTHER.digest, versions=1)
    kept(board)
    assert texts(board, "warning") == [], "version 1 is still used"
    committing(board, ATTACK.digest, OTHER.digest)
    assert len(texts(board, "warning")) == 2, "both are due"
    met(board, under(OTHER, (0.2, 0.2, 0.2)), OTHER)
    met(board, under(ATTACK, (0.3, 0.5, 0.4)))
    path = met(board, under(ATTACK, (0.6, 0.6, 0.6)))
    assert texts(board) == texts(board, "warning") == []
    entry = boards.read(path)
    listed = {r.attack: r.accuracy.mean for r in gaps(board, [entry])[entry.id]}
    assert listed == pytest.approx({OTHER.name: 0.2, ATTACK.name: 0.6})
    assert entry.id == entry.content_id()
    before = boards.held_out(path).read_bytes()
    met(board, under(ATTACK, (0.6, 0.6, 0.6))[::-1])
    assert boards.held_out(path).read_bytes() == before


def test_an_entry_that_is_replaced_takes_its_records_of_held_out_attacks_with_it(
    board: Path,
) -> None:
    path = met(board, under(ATTACK, (0.3, 0.5, 0.4)))
    kept(board, name="Another name", replace=True)
    assert not path.exists()
    assert not boards.held_out(path).exists()
    assert texts(board) == []


def test_what_is_due_and_what_was_not_played_is_a_warning(board: Path) -> None:
    (text,) = texts(board, "warning")
    assert text == f"the attack {ATTACK.digest[:12]}... is due since version 2: reveal it"
    path = met(board, under(ATTACK, (0.3, 0.5, 0.4)))
    boards.held_out(path).unlink()
    (text,) = texts(board, "warning")
    assert text.startswith(f"no record of {ATTACK.name}: it does not fit, or")
    (board / "rules" / "2.toml").unlink()
    (text,) = texts(board)
    assert text == (
        f"{ATTACK.file_name} must stay secret while version 1 is used; remove it until "
        "rules/2.toml is there"
    )


def rewritten(change: Callable[[list[Record]], list[Record]]) -> Callable[[Path], None]:
    """Put other records in the place of those beside an entry."""

    def tamper(path: Path) -> None:
        records = change(boards.held_out_records(path))
        entry = boards.read(path)
        keep(Target(path, entry, ATTACK, None), records)  # type: ignore[arg-type]

    return tamper


def source(path: Path) -> Path:
    """The revealed file on the board of an entry."""
    return boards.find(path) / FOLDER / ATTACK.file_name


def never(records: list[Record]) -> list[Record]:
    """The records, as if nobody had been malicious."""
    nobody = {f"rounds__{i}__malicious": 0 for i in range(2)}
    idle = {f"rounds__{i}__benign_uplink_bits": 500 for i in range(2)}
    return [changed(record, **nobody, **idle) for record in records]


def parametrised(records: list[Record]) -> list[Record]:
    return [*records[1:], of(records[0], attack=f"{ATTACK.name}:x=1")]


# By what was done: a part of the text.
TAMPERED: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "a seed that is missing": ("must have the seeds", rewritten(lambda r: r[:2])),
    "an edited result": (
        "by its rounds",
        rewritten(lambda r: [changed(r[0], result__accuracy=0.9), *r[1:]]),
    ),
    "another system": (
        "must be of one defense",
        rewritten(lambda _: under(ATTACK, (0.3, 0.5, 0.4), defense="median")),
    ),
    "other data": (
        "must be of the data",
        rewritten(lambda r: [changed(x, data_digest="e" * 64) for x in r]),
    ),
    "an attack by nobody": ("must have malicious clients", rewritten(never)),
    "an attack that nobody committed to": (
        f"{OTHER.name} must be revealed, and committed to by version 1 or later",
        rewritten(lambda r: [*r, *under(OTHER, (0.8, 0.8, 0.8))]),
    ),
    "other parameters in one run": ("must be played with one set", rewritten(parametrised)),
    "records that were cut off": (
        "cannot be unpacked",
        lambda p: boards.held_out(p).write_bytes(boards.held_out(p).read_bytes()[:90]),
    ),
    "records behind a link": ("must be a file", lambda p: linked(boards.held_out(p))),
    "an edited source": (
        "must have a digest under [held_out]",
        lambda p: source(p).write_bytes(b"1"),
    ),
    "a source under another name": (
        "must be named",
        lambda p: source(p).rename(source(p).with_name("best.py")),
    ),
    "a source behind a link": ("got a link or a folder; copy", lambda p: linked(source(p))),
    "no source": ("must be revealed", lambda p: source(p).unlink()),
}


def linked(path: Path) -> None:
    outside = path.parents[3] / path.name
    path.rename(outside)
    path.symlink_to(outside)


@pytest.mark.edges(
    "a seed that is missing",
    "an edited result",
    "an attack by nobody",
    "records behind a link",
    "an edited source",
    "no source",
)
@pytest.mark.parametrize("what", TAMPERED)
def test_records_and_sources_that_were_tampered_with_are_found_out(what: str, board: Path) -> None:
    text, tamper = TAMPERED[what]
    path = met(board, under(ATTACK, (0.3, 0.5, 0.4)))
    assert texts(board) == []
    tamper(path)
    findings = [f for file in check(board, own_rules=True) for f in file.findings]
    wrong = {(f.rule, f.severity) for f in findings} - {("version", "warning")}
    assert ("held-out", "error") in wrong
    assert {rule for rule, _ in wrong} <= {"held-out", "path"}
    assert text in " ".join(f.text for f in findings)


# The commands


def test_commit_prints_the_digest_and_reveal_refuses_what_is_not_due(
    tmp_path: Path, command: Command
) -> None:
    board = committing(tmp_path / "board", ATTACK.digest, versions=1)
    leaderboard = partial(command, "leaderboard")
    file = tmp_path / "mine.py"
    file.write_bytes(SOURCE)
    code, out, err = leaderboard("commit", file)
    salted = tmp_path / "mine.salted.py"
    assert (code, out.strip()) == (0, hashlib.sha256(salted.read_bytes()).hexdigest())
    assert f"keep {salted} secret" in err
    code, out, err = leaderboard("reveal", file, "--board", board)
    assert (code, out) == (2, "")
    assert "must stay secret" in err
