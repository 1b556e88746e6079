"""Whether the files of a board are what they say, without playing anything."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedbench.core.errors import ConfigError, UnknownPluginError
from fedbench.experiment.record import Record
from fedbench.leaderboard import board as boards
from fedbench.leaderboard.build import Case, alphabet, build
from fedbench.leaderboard.entry import Entry, Said
from fedbench.leaderboard.growth import growth
from fedbench.leaderboard.judge import Finding, errors, judge
from fedbench.leaderboard.reproduction import reproduced
from fedbench.leaderboard.rules import Rules, changed, versions

SHOWN = 5  # differences that are listed
SAYING = tuple(Said.model_fields)


@dataclass(frozen=True)
class Checked:
    """A file, and what was found in it.

    Args:
        path: Below the board.
        entry: If it could be read.
        findings: In the order of the rules.
    """

    path: Path
    entry: Entry | None
    findings: list[Finding] = field(default_factory=list)


def check(target: Path, own_rules: bool = False) -> list[Checked]:
    """Check every file of a board below a folder, or one entry; and the rules of the board.

    Args:
        target: A folder or a file of a board.
        own_rules: The rules are the board's own, and not those that were published.

    Raises:
        ConfigError: there is no board.
    """
    board = boards.find(target)
    whole = Path(os.path.normpath(target.absolute()))
    whole = boards.owner(whole) or whole
    if not whole.exists():
        raise ConfigError(f"{target} must be an entry or a folder of a board, got nothing there")
    broken: dict[Path, str] = {}
    known = versions(board, broken)
    read = {path: _read(path) for path in boards.files(board)}
    checked = [*_rules(board, known, broken, own_rules)]
    entries = {path: one for path, one in read.items() if isinstance(one, Entry)}
    for path, one in read.items():
        if not path.is_relative_to(whole):
            continue
        below = path.relative_to(board)
        if isinstance(one, Entry):
            findings = [*_placed(board, path, one), *_twice(board, path, one, entries)]
            findings += checked_entry(path, one, known)
            checked.append(Checked(below, one, findings))
        elif one is not None:
            checked.append(Checked(below, None, [one]))
    return checked


def _rules(
    board: Path, known: dict[int, Rules], broken: dict[Path, str], own_rules: bool
) -> Iterator[Checked]:
    """What is wrong with the rules themselves; an entry is judged by those that can be read."""
    for path, text in broken.items():
        yield Checked(Path("rules", path.name), None, _broken("rules", [text]))
    for path, text in ({} if own_rules else changed(board)).items():
        yield Checked(Path("rules", path.name), None, _broken("published", [text]))
    for version, texts in ({} if broken else growth(known)).items():
        yield Checked(Path("rules", f"{version}.toml"), None, _broken("growth", texts))


def _broken(rule: str, texts: Iterable[str]) -> list[Finding]:
    return [Finding(rule, "error", text) for text in texts]


def _read(path: Path) -> Entry | Finding | None:
    """An entry, or what is wrong; None for the records of an entry."""
    if boards.is_entry(path):
        try:
            return boards.read(path)
        except ConfigError as error:
            return Finding("schema", "error", str(error))
    owner = boards.owner(path)
    if owner is not None and boards.is_entry(owner) and not path.is_symlink():
        return None
    return Finding("path", "error", "must be an entry or its records, got another file or a link")


def _placed(board: Path, path: Path, entry: Entry) -> Iterator[Finding]:
    """The name of the file follows from the content, so no name leads elsewhere."""
    expected = boards.place(board, entry).relative_to(board)
    if path.relative_to(board) != expected:
        yield from _broken("path", [f"must be at {expected} by its content"])


def _twice(board: Path, path: Path, entry: Entry, entries: dict[Path, Entry]) -> Iterator[Finding]:
    for other, one in entries.items():
        if other != path and one.id == entry.id:
            yield from _broken("duplicate", [f"{other.relative_to(board)} has the same id"])
        elif other != path and one.system() == entry.system():
            found = f"{other.relative_to(board)} is the same system, played by the same code"
            yield from _broken("duplicate", [found])


def checked_entry(path: Path, entry: Entry, known: dict[int, Rules]) -> list[Finding]:
    """An entry and the records beside it against the rules it was scored under."""
    findings = list(_version(entry, known))
    findings += _broken("digest", _content(entry))
    try:
        records = boards.records(path)
    except ConfigError as error:
        return [*findings, Finding("records", "error", str(error))]
    if entry.rules not in known:
        return findings
    said, claims = _case(entry, records, known[entry.rules])
    findings += [*claims, *_broken("digest", _members(entry, records)), *judge(said)]
    if not errors(findings):
        findings += _broken("numbers", _edited(entry, said))
        findings += _broken("status", reproduced(entry, known[entry.rules]))
    return findings


def _case(entry: Entry, records: list[Record], rules: Rules) -> tuple[Case, list[Finding]]:
    """What is judged; the alphabet is the entry's word where its protocol is not installed."""
    sends, doubt = entry.alphabet, []
    try:
        sends = alphabet(entry.protocol)
    except UnknownPluginError:
        text = f"{entry.protocol} is not installed here: that it sends {sends} is its own word"
        doubt = [Finding("installed", "warning", text)]
    except ConfigError as error:
        doubt = _broken("installed", [f"{entry.protocol} cannot be loaded: {error}"])
    return Case(records, rules, entry.division, entry.track, sends), doubt


def _version(entry: Entry, known: dict[int, Rules]) -> Iterator[Finding]:
    if entry.rules not in known:
        yield from _broken("version", [f"must be one of {sorted(known)}, got {entry.rules}"])
    elif entry.rules < max(known):
        text = f"scored under version {entry.rules}, but {max(known)} is the newest: run it again"
        yield Finding("version", "warning", text)


def _content(entry: Entry) -> Iterator[str]:
    if entry.id != entry.content_id():
        yield f"its content has the id {entry.content_id()}, got {entry.id}: it was edited"


def _members(entry: Entry, records: Sequence[Record]) -> Iterator[str]:
    listed = sorted(member.digest for cell in entry.cells for member in cell.records)
    found = sorted(record.digest for record in records)
    if listed != found:
        missing, extra = len(set(listed) - set(found)), len(set(found) - set(listed))
        yield f"{missing} listed records are not in the archive, {extra} there are not listed"


def _edited(entry: Entry, case: Case) -> Iterator[str]:
    """Whatever the records say otherwise."""
    said = Said(**{name: getattr(entry, name) for name in SAYING})
    try:
        built = build(case, said).model_dump(mode="json")
    except ConfigError as error:
        yield str(error)
        return
    claimed = entry.model_dump(mode="json")
    for name in ("id", "status", "reproductions"):
        del built[name], claimed[name]
    found = list(_differences("", claimed, built))
    yield from found[:SHOWN]
    if len(found) > SHOWN:
        yield f"and {len(found) - SHOWN} more"


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
