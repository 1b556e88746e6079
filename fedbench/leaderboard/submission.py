"""From records to a place on a board, or to all the rules that they break."""

from __future__ import annotations

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
from fedbench.leaderboard.entry import Entry, Said
from fedbench.leaderboard.judge import Finding, errors, judge
from fedbench.leaderboard.rules import Division, Rules, newest
from fedbench.results.gather import ARCHIVE


@dataclass(frozen=True)
class Submission:
    """What became of it.

    Args:
        board: Where to.
        records: It is made of.
        findings: Broken rules and doubts.
        entry: None if a rule is broken.
        older: Entries of the same system, which it replaces.
    """

    board: Path
    records: Sequence[Record]
    findings: list[Finding]
    entry: Entry | None
    older: list[Path]

    def write(self) -> Path:
        """Onto the board, and off it what it replaces."""
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
    said: Mapping[str, Any],
    board: Path,
    division: Division,
    track: str | None = None,
    replace: bool = False,
) -> Submission:
    """Judge records by the newest rules of a board; nothing is written.

    Args:
        records: Of one system.
        said: By their authors: the fields of `Said`.
        board: The folder.
        division: ``closed`` or ``open``.
        track: None: the one that the records are of.
        replace: Take the place of an entry of the same system.

    Raises:
        ConfigError: no board, or the records' protocol is not installed.
    """
    rules, sends = newest(board), alphabet(records[0].scenario.protocol)
    case = Case(records, rules, division, track or infer(records, rules, division), sends)
    findings = [*_said(said), *judge(case)]
    if errors(findings):
        return Submission(board, records, findings, None, [])
    entry = build(case, Said(**said))
    older = [path for path, one in _readable(board) if one.system() == entry.system()]
    if older and not replace:
        where = ", ".join(str(path) for path in older)
        text = f"{where} is the same system, played by the same code; --replace takes its place"
        findings.append(Finding("duplicate", "error", text))
    return Submission(board, records, findings, None if errors(findings) else entry, older)


def _readable(board: Path) -> Iterator[tuple[Path, Entry]]:
    """The entries of a board; one that is broken is what `check` names, and stops nobody."""
    for path in filter(boards.is_entry, boards.files(board)):
        with suppress(ConfigError):
            yield path, boards.read(path)


def _orphans(beside: Path, digests: set[str]) -> Iterator[Path]:
    """Archives of just these records without an entry: a submission was killed there."""
    for packed in sorted(beside.parent.glob(f"*{ARCHIVE}")):
        owner = boards.owner(packed)
        if owner is None or owner.exists():
            continue
        with suppress(ConfigError):
            if {record.digest for record in boards.records(owner)} == digests:
                yield packed


def _said(fields: Mapping[str, Any]) -> Iterator[Finding]:
    """What authors may not say."""
    try:
        Said(**fields)
    except ValidationError as error:
        for one in error.errors():
            name = ".".join(map(str, one["loc"]))
            yield Finding(name, "error", f"{one['msg'].lower()}, got {one['input']!r}")


def infer(records: Sequence[Record], rules: Rules, division: Division) -> str:
    """The track of the records' data set; of several the one of which they miss least."""
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
