"""Rows of results grouped by the system under attack, and the words that describe a figure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedbench.results.aggregate import Interval, interval
from fedbench.tables import columns, report

if TYPE_CHECKING:
    from fedbench.experiment.cells import Cell
    from fedbench.results.summary import Row


MIN_INTERVAL_SEEDS = 5  # seeds from which on an interval of the mean says something


@dataclass(frozen=True)
class SystemRows:
    """Rows of one system, with and without attack."""

    name: str  # protocol, mechanism, defense and varied fields
    rows: list[Row]  # the clean one first

    @property
    def clean(self) -> Row | None:
        """Row of the run without attack; None if there is none."""
        return self.rows[0] if self.rows[0].cell.clean else None

    @property
    def attacked(self) -> list[Row]:
        """Rows of the runs under attack."""
        return [row for row in self.rows if not row.cell.clean]

    @property
    def worst(self) -> Row | None:
        """Row of the attack with the lowest accuracy; None if nobody attacks."""
        return next((row for row in self.rows if row.worst), None)

    @property
    def ends(self) -> list[Row]:
        """The clean row and the worst row, as far as they exist."""
        return [row for row in (self.clean, self.worst) if row] or self.rows[:1]

    @property
    def cost(self) -> Row:
        """Bits and epsilon of the system over all its cells, see `pooled`."""
        from fedbench.results.summary import pooled

        return pooled(self.rows)

    @property
    def shown(self) -> Row:
        """Row that stands for the system: its worst case, or the clean run if nobody attacks."""
        return self.worst or self.rows[0]


def systems(rows: Sequence[Row]) -> list[SystemRows]:
    """Group rows by system: the best worst case first, systems that nobody has attacked last."""
    listed = [SystemRows(name, group) for name, group in report.systems(rows).items()]
    return sorted(listed, key=lambda system: -system.worst.accuracy if system.worst else 1.0)


def attacks(rows: Sequence[Row]) -> list[str]:
    """Return the names of the attacks in order of appearance, after ``none``."""
    return ["none", *dict.fromkeys(row.cell.attack for row in rows if not row.cell.clean)]


_PLURALS = {"dataset": "data sets", "model": "models", "partition": "partitions"}


def setting(rows: Sequence[Row]) -> str:
    """Describe in one line what was run; where runs differ, give the range or the number."""
    scenarios = [row.cell.scenario for row in rows]
    numbers: dict[str, Sequence[float]] = {
        "clients": [s.clients for s in scenarios],
        "% malicious": [round(100 * s.malicious, 6) for s in scenarios],
        "rounds": [s.rounds for s in scenarios],
        "seeds": [len(row.records) for row in rows],
    }
    parts = []
    for kind, plural in _PLURALS.items():
        names = list(dict.fromkeys(getattr(s, kind) for s in scenarios))
        parts.append(names[0] if len(names) == 1 else f"{len(names)} {plural}")
    remarks = {tuple(s.remarks) for s in scenarios}
    parts += remarks.pop() if len(remarks) == 1 else ()  # else the systems' names have them
    parts += [f"{_range(values)} {unit}" for unit, values in numbers.items()]
    return ", ".join(parts).replace(", 1 seeds", ", 1 seed").replace(" 1 rounds", " 1 round")


def tested(rows: Sequence[Row]) -> str:
    """Name the data on which the accuracy of these rows was measured, for a caption."""
    return columns.tested({row.cell.scenario.split for row in rows})


def _range(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"


def sureness(rows: Sequence[Row], sign: str, seeds: Sequence[int] = ()) -> str:
    """Explain what the ``sign`` of an interval means, and add `cautions`.

    ``seeds`` are the pairs of seeds behind each interval; empty for intervals of means.
    """
    counts = seeds or [len(row.records) for row in rows]
    if max(counts) == 1:
        return "One seed, so no interval." + cautions(rows)
    paired = "paired " if seeds else ""
    mean = f"95 % interval of the mean over {_range(counts)} {paired}seeds (Student's t)"
    if max(counts) < MIN_INTERVAL_SEEDS:
        mean = f"lowest to highest of {_range(counts)} {paired}seeds"
    elif min(counts) < MIN_INTERVAL_SEEDS:
        mean += f", of fewer than {MIN_INTERVAL_SEEDS} the lowest to the highest"
    return f"{sign}: {mean}.{cautions(rows)}"


def cautions(rows: Sequence[Row]) -> str:
    """Return warnings for a caption: several versions of the code, attacks that are missing."""
    played_by = {record.environment.fedbench for row in rows for record in row.records}
    versions = f"Played by {len(played_by)} versions of the code." if len(played_by) > 1 else ""
    return "".join(f" {warning}" for warning in (versions, columns.unfinished(rows)) if warning)


def undefended(cell: Cell) -> str:
    """Return the name of a system without its defense."""
    return _head(cell) + varied(cell)


def varied(cell: Cell) -> str:
    """Return the part of a system's name that stands for the varied fields."""
    return cell.system.removeprefix(f"{_head(cell)} + {cell.defense}")


def _head(cell: Cell) -> str:
    mechanism = cell.scenario.mechanism
    return cell.protocol + ("" if mechanism == "none" else f" + {mechanism}")


def ends(row: Row) -> Interval | None:
    """Return the interval of a row's mean accuracy, cut to [0, 1]; None for one seed."""
    return cut_interval(row.accuracies())


def cut_interval(accuracies: Sequence[float]) -> Interval | None:
    """Return the `sure_range` of some accuracies, cut to [0, 1]; None for one."""
    bounds = sure_range(accuracies)
    return bounds and (max(bounds[0], 0.0), min(bounds[1], 1.0))


def sure_range(values: Sequence[float]) -> Interval | None:
    """Return the interval of the mean; of fewer than `MIN_INTERVAL_SEEDS` values their range.

    Student's interval of two or three seeds reaches from 0 to 100 % and hides all others.

    >>> sure_range([0.2, 0.4]), sure_range([0.5])
    ((0.2, 0.4), None)
    """
    if len(values) >= MIN_INTERVAL_SEEDS:
        return interval(values)
    return (min(values), max(values)) if len(values) > 1 else None


def tens(shares: Iterable[float]) -> tuple[float, float]:
    """Return the tens of percent around some shares.

    >>> tens([0.31, 0.58]), tens([0.3]), tens([1.0])
    ((30, 60), (30, 40), (90, 100))
    """
    values = list(shares)
    low = min(10 * math.floor(10 * min(values)), 90)
    return low, max(10 * math.ceil(10 * max(values)), low + 10)
