"""Check the files of a board against its rules, without playing anything."""

import os
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedbench.core.errors import ConfigError, UnknownPluginError
from fedbench.core.registry import split
from fedbench.experiment.record import Record
from fedbench.leaderboard import board as boards
from fedbench.leaderboard import held_out
from fedbench.leaderboard.build import Case, alphabet, build
from fedbench.leaderboard.entry import Entry, Statement, status
from fedbench.leaderboard.entry_rules import RuleFinding, errors, judge
from fedbench.leaderboard.held_out import HeldOutAttack
from fedbench.leaderboard.rules import Rules, changed, growth, versions

SHOWN = 5  # differences that are listed


@dataclass(frozen=True)
class CheckedFile:
    """A file of a board, and the findings about it in the order of the rules."""

    path: Path  # below the board
    entry: Entry | None  # None if it could not be read
    findings: list[RuleFinding] = field(default_factory=list)


def check(target: Path, own_rules: bool = False) -> list[CheckedFile]:
    """Check a board below a folder, or one entry, and its rules; `ConfigError` if there is none.

    With ``own_rules`` they need not be those that were published.
    """
    board = boards.find(target)
    whole = Path(os.path.normpath(target.absolute()))
    whole = boards.owner(whole) or whole
    if not whole.exists():
        raise ConfigError(f"{target} must be an entry or a folder of a board, got nothing there")
    broken: dict[Path, str] = {}
    rules = versions(board, broken)
    contents = {path: _read(path) for path in boards.files(board)}
    entries = {path: entry for path, entry in contents.items() if isinstance(entry, Entry)}
    attacks, wrong = held_out.revealed(board, rules)
    checked = [*_rules(board, rules, broken, own_rules), *_held_out(rules, attacks, wrong)]
    for path, content in contents.items():
        if content is None or not path.is_relative_to(whole):
            continue
        below = path.relative_to(board)
        if isinstance(content, RuleFinding):
            checked.append(CheckedFile(below, None, [content]))
            continue
        place = boards.place(
            board, content
        )  # a name follows from its content: none leads elsewhere
        wrong = [] if path == place else [f"must be at {place.relative_to(board)} by its content"]
        findings = _broken("path", wrong)
        findings += _broken("duplicate", _twice(board, path, content, entries))
        findings += checked_entry(path, content, rules, attacks)
        checked.append(CheckedFile(below, content, findings))
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


def _held_out(
    rules: dict[int, Rules], attacks: Sequence[HeldOutAttack], wrong: Sequence[str]
) -> Iterator[CheckedFile]:
    """Yield what is wrong with revealed attacks, and the versions with attacks that are due."""
    if wrong:
        yield CheckedFile(Path(held_out.FOLDER), None, _broken("held-out", wrong))
    for version, each in rules.items():
        late = held_out.overdue(version, each, attacks) if version < max(rules) else ()
        if findings := [RuleFinding("held-out", "warning", text) for text in late]:
            yield CheckedFile(Path("rules", f"{version}.toml"), None, findings)


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
    text = "must be an entry or its records, got another file or a link"
    return RuleFinding("path", "error", text)


def _twice(board: Path, path: Path, entry: Entry, entries: dict[Path, Entry]) -> Iterator[str]:
    for other_path, other in entries.items():
        name = other_path.relative_to(board)
        if other_path != path and other.id == entry.id:
            yield f"{name} has the same id"
        elif other_path != path and other.system() == entry.system():
            yield f"{name} is the same system, played by the same code"


def checked_entry(
    path: Path, entry: Entry, rules: dict[int, Rules], attacks: Sequence[HeldOutAttack] = ()
) -> list[RuleFinding]:
    """Check an entry and the records beside it against the rules it was scored under.

    ``attacks`` are the held-out ones that were revealed.
    """
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
    return findings + _later(path, case, attacks)


def _later(path: Path, case: Case, attacks: Sequence[HeldOutAttack]) -> list[RuleFinding]:
    """Check an entry's records of held-out attacks, and that none of these is missing."""
    try:
        records = boards.held_out_records(path)
    except ConfigError as error:
        return _broken("held-out", [str(error)])
    due = {attack.name: attack.version for attack in attacks}
    findings = _broken("held-out", held_out.judge(case, records, due) if records else ())
    played = {split(record.scenario.attack)[0] for record in records}
    for name, version in due.items():
        if version >= case.rules.version and name not in played:
            text = f"no record of {name}: it does not fit, or reveal has not played it yet"
            findings.append(RuleFinding("held-out", "warning", text))
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
        built = build(case, statement).content()
    except ConfigError as error:
        yield str(error)
        return
    different = list(_differences("", entry.content(), built))
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


def reproduced(entry: Entry, rules: Rules) -> Iterator[str]:
    """Yield the claims of an entry's reproductions that cannot be true."""
    expected = status(entry.reproductions, entry.seeds)
    if entry.status != expected:
        yield f"must be {expected} by its reproductions, got {entry.status}"
    claimed = {cell.attack: {m.seed: m.accuracy for m in cell.records} for cell in entry.cells}
    for each in entry.reproductions:
        distinct = set(each.seeds)
        if not each.seeds or len(distinct) < len(each.seeds) or not distinct <= set(entry.seeds):
            yield f"a reproduction must have seeds of the entry, each once, got {each.seeds}"
            continue
        for again in each.cells:
            if again.attack not in claimed:
                yield f"a reproduction must be of cells of the entry, got {again.attack!r}"
                continue
            before = statistics.fmean(claimed[again.attack][seed] for seed in each.seeds)
            if again.difference != again.accuracy - before:
                got = f"{again.difference} of {again.accuracy}"
                yield f"{again.attack} was claimed with {before}, got a difference {got}"
            if again.agrees and abs(again.difference) > rules.tolerance.accuracy:
                yield f"{again.attack} cannot agree at a difference of {again.difference:.3f}"
