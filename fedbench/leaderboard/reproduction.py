"""Compare cells of an entry with the same cells played again."""

import hashlib
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fedbench.experiment.cells import Cell
from fedbench.experiment.record import Record
from fedbench.leaderboard.entry import Entry, Repeated, Reproduction, Status
from fedbench.leaderboard.rules import Rules, Tolerance
from fedbench.leaderboard.score import is_clean, mean
from fedbench.results.gather import shortened


def order(entry: Entry) -> list[str]:
    """Return the attacks of an entry: the worst one, the clean run, others by a hash of the id.

    The hash keeps anybody from choosing which cells are played again.
    """

    def place(attack: str) -> tuple[bool, bool, str]:
        drawn = hashlib.sha256(f"{entry.id} {attack}".encode()).hexdigest()
        return attack != entry.score.attack, not is_clean(attack), drawn

    return sorted((cell.attack for cell in entry.cells), key=place)


def cell(entry: Entry, attack: str) -> Cell:
    """Return the cell that is played: as described, with data dealt anew for every seed."""
    return Cell(shortened(entry.scenario.model_copy(update={"attack": attack, "data_seed": None})))


@dataclass(frozen=True)
class Comparison:
    """A cell as it is claimed and as it was played again, over the same seeds.

    Args:
        attack: Its attack.
        claimed: Records of the entry.
        again: Records that were made now.
    """

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
        return Repeated(
            attack=self.attack,
            accuracy=mean(self.again),
            difference=mean(self.again) - mean(self.claimed),
            agrees=not self.apart(tolerance),
        )


def _far(claimed: float | None, again: float | None, limit: float, relative: bool) -> bool:
    if claimed is None or again is None:
        return claimed is not again
    return abs(claimed - again) > (limit * abs(claimed) if relative else limit)


def spent(records: Sequence[Record]) -> float | None:
    """Return the largest epsilon; None if any is not finite, or without a mechanism."""
    values = [r.result.epsilon for r in records]
    finite = [x for x in values if x is not None]
    return max(finite) if len(finite) == len(values) else None


def reproduction(comparisons: Sequence[Comparison], rules: Rules) -> Reproduction:
    """Return the reproduction that is appended to an entry."""
    first = comparisons[0].again[0].environment
    return Reproduction(
        code=first.fedbench,
        platform=first.platform,
        device=first.device,
        torch=first.torch,
        seeds=[r.scenario.seed for r in comparisons[0].again],
        cells=[each.repeated(rules.tolerance) for each in comparisons],
    )


def status(reproductions: Sequence[Reproduction], seeds: Sequence[int] = ()) -> Status:
    """Return ``contested`` while any reproduction that counts disagrees, else how far it came.

    An entry is ``reproduced`` once a cell was played again with all ``seeds``. A later reproduction
    of a cell replaces an earlier one if it has all its seeds.
    """
    standing: dict[str, list[tuple[set[int], bool]]] = {}
    for each in reproductions:
        played = set(each.seeds)
        for again in each.cells:
            others = [word for word in standing.get(again.attack, []) if not word[0] <= played]
            standing[again.attack] = [*others, (played, again.agrees)]
    words = [word for cell_words in standing.values() for word in cell_words]
    if not all(agrees for _, agrees in words):
        return "contested"
    return "reproduced" if any(set(seeds) <= played for played, _ in words) else "claimed"


def coverage(entry: Entry) -> str:
    """Say how much of an entry was played again: cells, and seeds that each of them had."""
    most: dict[str, int] = {}
    for each in entry.reproductions:
        for again in each.cells:
            most[again.attack] = max(most.get(again.attack, 0), len(each.seeds))
    seeds = f"{min(most.values(), default=0)} of {len(entry.seeds)} seeds"
    return f"{len(most)} of {len(entry.cells)} cells, {seeds}"


def appended(entry: Entry, latest: Reproduction) -> Entry:
    """Return the entry with one more reproduction; its id stays."""
    every = [*entry.reproductions, latest]
    return entry.model_copy(update={"reproductions": every, "status": status(every, entry.seeds)})


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
