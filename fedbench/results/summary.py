"""Rows of a report, each beside the clean cell of its system."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter
from typing import Any

from fedbench.experiment.cells import Cell
from fedbench.experiment.measurements import MEASURED, aggregated
from fedbench.experiment.record import Privacy, Record
from fedbench.results.aggregate import aggregate, differences, grouped, worst_by_seed
from fedbench.results.fields import Entry


@dataclass(frozen=True)
class Row:
    """One cell over its finished seeds; ``row[name]`` is a measured field over them."""

    cell: Cell
    records: tuple[Record, ...]  # one for each seed, at least one
    clean: Row | None = None  # row of the same system without attack, if it has finished
    worst: bool = False  # has this attack the lowest mean accuracy of its system?
    twins: tuple[Record, ...] = ()  # of a backdoor's clean twin, see `Cell.twin`
    tried: int = 0  # candidates from which it was chosen on validation data; 0: it was asked for
    attacks: int = 0  # that are planned for its system
    missing: int = 0  # of these, not all seeds finished: the lowest accuracy is no worst case yet
    same: str = ""  # an earlier attack on its system that sent the same messages

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

    @property
    def by_seed(self) -> dict[int, float]:
        """Accuracy at the last round, by seed."""
        return {record.scenario.seed: record.result.accuracy for record in self.records}

    @property
    def attacked(self) -> bool:
        """True if an attack acted that is no backdoor's twin, and had clients in the rounds."""
        clean = self.cell.clean or self.cell.dormant
        return not clean and bool(self["malicious_messages"])

    def impacts(self) -> list[float]:
        """Return clean minus attacked accuracy of each seed that both have; none if clean."""
        if self.clean is None or self.cell.clean:
            return []
        return differences(self.clean.by_seed, self.by_seed)

    @property
    def impact(self) -> float | None:
        """Mean of the `impacts`, None if there are none."""
        mean: float | None = aggregated("mean", self.impacts())
        return mean

    @property
    def over_clean(self) -> float | None:
        """Mean success minus that of the clean twin, over the seeds that both have, or None."""
        pairs = [(r.result.success, twin.result.success) for r, twin in self._with_twins()]
        excess: float | None = aggregated("mean", [_difference(x, y) for x, y in pairs])
        return excess

    @property
    def half_life(self) -> float | None:
        """Median over seeds of `half_life`, in rounds; None if no seed has one."""
        lives = [half_life(record, twin) for record, twin in self._with_twins()]
        finished = [x for x in lives if x is not None]
        return statistics.median(finished) if finished else None

    def _with_twins(self) -> list[tuple[Record, Record]]:
        twins = {r.scenario.seed: r for r in self.twins}
        return [(r, twins[r.scenario.seed]) for r in self.records if r.scenario.seed in twins]

    def client(self, what: str) -> float | None:
        """Mean over seeds of ``mean``, ``std``, ``min`` or ``max`` of the per-client accuracy.

        None where clients have no test data of their own.
        """
        spreads = [r.result.per_client for r in self.records if r.result.per_client is not None]
        return statistics.fmean(getattr(x, what) for x in spreads) if spreads else None

    @property
    def privacy(self) -> Privacy | None:
        """Guarantee of the seed that gave away most; None without one."""
        guarantees = [r.privacy for r in self.records if r.privacy is not None]
        # an infinite epsilon was written as null, because JSON has no infinity
        spent = [math.inf if x.epsilon is None else x.epsilon for x in guarantees]
        return guarantees[spent.index(max(spent))] if guarantees else None


def half_life(record: Record, twin: Record) -> float | None:
    """Count the rounds without attack until a backdoor's success over clean has halved.

    They start at the last round in which the attack acted and end at the first evaluation that has
    at most half of the excess of the last one until then; infinite if there is none, None if the
    attack never stops, or had no success over clean when it stopped.
    """
    until = record.scenario.attack_until
    if until is None or until >= record.scenario.rounds:
        return None
    clean = {r.step: r.success for r in twin.rounds}
    *_, last = range(record.scenario.attack_from, until, record.scenario.attack_every)
    differences = [(r.step, _difference(r.success, clean.get(r.step))) for r in record.rounds]
    excess = {step: x for step, x in differences if x is not None}
    acted = [step for step in excess if step <= last]
    if not acted or excess[acted[-1]] <= 0:
        return None
    half = excess[acted[-1]] / 2
    over = (step - last for step, x in excess.items() if step > last and x <= half)
    return next(over, math.inf)


def _difference(x: float | None, y: float | None) -> float | None:
    return None if x is None or y is None else x - y


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
    the lowest mean accuracy on *validation* data, so that its test accuracy was not chosen. Each
    cell shall have so many ``seeds``, by default those of the cell with most.
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
    planned = grouped(
        (cell for cell in cells if not cell.clean and not cell.dormant), attrgetter("system")
    )
    wanted = max(map(len, records.values()), default=0) if seeds is None else seeds
    missing = {
        system: sum(len(records.get(cell, ())) < wanted for cell in attacks)
        for system, attacks in planned.items()
    }
    table = [
        Row(
            cell,
            tuple(records[cell]),
            clean.get(cell.defended),
            twins=tuple(records[cell.twin]) if cell.twin in twins else (),
            tried=tried.get(cell, 0),
            attacks=len(planned.get(cell.system, ())),
            missing=missing.get(cell.system, 0),
        )
        for cell in done
    ]
    attacked = (row for row in table if row.attacked)
    systems = grouped(attacked, lambda row: row.cell.system).values()
    worst = [min(group, key=attrgetter("accuracy")) for group in systems]
    twin = {id(row): first for group in systems for row, first in repeated(group)}
    return [
        replace(row, worst=any(row is lowest for lowest in worst), same=twin.get(id(row), ""))
        for row in table
    ]


def repeated(rows: Sequence[Row]) -> Iterator[tuple[Row, str]]:
    """Yield the rows with the same messages as an earlier row, and that row's attack."""
    first: list[Row] = []
    for row in rows:
        twin = next((other for other in first if sent_the_same(row, other)), None)
        if twin is None:
            first.append(row)
        else:
            yield row, twin.cell.attack


def sent_the_same(row: Row, other: Row) -> bool:
    """Tell whether two attacks on one system sent the same messages with every seed.

    Records hold no messages, but what came of them: bits, rejected rows, the distance of the
    aggregate from that of honest messages, and the model's loss, in each round and in full
    precision. All that the server's side measured must be equal; what an attack says of itself,
    its notes, trials and queries, may differ.
    """
    if row.by_seed.keys() != other.by_seed.keys():
        return False
    own, others = ({r.scenario.seed: r for r in each.records} for each in (row, other))
    return all(_server_side(own[seed]) == _server_side(others[seed]) for seed in own)


def _server_side(record: Record) -> tuple[object, ...]:
    rounds = [replace(r, queries=0, trace=[], notes={}) for r in record.rounds]
    return record.data_digest, rounds, record.result


def lowest_by_seed(rows: Sequence[Row]) -> float | None:
    """Return `worst_by_seed` of the attacked rows of one system; None without any."""
    attacked = [row.by_seed for row in rows if row.attacked]
    return worst_by_seed(attacked) if attacked else None


def strongest(cells: Sequence[Cell], records: dict[Cell, list[Record]]) -> dict[Cell, int]:
    """Return each system's worst candidate on validation data, and how many were tried."""
    means = {
        cell: aggregated("mean", [r.result.validation_accuracy for r in records[cell]])
        for cell in cells
        if cell.sought
    }
    tried = grouped((cell for cell in means if means[cell] is not None), attrgetter("system"))
    return {min(group, key=means.__getitem__): len(group) for group in tried.values()}
