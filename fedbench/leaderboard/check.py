"""Check the files of a board against its rules, without playing anything."""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedbench.core.errors import ConfigError, UnknownPluginError
from fedbench.core.registry import split
from fedbench.experiment.record import Record
from fedbench.leaderboard import board as boards
from fedbench.leaderboard import held_out
from fedbench.leaderboard import seasons as named_seasons
from fedbench.leaderboard.build import Case, DrawnStage, alphabet, build, completed, score, worst
from fedbench.leaderboard.entry import Entry, Statement
from fedbench.leaderboard.entry_rules import RULES, SOUND, RuleFinding, errors, judge
from fedbench.leaderboard.held_out import HeldOutAttack
from fedbench.leaderboard.replays import ClaimedEntry, compared, status
from fedbench.leaderboard.rules import (
    DIVISIONS,
    Rules,
    changed,
    growth,
    numbered,
    read_rules,
    versions,
)
from fedbench.leaderboard.seasons import Season
from fedbench.leaderboard.site.page import edited

MAX_LISTED_DIFFERENCES = 5


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
    scope = Path(os.path.normpath(target.absolute()))
    scope = boards.owner(scope) or scope
    if not scope.exists():
        raise ConfigError(f"{target} must be an entry or a folder of a board, got nothing there")
    broken: dict[Path, str] = {}
    rules = versions(board, broken)
    contents = {path: _read(path) for path in boards.files(board)}
    entries = {path: entry for path, entry in contents.items() if isinstance(entry, Entry)}
    attacks, wrong = held_out.revealed(board, rules)
    seasons, drawn_wrong = _seasons(board)
    checked = [*_rules(board, rules, broken, own_rules), *_held_out(rules, attacks, wrong)]
    checked += drawn_wrong
    for path, content in contents.items():
        if content is None or not path.is_relative_to(scope):
            continue
        below = path.relative_to(board)
        if isinstance(content, RuleFinding):
            checked.append(CheckedFile(below, None, [content]))
            continue
        # A name follows from its content, so none leads elsewhere.
        place = boards.place(board, content)
        elsewhere = f"must be at {place.relative_to(board)} by its content"
        findings = _broken("path", [] if path == place else [elsewhere])
        findings += _broken("path", _unlisted(path, content))
        findings += _broken("duplicate", _twice(board, path, content, entries))
        findings += checked_entry(path, content, rules, attacks, seasons)
        checked.append(CheckedFile(below, content, findings))
    if scope == board:
        checked += _links(board)
        if not any(errors(file.findings) for file in checked):
            checked += _pages(board)
    return checked


def _links(board: Path) -> Iterator[CheckedFile]:
    """Yield the links outside of the divisions: what lies behind one is not in the board."""
    for path in sorted(board.rglob("*")):
        below = path.relative_to(board)
        if path.is_symlink() and below.parts[0] not in DIVISIONS:
            yield CheckedFile(below, None, _broken("path", ["must be a file, got a link"]))


def _pages(board: Path) -> Iterator[CheckedFile]:
    """Yield the pages that are not those of the entries; a broken board has none to compare."""
    for name in edited(board):
        text = "must be, byte for byte, what fedbench leaderboard render writes"
        yield CheckedFile(Path(name), None, _broken("pages", [text]))


def claim(path: Path) -> ClaimedEntry:
    """Read an entry of a board with all that lies beside it; `ConfigError` if it breaks a rule."""
    checked = [file for file in check(path, own_rules=True) if file.entry is not None]
    if len(checked) != 1 or not path.is_file():
        raise ConfigError(f"{path} must be one entry of a board, got {len(checked)}")
    broken = errors(checked[0].findings)
    entry = checked[0].entry
    if broken or entry is None:
        raise ConfigError(
            f"{path} breaks the rule {broken[0].rule!r}: {broken[0].text}; "
            "see fedbench leaderboard check"
        )
    board = boards.find(path)
    rules = read_rules(numbered(board)[entry.rules])
    return _claim(path, entry, boards.records(path), rules, named_seasons.seasons(board))


def _claim(
    path: Path, entry: Entry, records: list[Record], rules: Rules, seasons: dict[str, Season]
) -> ClaimedEntry:
    later = boards.ranking_records(path) if entry.ranking is not None else []
    replayed = [boards.replay_records(path, i + 1) for i in range(len(entry.replays))]
    season = named_seasons.of(entry.id, seasons)
    return ClaimedEntry(path, entry, records, later, replayed, rules, season)


def _seasons(board: Path) -> tuple[dict[str, Season], list[CheckedFile]]:
    """Return the seasons of a board that can be read, and what is wrong with any of them."""
    seasons: dict[str, Season] = {}
    wrong = []
    for file in sorted((board / named_seasons.FOLDER).glob("*.toml")):
        try:
            seasons[file.stem] = named_seasons.read(file)
        except ConfigError as error:
            broken = _broken("season", [str(error)])
            wrong.append(CheckedFile(file.relative_to(board), None, broken))
    for name, texts in named_seasons.shared(seasons).items():
        below = named_seasons.path(board, name).relative_to(board)
        wrong.append(CheckedFile(below, None, _broken("season", texts)))
    return seasons, wrong


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


def _unlisted(path: Path, entry: Entry) -> Iterator[str]:
    """Yield the archives beside an entry that it does not list."""
    listed = {boards.archive(path), boards.held_out(path)}
    listed |= set() if entry.ranking is None else {boards.ranking(path)}
    listed |= {boards.replay(path, number + 1) for number in range(len(entry.replays))}
    for other in boards.beside(path):
        if other not in listed:
            yield f"{other.name} lies beside it, of which it says nothing"


def _twice(board: Path, path: Path, entry: Entry, entries: dict[Path, Entry]) -> Iterator[str]:
    for other_path, other in entries.items():
        name = other_path.relative_to(board)
        if other_path != path and other.id == entry.id:
            yield f"{name} has the same id"
        elif other_path != path and other.system() == entry.system():
            yield f"{name} is the same system, played by the same code"


def checked_entry(
    path: Path,
    entry: Entry,
    rules: dict[int, Rules],
    attacks: Sequence[HeldOutAttack] = (),
    seasons: dict[str, Season] | None = None,
) -> list[RuleFinding]:
    """Check an entry and the records beside it against the rules it was scored under.

    ``attacks`` are the held-out ones that were revealed, ``seasons`` those of the board.
    """
    findings = list(_version(entry, rules))
    if entry.id != entry.content_id():
        text = f"its content has the id {entry.content_id()}, got {entry.id}: it was edited"
        findings += _broken("digest", [text])
    season = named_seasons.of(entry.id, seasons or {})
    if season is not None and season.digests and entry.content_digest() not in season.digests:
        text = f"season {season.name} froze another entry of this id, not {entry.content_digest()}"
        findings += _broken("season", [text])
    try:
        records = boards.records(path)
    except ConfigError as error:
        return [*findings, RuleFinding("records", "error", str(error))]
    if entry.rules not in rules:
        return findings
    case, doubts = _case(entry, records, rules[entry.rules])
    listed = [member.digest for cell in entry.cells for member in cell.records]
    findings += [*doubts, *_broken("digest", _members(listed, records)), *judge(case)]
    if not errors(findings):
        findings += _broken("numbers", _edited(entry, case))
        findings += _after(path, entry, case, seasons or {})
    return findings + _later(path, case, attacks)


def _after(path: Path, entry: Entry, case: Case, seasons: dict[str, Season]) -> list[RuleFinding]:
    """Check the ranking stage of an entry, and the replays of others."""
    findings: list[RuleFinding] = []
    try:
        claimed = _claim(path, entry, list(case.records), case.rules, seasons)
    except ConfigError as error:
        return [RuleFinding("records", "error", str(error))]
    stage = entry.ranking
    if stage is not None:
        later, wrong = drawn_case(entry, case, claimed.ranking, seasons)
        findings += _broken("season", wrong)
        listed = [member.digest for cell in stage.cells for member in cell.records]
        findings += _broken("digest", _members(listed, claimed.ranking))
        if later is None or errors(findings):
            return findings
        findings += [*_broken("one system", of_entry(entry, claimed.ranking)), *judge(later)]
        devices = {record.environment.device for record in claimed.ranking} - {entry.device}
        findings += _broken(
            "device", [f"must be {entry.device!r} in both stages"] if devices else []
        )
        if errors(findings):
            return findings
        built = completed(entry, later)
        assert built.ranking is not None
        expected = built.ranking.model_dump(mode="json")
        findings += _broken("numbers", _listed("ranking", stage.model_dump(mode="json"), expected))
    if entry.score != score(entry.scored, entry.epsilon):
        findings += _broken("numbers", ["score must follow from its cells, got another one"])
    for number, replay in enumerate(entry.replays, 1):
        texts = list(_replayed(claimed, number))
        findings += _broken("replays", [f"replay {number} by {replay.by}: {x}" for x in texts])
    if not errors(findings) and entry.status != (expected_status := status(claimed)):
        text = f"must be {expected_status} by its replays, got {entry.status}"
        findings += _broken("status", [text])
    return findings


def drawn_case(
    entry: Entry, case: Case, records: Sequence[Record], seasons: dict[str, Season]
) -> tuple[Case | None, list[str]]:
    """Return what the records of a ranking stage are judged by, and why there can be none.

    ``case`` is that of the development stage.
    """
    season = named_seasons.of(entry.id, seasons)
    if case.race is None:
        return None, ["an entry of the open division has no ranking stage"]
    if season is None:
        return None, ["an entry must be frozen in a season before its ranking stage is played"]
    if entry.ranking is not None and entry.ranking.season != season.name:
        return None, [f"must be of the season {season.name}, got {entry.ranking.season}"]
    if season.value is None:
        return None, [f"season {season.name} has no value yet, so nothing was drawn"]
    attacks = worst(entry, case.rules.worst)
    drawn = DrawnStage(
        season.name, tuple(season.seeds(entry.track, case.rules.ranking_seeds)), attacks
    )
    return Case(records, case.rules, case.division, case.track, case.alphabet, drawn), []


def of_entry(entry: Entry, records: Sequence[Record]) -> Iterator[str]:
    """Yield the first record that is not of the system of an entry, and why."""
    same = entry.scenario.model_copy(update={"seed": 0, "data_seed": 0})
    fields = {"attack": same.attack, "seed": 0, "data_seed": 0}
    sources = {(source.module, source.sha256) for source in entry.sources}
    for record in records:
        own = {(source.module, source.sha256) for source in record.sources}
        pairs = {
            "scenario": record.scenario.model_copy(update=fields) == same,
            "version of the code": record.environment.fedbench == entry.code,
            "source of a plug-in": own <= sources,
            "network": (record.vote, record.parameters) == (entry.votes, entry.parameters),
            "data set": record.data_digest == entry.data_digest,
        }
        if other := [what for what, equal in pairs.items() if not equal]:
            yield f"{record.file_name} must be of the entry's system, got another {other[0]}"
            return


def _replayed(claim: ClaimedEntry, number: int) -> Iterator[str]:
    """Yield what is wrong with a replay, which is made of records and of nothing else."""
    replay = claim.entry.replays[number - 1]
    records = claim.replayed[number - 1]
    yield from _members(list(replay.digests), records)
    case = Case(records, claim.rules, claim.entry.division, claim.entry.track, claim.entry.alphabet)
    named = ("id", "cohort", "data")
    for name, rule in {**SOUND, **{name: RULES[name] for name in named}}.items():
        yield from (f"{name}: {text}" for text in rule(case))
    yield from of_entry(claim.entry, records)
    for record in records:
        about = record.environment
        machine = (about.fedbench, about.platform, about.processor, about.device, about.torch)
        if machine != (replay.code, replay.platform, replay.processor, replay.device, replay.torch):
            yield f"{record.file_name} was not played where the replay says"
            return
    claimed = {r.timing for r in (*claim.records, *claim.ranking)}
    others = [r.timing for i, each in enumerate(claim.replayed, 1) if i != number for r in each]
    if any(record.timing in claimed or record.timing in others for record in records):
        yield "must be runs of its own, got some with the times of other records"
    compared_runs = sum(len(each.again) for each in compared(claim, records))
    if compared_runs != len(records):
        yield (
            f"must have cells of the entry with all of their seeds, got {len(records)} runs of "
            f"which {compared_runs} are of whole cells"
        )


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
    elif entry.rules_digest != rules[entry.rules].digest:
        text = f"must be judged by rules with the SHA-256 {rules[entry.rules].digest[:12]}..."
        yield from _broken("version", [f"{text}, got {entry.rules_digest[:12]}..."])
    elif entry.rules < max(rules):
        text = f"scored under version {entry.rules}, but {max(rules)} is the newest: run it again"
        yield RuleFinding("version", "warning", text)


def _members(listed: Sequence[str], records: Sequence[Record]) -> Iterator[str]:
    packed = [record.digest for record in records]
    if sorted(listed) != sorted(packed):
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
    yield from _listed("", entry.content(), built)


def _listed(where: str, claimed: Any, built: Any) -> Iterator[str]:
    different = list(_differences(f".{where}" if where else "", claimed, built))
    yield from different[:MAX_LISTED_DIFFERENCES]
    if len(different) > MAX_LISTED_DIFFERENCES:
        yield f"and {len(different) - MAX_LISTED_DIFFERENCES} more"


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
