"""The way onto a board: the sweep that a system must play, and the submission of its records."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import ValidationError

from fedbench.core.errors import ConfigError
from fedbench.experiment.record import Record
from fedbench.leaderboard import board as boards
from fedbench.leaderboard.build import SYSTEM_PLUGINS, Case, alphabet, build, completed, meaning
from fedbench.leaderboard.check import claim, drawn_case, of_entry
from fedbench.leaderboard.entry import Entry, Statement
from fedbench.leaderboard.entry_rules import RULES, RuleFinding, errors, judge
from fedbench.leaderboard.replays import ClaimedEntry
from fedbench.leaderboard.rules import Division, Rules, newest
from fedbench.leaderboard.tiers import mandatory
from fedbench.results.gather import ARCHIVE, shortened
from fedbench.sweeps.plan import Plan


def plan(rules: Rules, track: str, system: Mapping[str, Any]) -> str:
    """Return a file for `fedbench sweep` with the mandatory cells of a system and no others.

    ``system`` has the fields that entries choose: ``protocol``, and those that are not by default.
    `ConfigError` without such a track, or if the system cannot be played.
    """
    race = rules.named(track)
    if race is None:
        names = ", ".join(each.name for each in rules.track)
        raise ConfigError(f"--track must be one of {names}, got {track!r}")
    sends = alphabet(system["protocol"])
    attacks = mandatory(rules, race, sends)
    if not attacks:
        raise ConfigError(
            f"version {rules.version} must name attacks on {sends}, which {system['protocol']} "
            "sends, got none; add them in a new version of the rules"
        )
    table = {
        "title": f"Leaderboard, closed division, {track}, rules {rules.version}",
        "seeds": list(race.seeds),
        "scenario": dict(race.scenario),
        "grid": [{**system, "attack": list(attacks)}],
    }
    return _counted(table)


def ranking_plan(path: Path) -> str:
    """Return a file for `fedbench sweep` with the ranking stage of an entry and nothing else.

    `ConfigError` if the entry breaks a rule, or if nothing was drawn for it yet.
    """
    claimed = claim(path)
    case = _later(claimed, [])
    drawn = case.drawn
    assert drawn is not None
    scenario = shortened(claimed.entry.scenario)
    fields = scenario.model_dump(mode="json", exclude_defaults=True)
    system = {name: fields.pop(name) for name in SYSTEM_PLUGINS if name in fields}
    for name in ("attack", "seed", "data_seed"):
        fields.pop(name, None)
    attacks = [shortened(scenario.model_copy(update={"attack": a})).attack for a in drawn.attacks]
    table = {
        "title": f"Leaderboard, ranking stage of {claimed.entry.id}, season {drawn.season}",
        "seeds": list(drawn.seeds),
        "scenario": fields,
        "grid": [{"protocol": scenario.protocol, **system, "attack": attacks}],
    }
    return _counted(table)


def _later(claimed: ClaimedEntry, records: Sequence[Record]) -> Case:
    """Return what the records of a ranking stage are judged by; `ConfigError` if there is none."""
    entry = claimed.entry
    if entry.ranking is not None:
        season = entry.ranking.season
        raise ConfigError(f"{claimed.path} must be without a ranking stage, got that of {season}")
    case = Case(claimed.records, claimed.rules, entry.division, entry.track, entry.alphabet)
    seasons = {} if claimed.season is None else {claimed.season.name: claimed.season}
    later, wrong = drawn_case(entry, case, records, seasons)
    if later is None:
        raise ConfigError(f"{claimed.path} has no ranking stage yet: {wrong[0]}")
    return later


def _counted(table: dict[str, Any]) -> str:
    """Write a plan, with the number of its runs in the first line."""
    cells, skipped = Plan.of(table, "plan").cells()
    if skipped:
        raise ConfigError(f"every mandatory attack must fit, got {skipped[0].reason}")
    seeds = len(table["seeds"])
    runs = f"{len(cells)} attacks, the clean run included, x {seeds} seeds"
    return f"# {runs} = {len(cells) * seeds} runs\n{tomli_w.dumps(table)}"


@dataclass(frozen=True)
class Submission:
    """Outcome of a submission to the board in a folder."""

    board: Path
    records: Sequence[Record]
    findings: list[RuleFinding]  # broken rules and doubts
    entry: Entry | None  # None if a rule is broken
    older: list[Path]  # entries of the same system, which it replaces

    def write(self) -> Path:
        """Write the entry onto the board, and remove the entries that it replaces."""
        assert self.entry is not None
        path = boards.write(self.board, self.entry, self.records)
        for orphan in _orphans(path, {record.digest for record in self.records}):
            orphan.unlink()
        for old in self.older:
            if old != path:
                for packed in boards.beside(old):
                    packed.unlink()
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
    """Judge records of one system by the newest rules of a board; nothing is written.

    ``statement`` has the fields of `Statement`. Without a track it is the one that the records are
    of. With ``replace`` they take the place of an entry of the same system. `ConfigError` without a
    board, or if the records' protocol is not installed.
    """
    rules = newest(board)
    sends = alphabet(records[0].scenario.protocol)
    case = Case(records, rules, division, track or infer(records, rules, division), sends)
    findings = [*_stated(statement), *judge(case)]
    if errors(findings):
        return Submission(board, records, findings, None, [])
    entry = build(case, Statement(**statement))
    older = []
    for path in filter(boards.is_entry, boards.files(board)):
        with suppress(ConfigError):  # `check` names the broken ones
            if boards.read(path).system() == entry.system():
                older.append(path)
    if older and not replace:
        where = ", ".join(str(path) for path in older)
        text = f"{where} is the same system, played by the same code; --replace takes its place"
        findings.append(RuleFinding("duplicate", "error", text))
    return Submission(board, records, findings, None if errors(findings) else entry, older)


def complete(path: Path, records: Sequence[Record]) -> Submission:
    """Judge the records of an entry's ranking stage; nothing is written.

    `ConfigError` if the entry breaks a rule itself, or if nothing was drawn for it yet.
    """
    claimed = claim(path)
    case = _later(claimed, records)
    other = of_entry(claimed.entry, records)
    findings = [RuleFinding("one system", "error", text) for text in other]
    findings += judge(case)
    for rule in ("code", "device"):
        both = dataclasses.replace(case, records=[*claimed.records, *records])
        findings += [RuleFinding(rule, "error", text) for text in RULES[rule](both)]
    entry = None if errors(findings) else completed(claimed.entry, case)
    return Submission(boards.find(path), records, findings, entry, [])


def _orphans(beside: Path, digests: set[str]) -> Iterator[Path]:
    """Yield archives of just these records without an entry, left by a killed submission."""
    for packed in sorted(beside.parent.glob(f"*{ARCHIVE}")):
        owner = boards.owner(packed)
        if owner is None or owner.exists() or packed != boards.archive(owner):
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
    datasets = {track.name: rules.scenario(track).dataset for track in rules.track}
    fitting = [name for name, text in datasets.items() if meaning("dataset", text) == full]
    if division == "open" or not fitting:
        return str(dataset.partition(":")[0])
    missed = {name: judge(Case(records, rules, division, name, "")) for name in fitting}
    return min(fitting, key=lambda name: len(errors(missed[name])))
