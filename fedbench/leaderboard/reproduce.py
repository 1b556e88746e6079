"""Play cells of an entry again, compare them with its records, and write that into its file."""

import dataclasses
import hashlib
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedbench.core import registry
from fedbench.core.errors import ConfigError
from fedbench.core.files import write_atomically
from fedbench.experiment.cells import Cell
from fedbench.experiment.record import Record
from fedbench.experiment.scenario import Scenario
from fedbench.leaderboard import board as boards
from fedbench.leaderboard.build import is_clean, mean
from fedbench.leaderboard.check import check
from fedbench.leaderboard.entry import Entry, Repeated, Reproduction, status
from fedbench.leaderboard.entry_rules import errors
from fedbench.leaderboard.rules import Rules, Tolerance, numbered, read_rules
from fedbench.results.gather import shortened
from fedbench.sweep.drive import play_each
from fedbench.sweep.local import Options
from fedbench.sweep.watch import Watcher


@dataclass(frozen=True, eq=False)
class Claim:
    """An entry that keeps the rules that it was scored under, and the records beside its file."""

    path: Path
    entry: Entry
    records: Sequence[Record]
    rules: Rules

    def of(self, attack: str, seeds: Sequence[int]) -> list[Record]:
        """Return the records of a cell, in the order of the seeds."""
        by_seed = {r.scenario.seed: r for r in self.records if r.scenario.attack == attack}
        return [by_seed[seed] for seed in seeds]


def claim(path: Path) -> Claim:
    """Read the entry in a file of a board; `ConfigError` if it breaks a rule."""
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
    rules = read_rules(numbered(boards.find(path))[entry.rules])
    return Claim(path, entry, boards.records(path), rules)


def order(entry: Entry) -> list[str]:
    """Return the attacks of an entry: the worst one, the clean run, others by a hash of the id."""

    def place(attack: str) -> tuple[bool, bool, str]:  # nobody chooses what is played again
        drawn = hashlib.sha256(f"{entry.id} {attack}".encode()).hexdigest()
        return attack != entry.score.attack, not is_clean(attack), drawn

    return sorted((cell.attack for cell in entry.cells), key=place)


def cell(entry: Entry, attack: str) -> Cell:
    """Return the cell that is played: as described, with data dealt anew for every seed."""
    return Cell(shortened(entry.scenario.model_copy(update={"attack": attack, "data_seed": None})))


@dataclass(frozen=True)
class Comparison:
    """A cell as it is claimed and as it was played again, over the same seeds."""

    attack: str
    claimed: Sequence[Record]
    again: Sequence[Record]

    def pairs(self) -> Iterator[tuple[str, float | None, float | None]]:
        """Yield the numbers that are compared: name, claimed value, value of the run again."""
        yield "accuracy", mean(self.claimed), mean(self.again)
        for name in ("uplink_bits_per_parameter", "downlink_bits_per_parameter"):
            claimed, again = (
                statistics.fmean(getattr(r.result, name) or 0.0 for r in side)
                for side in (self.claimed, self.again)
            )
            yield name, claimed, again
        yield "epsilon", spent(self.claimed), spent(self.again)

    def apart(self, tolerance: Tolerance) -> list[str]:
        """Return the names of numbers that differ by more than the rules allow."""
        limits = {"accuracy": tolerance.accuracy, "epsilon": tolerance.epsilon}
        return [
            name
            for name, claimed, again in self.pairs()
            if _far(claimed, again, limits.get(name, tolerance.bits), name != "accuracy")
        ]

    def repeated(self, tolerance: Tolerance) -> Repeated:
        """Return the cell as the entry lists it."""
        accuracy = mean(self.again)
        difference = accuracy - mean(self.claimed)
        agrees = not self.apart(tolerance)
        return Repeated(attack=self.attack, accuracy=accuracy, difference=difference, agrees=agrees)


def _far(claimed: float | None, again: float | None, limit: float, relative: bool) -> bool:
    if claimed is None or again is None:
        return claimed is not again
    return abs(claimed - again) > (limit * abs(claimed) if relative else limit)


def spent(records: Sequence[Record]) -> float | None:
    """Return the largest epsilon; None if any is not finite, or without a mechanism."""
    finite = [r.result.epsilon for r in records if r.result.epsilon is not None]
    return max(finite) if len(finite) == len(records) else None


def again(
    claim: Claim,
    attacks: Sequence[str],
    seeds: Sequence[int],
    options: Options,
    watcher: Watcher,
    out: Path | None,
) -> list[Comparison]:
    """Play cells again with the code that is installed; less than all of them on Ctrl-C.

    Where an attack or the rule is another package's, they are isolated: they come from whoever
    submitted the entry. `ConfigError` if a run cannot be played here, or if ``out`` has the very
    records of the claim.
    """
    cells = {attack: cell(claim.entry, attack) for attack in attacks}
    options = guarded(options, [entry.scenario for entry in cells.values()])
    played, _ = play_each(list(cells.values()), seeds, options, watcher, out, strict=True)
    comparisons = [
        Comparison(attack, claim.of(attack, seeds), played.get(planned, []))
        for attack, planned in cells.items()
    ]
    for each in comparisons:
        pairs = zip(each.claimed, each.again, strict=False)
        if any(before.timing == now.timing for before, now in pairs):
            raise ConfigError(
                f"--out must be a store without the records of the entry, got {out}; "
                "they would be compared with themselves"
            )
    return comparisons


def guarded(options: Options, scenarios: Sequence[Scenario]) -> Options:
    """Return options that isolate attacks and defenses of other packages."""
    texts = [(kind, getattr(s, kind)) for s in scenarios for kind in ("attack", "defense")]
    foreign = any(registry.is_foreign(kind, text) for kind, text in texts if text != "own")
    return dataclasses.replace(options, isolate=options.isolate or foreign)


def reproduction(comparisons: Sequence[Comparison], rules: Rules) -> Reproduction:
    """Return the reproduction that is appended to an entry."""
    first = comparisons[0].again[0].environment
    return Reproduction(
        code=first.fedbench,
        **{name: getattr(first, name) for name in ("platform", "device", "torch")},
        seeds=[r.scenario.seed for r in comparisons[0].again],
        cells=[each.repeated(rules.tolerance) for each in comparisons],
    )


def appended(entry: Entry, latest: Reproduction) -> Entry:
    """Return the entry with one more reproduction; its id stays."""
    every = [*entry.reproductions, latest]
    return entry.model_copy(update={"reproductions": every, "status": status(every, entry.seeds)})


def keep(claim: Claim, comparisons: Sequence[Comparison]) -> Entry:
    """Append the comparisons to the file of the entry."""
    entry = appended(claim.entry, reproduction(comparisons, claim.rules))
    write_atomically(claim.path, entry.to_json().encode())
    return entry
