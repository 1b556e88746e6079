"""What a picture is about: systems under attack, and what was run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedbench.tables import columns

if TYPE_CHECKING:
    from fedbench.experiment.cells import Cell
    from fedbench.results.aggregate import Interval
    from fedbench.results.summary import Row


@dataclass(frozen=True)
class System:
    """What is attacked, with and without attack.

    Args:
        name: Protocol, mechanism, rule and varied fields.
        rows: The clean one first.
    """

    name: str
    rows: list[Row]

    @property
    def clean(self) -> Row | None:
        """Nobody attacks."""
        return self.rows[0] if self.rows[0].cell.clean else None

    @property
    def attacked(self) -> list[Row]:
        """Somebody does."""
        return [row for row in self.rows if not row.cell.clean]

    @property
    def worst(self) -> Row | None:
        """Under the attack with the lowest accuracy."""
        return next((row for row in self.rows if row.worst), None)

    @property
    def price(self) -> Row:
        """Bits and epsilon of the system over all its cells, see `pooled`."""
        from fedbench.results.summary import pooled

        return pooled(self.rows)

    @property
    def shown(self) -> Row:
        """The one that stands for the system: its worst case; the clean run if nobody attacks."""
        return self.worst or self.rows[0]


def systems(rows: Sequence[Row]) -> list[System]:
    """The best worst case first; last those that nobody has attacked."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.cell.system, []).append(row)
    found = [
        System(name, sorted(group, key=lambda row: not row.cell.clean))
        for name, group in groups.items()
    ]
    return sorted(found, key=lambda one: -one.worst.accuracy if one.worst else 1.0)


def attacks(rows: Sequence[Row]) -> list[str]:
    """Those that were played, in order; ``none`` is the first of them."""
    return ["none", *dict.fromkeys(row.cell.attack for row in rows if not row.cell.clean)]


def setting(rows: Sequence[Row]) -> str:
    """What was run, in a line; of what differs the range, or how many there are."""
    scenarios = [row.cell.scenario for row in rows]
    numbers: dict[str, Sequence[float]] = {
        "clients": [s.clients for s in scenarios],
        "% malicious": [round(100 * s.malicious, 6) for s in scenarios],
        "rounds": [s.rounds for s in scenarios],
        "seeds": [len(row.records) for row in rows],
    }
    names = {kind: [getattr(s, kind) for s in scenarios] for kind in _SEVERAL}
    parts = [_names(kind, texts) for kind, texts in names.items()]
    parts += [f"{_range(values)} {unit}" for unit, values in numbers.items()]
    return ", ".join(parts).replace(", 1 seeds", ", 1 seed").replace(" 1 rounds", " 1 round")


_SEVERAL = {"dataset": "data sets", "model": "models", "partition": "partitions"}


def _names(kind: str, texts: Iterable[str]) -> str:
    found = list(dict.fromkeys(texts))
    return found[0] if len(found) == 1 else f"{len(found)} {_SEVERAL[kind]}"


def _range(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"


def sureness(rows: Sequence[Row], sign: str, seeds: Sequence[int] = ()) -> str:
    """What the ``sign`` of an interval means, and of whom; ``seeds``: how many each is over."""
    counts = seeds or [len(row.records) for row in rows]
    if max(counts) > 1:
        paired = "paired " if seeds else ""
        said = (
            f"{sign}: 95 % interval of the mean over {_range(counts)} {paired}seeds (Student's t)."
        )
    else:
        said = "One seed, so no interval."
    return said + cautions(rows)


def cautions(rows: Sequence[Row]) -> str:
    """Warnings for a caption: code that changed between two records, attacks that are missing."""
    played_by = {record.environment.fedbench for row in rows for record in row.records}
    versions = f"Played by {len(played_by)} versions of the code." if len(played_by) > 1 else ""
    return "".join(f" {warning}" for warning in (versions, columns.unfinished(rows)) if warning)


def unruled(cell: Cell) -> str:
    """The name of a system without its rule."""
    return _head(cell) + where(cell)


def where(cell: Cell) -> str:
    """What its name says of the varied fields."""
    return cell.system.removeprefix(f"{_head(cell)} + {cell.defense}")


def _head(cell: Cell) -> str:
    mechanism = cell.scenario.mechanism
    return cell.protocol + ("" if mechanism == "none" else f" + {mechanism}")


def cut(found: Interval | None) -> Interval | None:
    """An interval of accuracies, cut to what an accuracy can be."""
    return None if found is None else (max(found[0], 0.0), min(found[1], 1.0))


def tens(shares: Iterable[float]) -> tuple[float, float]:
    """Tens of percent around the shares.

    >>> tens([0.31, 0.58]), tens([0.3]), tens([1.0])
    ((30, 60), (30, 40), (90, 100))
    """
    found = list(shares)
    low = min(10 * math.floor(10 * min(found)), 90)
    return low, max(10 * math.ceil(10 * max(found)), low + 10)
