"""Check the files of a board against its rules, without playing anything."""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedbench.core.errors import ConfigError, UnknownPluginError
from fedbench.experiment.record import Record
from fedbench.leaderboard import board as boards
from fedbench.leaderboard.build import Case, alphabet, build
from fedbench.leaderboard.entry import Entry, Statement
from fedbench.leaderboard.growth import growth
from fedbench.leaderboard.reproduction import reproduced
from fedbench.leaderboard.rules import Rules, changed, versions
from fedbench.leaderboard.verdict import RuleFinding, errors, judge

SHOWN = 5  # differences that are listed


@dataclass(frozen=True)
class CheckedFile:
    """A file of a board, and the findings about it.

    Args:
        path: Path below the board.
        entry: The entry, if it could be read.
        findings: Findings in the order of the rules.
    """

    path: Path
    entry: Entry | None
    findings: list[RuleFinding] = field(default_factory=list)


def check(target: Path, own_rules: bool = False) -> list[CheckedFile]:
    """Check every file of a board below a folder, or one entry; and the rules of the board.

    Args:
        target: A folder or a file of a board.
        own_rules: Whether the rules are the board's own, and not those that were published.

    Raises:
        ConfigError: there is no board.
    """
    board = boards.find(target)
    whole = Path(os.path.normpath(target.absolute()))
    whole = boards.owner(whole) or whole
    if not whole.exists():
        raise ConfigError(f"{target} must be an entry or a folder of a board, got nothing there")
    broken: dict[Path, str] = {}
    rules = versions(board, broken)
    contents = {path: _read(path) for path in boards.files(board)}
    checked = [*_rules(board, rules, broken, own_rules)]
    entries = {path: entry for path, entry in contents.items() if isinstance(entry, Entry)}
    for path, content in contents.items():
        if not path.is_relative_to(whole):
            continue
        below = path.relative_to(board)
        if isinstance(content, Entry):
            findings = [*_placed(board, path, content), *_twice(board, path, content, entries)]
            findings += checked_entry(path, content, rules)
            checked.append(CheckedFile(below, content, findings))
        elif content is not None:
            checked.append(CheckedFile(below, None, [content]))
    return checked


def _rules(
    board: Path, rules: dict[int, Rules], broken: dict[Path, str], own_rules: bool
) -> Iterator[CheckedFile]:
    """Yield the versions of the rules that are broken; entries are judged by the others."""
    for path, text in broken.items():
        yield CheckedFile(Path("rules", path.name), None, _broken("rules", [text]))
    for path, text in ({} if own_rules else changed(board)).items():
        yield CheckedFile(Path("rules", path.name), None, _broken("published", [text]))
    for version, texts in ({} if broken else growth(rules)).items():
        yield CheckedFile(Path("rules", f"{version}.toml"), None, _broken("growth", texts))


def _broken(rule: str, texts: Iterable[str]) -> list[RuleFinding]:
    return [RuleFinding(rule, "error", text) for text in texts]


def _read(path: Path) -> Entry | RuleFinding | None:
    """Return an entry, or what is wrong; None for the records of an entry."""
    if boards.is_entry(path):
        try:
            return boards.read(path)
        except ConfigError as error:
            return RuleFinding("schema", "error", str(error))
    owner = boards.owner(path)
    if owner is not None and boards.is_entry(owner) and not path.is_symlink():
        return None
    return RuleFinding(
        "path", "error", "must be an entry or its records, got another file or a link"
    )


def _placed(board: Path, path: Path, entry: Entry) -> Iterator[RuleFinding]:
    """Check that the name of the file follows from the content, so that none leads elsewhere."""
    expected = boards.place(board, entry).relative_to(board)
    if path.relative_to(board) != expected:
        yield from _broken("path", [f"must be at {expected} by its content"])


def _twice(
    board: Path, path: Path, entry: Entry, entries: dict[Path, Entry]
) -> Iterator[RuleFinding]:
    for other_path, other in entries.items():
        name = other_path.relative_to(board)
        if other_path != path and other.id == entry.id:
            yield from _broken("duplicate", [f"{name} has the same id"])
        elif other_path != path and other.system() == entry.system():
            text = f"{name} is the same system, played by the same code"
            yield from _broken("duplicate", [text])


def checked_entry(path: Path, entry: Entry, rules: dict[int, Rules]) -> list[RuleFinding]:
    """Check an entry and the records beside it against the rules it was scored under."""
    findings = list(_version(entry, rules))
    if entry.id != entry.content_id():
        text = f"its content has the id {entry.content_id()}, got {entry.id}: it was edited"
        findings += _broken("digest", [text])
    try:
        records = boards.records(path)
    except ConfigError as error:
        return [*findings, RuleFinding("records", "error", str(error))]
    if entry.rules not in rules:
        return findings
    case, doubts = _case(entry, records, rules[entry.rules])
    findings += [*doubts, *_broken("digest", _members(entry, records)), *judge(case)]
    if not errors(findings):
        findings += _broken("numbers", _edited(entry, case))
        findings += _broken("status", reproduced(entry, rules[entry.rules]))
    return findings


def _case(entry: Entry, records: list[Record], rules: Rules) -> tuple[Case, list[RuleFinding]]:
    """Return what is judged; the alphabet is the entry's word if its protocol is not installed."""
    sends = entry.alphabet
    doubts = []
    try:
        sends = alphabet(entry.protocol)
    except UnknownPluginError:
        text = f"{entry.protocol} is not installed here: that it sends {sends} is its own word"
        doubts = [RuleFinding("installed", "warning", text)]
    except ConfigError as error:
        doubts = _broken("installed", [f"{entry.protocol} cannot be loaded: {error}"])
    return Case(records, rules, entry.division, entry.track, sends), doubts


def _version(entry: Entry, rules: dict[int, Rules]) -> Iterator[RuleFinding]:
    if entry.rules not in rules:
        yield from _broken("version", [f"must be one of {sorted(rules)}, got {entry.rules}"])
    elif entry.rules < max(rules):
        text = f"scored under version {entry.rules}, but {max(rules)} is the newest: run it again"
        yield RuleFinding("version", "warning", text)


def _members(entry: Entry, records: Sequence[Record]) -> Iterator[str]:
    listed = sorted(member.digest for cell in entry.cells for member in cell.records)
    packed = sorted(record.digest for record in records)
    if listed != packed:
        missing = len(set(listed) - set(packed))
        extra = len(set(packed) - set(listed))
        yield f"{missing} listed records are not in the archive, {extra} there are not listed"


def _edited(entry: Entry, case: Case) -> Iterator[str]:
    """Yield the fields of an entry that do not follow from its records."""
    statement = Statement(**{name: getattr(entry, name) for name in Statement.model_fields})
    try:
        built = build(case, statement).model_dump(mode="json")
    except ConfigError as error:
        yield str(error)
        return
    claimed = entry.model_dump(mode="json")
    for name in ("id", "status", "reproductions"):
        del built[name], claimed[name]
    different = list(_differences("", claimed, built))
    yield from different[:SHOWN]
    if len(different) > SHOWN:
        yield f"and {len(different) - SHOWN} more"


def _differences(where: str, claimed: Any, built: Any) -> Iterator[str]:
    if isinstance(claimed, dict) and isinstance(built, dict) and claimed.keys() == built.keys():
        for name in claimed:
            yield from _differences(f"{where}.{name}", claimed[name], built[name])
    elif isinstance(claimed, list) and isinstance(built, list) and len(claimed) == len(built):
        for i, pair in enumerate(zip(claimed, built, strict=True)):
            yield from _differences(f"{where}.{i}", *pair)
    elif claimed != built:
        yield f"{where[1:]} must be {_short(built)} by the records, got {_short(claimed)}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
