"""Replays: cells of an entry that somebody played again, and what their records prove."""

import dataclasses
import shlex
import statistics
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter, ValidationError

from fedbench.core import registry
from fedbench.core.errors import ConfigError, few, refusal
from fedbench.core.files import write_atomically
from fedbench.experiment.cells import Cell
from fedbench.experiment.compatibility import resolve
from fedbench.experiment.prepare import load_pool
from fedbench.experiment.record import Record, Source
from fedbench.experiment.scenario import Scenario, code_version
from fedbench.leaderboard import board as boards
from fedbench.leaderboard.build import command, final_accuracy, is_clean
from fedbench.leaderboard.entry import Entry, Replay, Status, Title
from fedbench.leaderboard.resampling import Key, holm, student
from fedbench.leaderboard.rules import Rules, Tolerance
from fedbench.leaderboard.seasons import Season
from fedbench.results.gather import collect, shortened
from fedbench.sweeps.drive import play_each
from fedbench.sweeps.local import Options
from fedbench.sweeps.watch import Watcher

Stage = Literal["development", "ranking"]
DRAWN_CELLS = 2  # cells of the development stage that the value of the season draws


@dataclass(frozen=True)
class StagedCell:
    """A cell of an entry: its stage and its attack as records write it."""

    stage: Stage
    attack: str


@dataclass(frozen=True, eq=False)
class ClaimedEntry:
    """A valid entry with its records, rules and season."""

    path: Path
    entry: Entry
    records: Sequence[Record]  # of the development stage
    ranking: Sequence[Record]  # of the ranking stage; empty without one
    replayed: Sequence[Sequence[Record]]  # of every replay
    rules: Rules
    season: Season | None  # in which the entry is frozen

    def of(self, part: StagedCell) -> list[Record]:
        """Return the records of a cell, in the order of the seeds."""
        records = self.records if part.stage == "development" else self.ranking
        played = [r for r in records if r.scenario.attack == part.attack]
        return sorted(played, key=lambda record: record.scenario.seed)


def parts(entry: Entry) -> list[StagedCell]:
    """Return all cells of an entry."""
    later = () if entry.ranking is None else entry.ranking.cells
    return [
        *(StagedCell("development", cell.attack) for cell in entry.cells),
        *(StagedCell("ranking", cell.attack) for cell in later),
    ]


def required(entry: Entry, season: Season | None) -> list[StagedCell]:
    """Return the cells that a replay must have so that the entry is replayed.

    They are the ranking stage, and two attacks of the development stage that are drawn from the
    value of the season. An entry without a ranking stage must be replayed whole.
    """
    if entry.ranking is None or season is None:
        return parts(entry)
    attacks = [cell.attack for cell in entry.cells if not is_clean(cell.attack)]
    drawn = season.order(entry.id, attacks)[:DRAWN_CELLS]
    return [
        *(StagedCell("ranking", cell.attack) for cell in entry.ranking.cells),
        *(StagedCell("development", attack) for attack in drawn),
    ]


def cell(entry: Entry, attack: str) -> Cell:
    """Return the cell that is played: as described, with data dealt anew for every seed."""
    return Cell(shortened(entry.scenario.model_copy(update={"attack": attack, "data_seed": None})))


@dataclass(frozen=True)
class ReplayedCell:
    """A cell as it is claimed and as it was played again, with the same seeds in the same order."""

    part: StagedCell
    claimed: Sequence[Record]
    again: Sequence[Record]

    def differences(self, looks: int) -> list[float]:
        """Return the claimed accuracy of each seed less the one that came out."""
        pairs = zip(self.claimed, self.again, strict=True)
        return [final_accuracy(before, looks) - final_accuracy(now, looks) for before, now in pairs]

    def pairs(self, looks: int) -> Iterator[tuple[str, float | None, float | None]]:
        """Yield the numbers that are compared: name, claimed value, value of the run again."""
        sides = (self.claimed, self.again)
        means = [statistics.fmean(final_accuracy(r, looks) for r in side) for side in sides]
        yield "accuracy", means[0], means[1]
        for name in ("uplink_bits_per_parameter", "downlink_bits_per_parameter"):
            claimed, again = (
                statistics.fmean(getattr(r.result, name) or 0.0 for r in side) for side in sides
            )
            yield name, claimed, again
        yield "epsilon", spent(self.claimed), spent(self.again)

    def is_exact(self) -> bool:
        """Tell if the runs must be equal: all are canonical, with the same versions."""
        sides = [run.environment for run in (*self.claimed, *self.again)]
        versions = {(here.fedbench, here.python, here.torch, here.numpy) for here in sides}
        return all(here.canonical for here in sides) and len(versions) == 1


def differing_cells(lost: Mapping[Key, Sequence[float]], allowed: Tolerance) -> set[Key]:
    """Return the cells of a replay whose accuracies differ by more than allowed, and surely.

    ``lost`` has the differences of each cell by seed. They are sure by Student's test, after Holm's
    correction for all cells: so an honest replay has any with a chance of at most the level.
    """
    sure = holm({cell: student(values) for cell, values in lost.items()})
    return {
        cell
        for cell, values in lost.items()
        if abs(statistics.fmean(values)) > allowed.accuracy and sure[cell] <= allowed.level
    }


def disagreements(comparisons: Sequence[ReplayedCell], rules: Rules) -> dict[StagedCell, list[str]]:
    """Return for each cell of a replay the names of numbers that differ by more than allowed.

    An accuracy does so if its cell is one of `differing_cells`, and between runs that must be equal
    if any number of any round is another one.
    """
    allowed = rules.tolerance
    limits = {"epsilon": allowed.epsilon}
    lost = {each.part: each.differences(rules.looks) for each in comparisons}
    far = differing_cells(lost, allowed)
    differing: dict[StagedCell, list[str]] = {}
    for each in comparisons:
        names = differing[each.part] = []
        equal = all(map(same_rounds, each.claimed, each.again))
        wrong = not equal if each.is_exact() else each.part in far
        if wrong:
            names.append("accuracy")
        for name, claimed, again in each.pairs(rules.looks):
            if name != "accuracy" and _far(claimed, again, limits.get(name, allowed.bits)):
                names.append(name)
    return differing


def same_rounds(before: Record, now: Record) -> bool:
    """Tell if two runs measured the same in every round."""
    return before.rounds == now.rounds


def _far(claimed: float | None, again: float | None, limit: float) -> bool:
    if claimed is None or again is None:
        return claimed is not again
    return abs(claimed - again) > limit * abs(claimed)


def spent(records: Sequence[Record]) -> float | None:
    """Return the largest epsilon; None if any is not finite, or without a mechanism."""
    finite = [r.result.epsilon for r in records if r.result.epsilon is not None]
    return max(finite) if len(finite) == len(records) else None


def compared(claim: ClaimedEntry, records: Sequence[Record]) -> list[ReplayedCell]:
    """Compare the records of a replay with the claimed ones: of every cell that it has."""
    by_run = {(r.scenario.attack, r.scenario.seed): r for r in records}
    comparisons = []
    for part in parts(claim.entry):
        before = claim.of(part)
        now = [by_run.get((part.attack, r.scenario.seed)) for r in before]
        whole = [record for record in now if record is not None]
        if before and len(whole) == len(before):
            comparisons.append(ReplayedCell(part, before, whole))
    return comparisons


def status(claim: ClaimedEntry) -> Status:
    """Return what the replays of an entry prove.

    It is contested if a cell of any replay differs surely; replayed if one replay has all cells
    that are `required` and nothing was `unread`; replicated if two are so, by different parties on
    different families of processors.
    """
    needed = set(required(claim.entry, claim.season))
    complete: list[tuple[str, str]] = []
    for replay, records in zip(claim.entry.replays, claim.replayed, strict=True):
        comparisons = compared(claim, records)
        if any(disagreements(comparisons, claim.rules).values()):
            return "contested"
        whole = needed <= {each.part for each in comparisons}
        if whole and not unread(claim.entry, replay.read):
            complete.append((replay.by, family(replay.processor)))
    if not complete:
        return "submitted"
    for (by, maker), (other_by, other_maker) in combinations(complete, 2):
        if by != other_by and maker != other_maker:
            return "replicated"
    return "replayed"


def family(processor: str) -> str:
    """Return the architecture and the maker of a processor.

    >>> family("x86_64 AMD EPYC 7B13")
    'x86_64 AMD'
    """
    return " ".join(processor.split()[:2])


def play_again(
    claim: ClaimedEntry,
    cells: Mapping[StagedCell, Cell],
    seeds: Sequence[int],
    options: Options,
    watcher: Watcher,
    out: Path | None,
) -> list[ReplayedCell]:
    """Play cells of one stage again, with all of its seeds, with the code that is installed.

    Fewer come back on Ctrl-C. Where an attack or the rule is another package's, they are isolated:
    they come from whoever submitted the entry. `ConfigError` if a run cannot be played here, if the
    code or the data are not those of the entry, or if ``out`` has the very records of the claim.
    """
    require_code(claim.entry, cells.values())
    _require_data(claim.entry, load_pool(claim.entry.scenario.dataset).digest)
    guard = guarded(options, [each.scenario for each in cells.values()])
    played, _ = play_each(list(cells.values()), seeds, guard, watcher, out, strict=True)
    comparisons = []
    for part, planned in cells.items():
        records = sorted(played.get(planned, []), key=lambda record: record.scenario.seed)
        if len(records) == len(seeds):
            comparisons.append(ReplayedCell(part, claim.of(part), records))
    _require_others(claim.entry, comparisons, out)
    return comparisons


def _require_data(entry: Entry, digest: str) -> None:
    """Raise `ConfigError` unless these are the data of an entry."""
    if digest != entry.data_digest:
        theirs = f"{entry.scenario.dataset} with sha256 {entry.data_digest[:12]}..."
        raise ConfigError(
            f"a replay must be on the data of the entry, {theirs}, got {digest[:12]}...; let "
            "FEDBENCH_DATA name a folder that has them"
        )


def _require_others(entry: Entry, comparisons: Sequence[ReplayedCell], out: Path | None) -> None:
    """Raise `ConfigError` if a cell would be compared with its own records, or on other data."""
    for each in comparisons:
        for now in each.again:
            _require_data(entry, now.data_digest)
        pairs = zip(each.claimed, each.again, strict=True)
        if any(before.timing == now.timing for before, now in pairs):
            raise ConfigError(
                f"--out must be a store without the records of the entry, got {out}; "
                "they would be compared with themselves"
            )


def stored(
    claim: ClaimedEntry, chosen: Sequence[StagedCell], out: Path | None
) -> list[ReplayedCell]:
    """Compare cells with the runs in ``out``, which the entry's own code played elsewhere.

    So an entry can be replayed when the installed code is newer: a board outlives the code of its
    entries. Cells without a run of every seed are left out. `ConfigError` if the entry has files of
    other packages, which only this code isolates, or if ``out`` has no records.
    """
    entry = claim.entry
    if out is None or not out.is_dir():
        return []
    if entry.sources:
        raise ConfigError(
            f"{entry.file_name} must be played again by its own code, {entry.code}, since only "
            f"what plays isolates its files of other packages, got {code_version()} and --out {out}"
        )
    own = [record for record in collect([out]) if record.environment.fedbench == entry.code]
    by_scenario = {record.scenario: record for record in own}
    comparisons = []
    for part in chosen:
        before = claim.of(part)
        now = [by_scenario[r.scenario] for r in before if r.scenario in by_scenario]
        if len(now) == len(before):
            comparisons.append(ReplayedCell(part, before, now))
    _require_others(claim.entry, comparisons, out)
    return comparisons


def commands(claim: ClaimedEntry, missing: Sequence[StagedCell], out: Path) -> list[str]:
    """Return what plays cells with the entry's own code, wherever that is: a command a stage."""
    lines = []
    for stage in dict.fromkeys(part.stage for part in missing):
        attacks = [part.attack for part in missing if part.stage == stage]
        seeds = [record.scenario.seed for record in claim.of(StagedCell(stage, attacks[0]))]
        played = command(claim.entry.scenario, attacks, seeds)
        lines.append(f"{played} --out {shlex.quote(str(out))}")
    return lines


def require_code(entry: Entry, cells: Iterable[Cell]) -> None:
    """Raise `ConfigError` unless the code that is installed here is that of an entry.

    So no hours are spent on runs that `check` would refuse as a replay.
    """
    installed = code_version()
    if installed != entry.code:
        raise ConfigError(
            f"{entry.file_name} must be played again by its own code, {entry.code}, got "
            f"{installed}; install that version"
        )
    files = {source.sha256 for source in entry.sources}
    for planned in cells:
        for source in resolve(planned.scenario).sources:
            if source.sha256 not in files:
                raise ConfigError(
                    f"{entry.file_name} must be played again by the files that it names, got "
                    f"another {Path(source.path).name}; install the versions on its page"
                )


def guarded(options: Options, scenarios: Sequence[Scenario]) -> Options:
    """Return options that isolate attacks and defenses of other packages."""
    texts = [(kind, getattr(s, kind)) for s in scenarios for kind in ("attack", "defense")]
    foreign = any(registry.is_foreign(kind, text) for kind, text in texts if text != "own")
    return dataclasses.replace(options, isolate=options.isolate or foreign)


def unread(entry: Entry, read: Collection[str]) -> list[Source]:
    """Return the files of an entry that can find the test data in a replay, and nobody has read.

    Attacks and rules of other packages are isolated. All else plays in the process that holds the
    data: if any of it is another package's, all files of the entry must have been read, by their
    SHA-256.
    """
    played = entry.scenario
    beside = ("protocol", "mechanism", "model", "dataset", "partition")
    if not any(registry.is_foreign(kind, str(getattr(played, kind))) for kind in beside):
        return []
    return [source for source in entry.sources if source.sha256 not in read]


def has_read(entry: Entry, digits: Sequence[str]) -> list[str]:
    """Return the SHA-256 of an entry's files that begin with these ``digits``, 12 or more.

    `ConfigError` if no file begins so, or another one must be read before a replay.
    """
    starts = tuple(map(str.lower, digits))
    for start in starts:
        if len(start) < 12 or not any(each.sha256.startswith(start) for each in entry.sources):
            files = few(f"{each.sha256[:12]} of {each.module}" for each in entry.sources)
            hint = f"its files are {files}" if files else "this entry has none, leave it out"
            raise ConfigError(
                "--read must be the first digits, 12 or more, of the SHA-256 of a file of another "
                f"package, got {start!r}; {hint}"
            )
    read = [each.sha256 for each in entry.sources if each.sha256.startswith(starts)]
    if left := unread(entry, read):
        first = left[0]
        raise ConfigError(
            "--read must name every file of another package, since it plays beside the test data, "
            f"got none for {first.module} of {first.package or 'no package'}; read that file, then "
            f"say --read {first.sha256[:12]}"
        )
    return read


def require_name(by: str) -> None:
    """Raise `ConfigError` unless a replay may bear this name of whoever plays it."""
    try:
        TypeAdapter(Title).validate_python(by)
    except ValidationError as error:
        raise ConfigError(refusal("--by", error)) from error


def keep(
    claim: ClaimedEntry, comparisons: Sequence[ReplayedCell], by: str, read: Sequence[str] = ()
) -> Entry:
    """Write the records of a replay beside the entry, and what they prove into its file.

    ``read`` are the SHA-256 of files that whoever played it has read.
    """
    records = [record for each in comparisons for record in each.again]
    first = records[0].environment
    names = ("platform", "processor", "device", "torch")
    replay = Replay(
        by=by,
        code=first.fedbench,
        **{name: getattr(first, name) for name in names},
        digests=[record.digest for record in records],
        read=list(read),
    )
    every = [*claim.entry.replays, replay]
    entry = claim.entry.model_copy(update={"replays": every})
    after = dataclasses.replace(claim, entry=entry, replayed=[*claim.replayed, records])
    entry = entry.model_copy(update={"status": status(after)})
    with boards.archived(boards.replay(claim.path, len(every)), records):
        write_atomically(claim.path, entry.to_json().encode())
    return entry
