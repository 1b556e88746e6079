"""Rows of a report: cells over their seeds, each beside the clean cell of its system."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import itemgetter
from typing import Any

from fedbench.experiment.cells import Cell
from fedbench.experiment.measurements import MEASURED, aggregated
from fedbench.experiment.record import Privacy, Record
from fedbench.results.aggregate import aggregate, differences
from fedbench.results.fields import Entry


@dataclass(frozen=True)
class Row:
    """One cell over its finished seeds; ``row[name]`` is a measured field over them.

    Args:
        cell: The cell.
        records: Records of it, one for each seed, at least one.
        clean: Row of the same system without attack, if it has finished.
        worst: Whether this attack has the lowest mean accuracy of its system.
        twins: Records of a backdoor's clean twin, see `Cell.twin`.
        tried: Number of candidates from which it was chosen on validation data; 0 if it was asked
            for.
        attacks: Number of attacks that are planned for its system.
        missing: Number of these that have not finished every seed: until they have, the lowest
            accuracy is no worst case.
    """

    cell: Cell
    records: tuple[Record, ...]
    clean: Row | None = None
    worst: bool = False
    twins: tuple[Record, ...] = ()
    tried: int = 0
    attacks: int = 0
    missing: int = 0

    @cached_property
    def _measured(self) -> Entry:
        return aggregate([{m.name: m.read(record) for m in MEASURED} for record in self.records])

    def __getitem__(self, name: str) -> Any:
        return self._measured[name]

    @property
    def accuracy(self) -> float:
        """Mean accuracy over the seeds, in [0, 1]."""
        return float(self["accuracy"])

    @property
    def accuracy_std(self) -> float:
        """Sample standard deviation over the seeds; 0 for one seed."""
        return self["accuracy_std"] or 0.0

    def accuracies(self) -> list[float]:
        """Return the accuracy at the last round of each seed."""
        return [record.result.accuracy for record in self.records]

    def impacts(self) -> list[float]:
        """Return clean minus attacked accuracy of each seed that both have; none if clean."""
        if self.clean is None or self.cell.clean:
            return []
        clean, attacked = (
            {record.scenario.seed: record.result.accuracy for record in row.records}
            for row in (self.clean, self)
        )
        return differences(clean, attacked)

    @property
    def impact(self) -> float | None:
        """Mean of the `impacts`, None if there are none."""
        mean: float | None = aggregated("mean", self.impacts())
        return mean

    @property
    def over_clean(self) -> float | None:
        """Success minus that of the clean twin, over the seeds that both have."""
        pairs = [(r.result.success, twin.result.success) for r, twin in self._with_twins()]
        excess: float | None = aggregated("mean", [_difference(x, y) for x, y in pairs])
        return excess

    @property
    def half_life(self) -> float | None:
        """Median over seeds of `half_life`, in rounds."""
        lives = [half_life(record, twin) for record, twin in self._with_twins()]
        finished = [x for x in lives if x is not None]
        return statistics.median(finished) if finished else None

    def _with_twins(self) -> list[tuple[Record, Record]]:
        twins = {r.scenario.seed: r for r in self.twins}
        return [(r, twins[r.scenario.seed]) for r in self.records if r.scenario.seed in twins]

    def client(self, what: str) -> float:
        """Mean over seeds of ``mean``, ``std``, ``min`` or ``max`` of the per-client accuracy."""
        return statistics.fmean(getattr(r.result.per_client, what) for r in self.records)

    @property
    def privacy(self) -> Privacy | None:
        """Guarantee of the seed that gave away most; None without one."""
        guarantees = [r.privacy for r in self.records if r.privacy is not None]
        return max(guarantees, key=lambda x: _or_infinite(x.epsilon), default=None)


def half_life(record: Record, twin: Record) -> float | None:
    """Count the rounds without attack until a backdoor's success over clean has halved.

    They start at the last round in which the attack acted and end at the first look at test data
    at which at most half is left of the excess at the last look until then; infinite if there is
    no such look.

    Args:
        record: Record of a run with ``attack_until``.
        twin: Record of its clean twin, with the same seed.

    Returns:
        None if the attack never stops, or had no success over clean when it stopped.
    """
    until = record.scenario.attack_until
    if until is None or until >= record.scenario.rounds:
        return None
    clean = {r.step: r.success for r in twin.rounds}
    *_, last = range(record.scenario.attack_from, until, record.scenario.attack_every)
    looks = [(r.step, _difference(r.success, clean.get(r.step))) for r in record.rounds]
    excess = {step: x for step, x in looks if x is not None}
    acted = [step for step in excess if step <= last]
    if not acted or excess[acted[-1]] <= 0:
        return None
    half = excess[acted[-1]] / 2
    over = (step - last for step, x in excess.items() if step > last and x <= half)
    return next(over, math.inf)


def _difference(x: float | None, y: float | None) -> float | None:
    return None if x is None or y is None else x - y


def _or_infinite(epsilon: float | None) -> float:
    """Return infinity for None: JSON has none, so it was written as null."""
    return math.inf if epsilon is None else epsilon


def pooled(rows: Sequence[Row]) -> Row:
    """Return the rows of one system as one row, whose price is the system's.

    Bits are the mean over all cells, the clean one included, and epsilon is the largest of any run,
    as in a leaderboard: what the run under the worst attack cost is not what the system costs.
    """
    return Row(rows[0].cell, tuple(record for row in rows for record in row.records))


def rows(
    cells: Sequence[Cell], records: dict[Cell, list[Record]], seeds: int | None = None
) -> list[Row]:
    """Return a row for each cell with a finished seed, in the cells' order, the worst marked.

    Clean twins of backdoors have no row: their numbers are in the rows that they belong to. Of the
    candidates of ``strongest`` that were not asked for by name, each system has one: the one with
    the lowest mean accuracy on *validation* data, so that its test accuracy was not chosen.

    Args:
        cells: All planned cells.
        records: Finished runs of each cell.
        seeds: Number of runs that each cell shall have; by default that of the cell with most.
    """
    twins = {
        cell
        for cell in cells
        if cell.dormant and any(r.result.success is not None for r in records.get(cell, ()))
    }
    played = [cell for cell in cells if records.get(cell) and cell not in twins]
    tried = strongest(played, records)
    done = [cell for cell in played if cell.listed or cell in tried]
    clean = {cell.defended: Row(cell, tuple(records[cell])) for cell in done if cell.clean}
    attacks: dict[str, list[Cell]] = {}
    for cell in cells:
        if not cell.clean and not cell.dormant:
            attacks.setdefault(cell.system, []).append(cell)
    wanted = max(map(len, records.values()), default=0) if seeds is None else seeds
    missing = {
        system: sum(len(records.get(cell, ())) < wanted for cell in planned)
        for system, planned in attacks.items()
    }
    table = [
        Row(
            cell,
            tuple(records[cell]),
            clean.get(cell.defended),
            twins=tuple(records[cell.twin]) if cell.twin in twins else (),
            tried=tried.get(cell, 0),
            attacks=len(attacks.get(cell.system, ())),
            missing=missing.get(cell.system, 0),
        )
        for cell in done
    ]
    worst: dict[str, Row] = {}
    for row in table:
        acts = not row.cell.clean and not row.cell.dormant and row["malicious_messages"]
        lowest = worst.get(row.cell.system)
        if acts and (lowest is None or row.accuracy < lowest.accuracy):
            worst[row.cell.system] = row
    return [replace(row, worst=row is worst.get(row.cell.system)) for row in table]


def strongest(cells: Sequence[Cell], records: dict[Cell, list[Record]]) -> dict[Cell, int]:
    """Return each system's worst candidate on validation data, and how many were tried."""
    tried: dict[str, list[tuple[float, Cell]]] = {}
    for cell in cells:
        mean = aggregated("mean", [r.result.validation_accuracy for r in records[cell]])
        if cell.sought and mean is not None:
            tried.setdefault(cell.system, []).append((mean, cell))
    return {min(group, key=itemgetter(0))[1]: len(group) for group in tried.values()}
