"""Submit records to a board: they get a place on it, or all the rules that they break."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fedbench.core.errors import ConfigError
from fedbench.experiment.record import Record
from fedbench.leaderboard import board as boards
from fedbench.leaderboard.build import Case, alphabet, build, meaning
from fedbench.leaderboard.entry import Entry, Statement
from fedbench.leaderboard.rules import Division, Rules, newest
from fedbench.leaderboard.verdict import RuleFinding, errors, judge
from fedbench.results.gather import ARCHIVE


@dataclass(frozen=True)
class Submission:
    """Outcome of a submission.

    Args:
        board: Folder of the board.
        records: Records of the entry.
        findings: Broken rules and doubts.
        entry: The entry; None if a rule is broken.
        older: Entries of the same system, which it replaces.
    """

    board: Path
    records: Sequence[Record]
    findings: list[RuleFinding]
    entry: Entry | None
    older: list[Path]

    def write(self) -> Path:
        """Write the entry onto the board, and remove the entries that it replaces."""
        assert self.entry is not None
        path = boards.write(self.board, self.entry, self.records)
        for orphan in _orphans(path, {record.digest for record in self.records}):
            orphan.unlink()
        for old in self.older:
            if old != path:
                boards.archive(old).unlink(missing_ok=True)
                old.unlink()
        return path


def submit(
    records: Sequence[Record],
    statement: Mapping[str, Any],
    board: Path,
    division: Division,
    track: str | None = None,
    replace: bool = False,
) -> Submission:
    """Judge records by the newest rules of a board; nothing is written.

    Args:
        records: Of one system.
        statement: Fields of `Statement`.
        board: The folder.
        division: ``closed`` or ``open``.
        track: Name of the track; None for the one that the records are of.
        replace: Whether to take the place of an entry of the same system.

    Raises:
        ConfigError: no board, or the records' protocol is not installed.
    """
    rules = newest(board)
    sends = alphabet(records[0].scenario.protocol)
    case = Case(records, rules, division, track or infer(records, rules, division), sends)
    findings = [*_stated(statement), *judge(case)]
    if errors(findings):
        return Submission(board, records, findings, None, [])
    entry = build(case, Statement(**statement))
    older = [path for path, other in _readable(board) if other.system() == entry.system()]
    if older and not replace:
        where = ", ".join(str(path) for path in older)
        text = f"{where} is the same system, played by the same code; --replace takes its place"
        findings.append(RuleFinding("duplicate", "error", text))
    return Submission(board, records, findings, None if errors(findings) else entry, older)


def _readable(board: Path) -> Iterator[tuple[Path, Entry]]:
    """Yield the entries of a board; broken ones, which `check` names, are skipped."""
    for path in filter(boards.is_entry, boards.files(board)):
        with suppress(ConfigError):
            yield path, boards.read(path)


def _orphans(beside: Path, digests: set[str]) -> Iterator[Path]:
    """Yield archives of just these records without an entry, left by a killed submission."""
    for packed in sorted(beside.parent.glob(f"*{ARCHIVE}")):
        owner = boards.owner(packed)
        if owner is None or owner.exists():
            continue
        with suppress(ConfigError):
            if {record.digest for record in boards.records(owner)} == digests:
                yield packed


def _stated(fields: Mapping[str, Any]) -> Iterator[RuleFinding]:
    """Yield the fields of a statement that are not allowed."""
    try:
        Statement(**fields)
    except ValidationError as error:
        for wrong in error.errors():
            name = ".".join(map(str, wrong["loc"]))
            yield RuleFinding(name, "error", f"{wrong['msg'].lower()}, got {wrong['input']!r}")


def infer(records: Sequence[Record], rules: Rules, division: Division) -> str:
    """Return the track of the records' data set; of several the one whose rules they miss least."""
    dataset = records[0].scenario.dataset
    full = meaning("dataset", dataset)
    fitting = [
        track.name
        for track in rules.track
        if meaning("dataset", rules.scenario(track).dataset) == full
    ]
    if division == "open" or not fitting:
        return dataset.partition(":")[0]
    missed = {name: judge(Case(records, rules, division, name, "")) for name in fitting}
    return min(fitting, key=lambda name: len(errors(missed[name])))
