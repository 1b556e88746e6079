"""Queries to a store: cells, runs or failures, selected by conditions and ordered."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fedbench.core import registry
from fedbench.results import index
from fedbench.results.aggregate import INTERVAL, cells, place
from fedbench.results.fields import CELL, FAILED, RUN, Entry, Fields, known
from fedbench.results.filters import Condition

Each = Literal["cell", "run", "failure"]
FIELDS: dict[Each, Fields] = {"cell": CELL, "run": RUN, "failure": FAILED}
OF_RUNS: Fields = {name: kind for name, kind in RUN.items() if name not in CELL} | {
    "data_seed": "whole"
}


@dataclass(frozen=True)
class Answer:
    """Answer of a store to a query.

    Args:
        entries: Selected entries, in order.
        complaints: Troubles of the store, a line each.
    """

    entries: list[Entry]
    complaints: list[str]


@dataclass(frozen=True)
class Query:
    """Query to a store.

    Args:
        each: Kind of the entries.
        conditions: Conditions that must all hold. One about a seed, an id or a file selects the
            runs that cells are made of, any other one selects cells.
        columns: Fields that are wanted, at least one.
        sort: A field, or ``-field`` for the largest first; None: system by system.
    """

    each: Each
    conditions: tuple[Condition, ...]
    columns: tuple[str, ...]
    sort: str | None = None

    @classmethod
    def parse(
        cls,
        each: Each,
        where: Iterable[str] = (),
        columns: Iterable[str] | None = None,
        sort: str | None = None,
    ) -> Query:
        """Parse what was typed; without columns all fields are wanted.

        Raises:
            ConfigError: there is no such field, or it has no such values.
        """
        fields = FIELDS[each]
        asked = fields | OF_RUNS if each == "cell" else fields
        if sort is not None:
            known(sort.removeprefix("-"), fields, "--sort")
        named = fields if columns is None else columns
        return cls(
            each,
            tuple(Condition.parse(text, asked) for text in where),
            tuple(dict.fromkeys(known(name, fields, "--columns") for name in named)),
            sort,
        )

    @property
    def fields(self) -> Fields:
        """Fields that an entry has."""
        return FIELDS[self.each]

    def answer(self, store: Path) -> Answer:
        """Answer the query from the records in a folder.

        Raises:
            ConfigError: there is no such folder.
        """
        if self.each == "failure":
            failures = index.failures(store)
            return self._answer(failures.entries, self.conditions, failures.complaints())
        runs = index.runs(store)
        complaints = runs.complaints()
        if number := index.failed(store):
            plural = "s" if number > 1 else ""
            remedy = f"fedbench results {shlex.quote(str(store))} --failed"
            complaints.append(f"{number} run{plural} failed: {remedy}")
        if self.each == "run":
            return self._answer(runs.entries, self.conditions, complaints)
        selected = _select(runs.entries, [c for c in self.conditions if c.field in OF_RUNS])
        entries, repeated = cells(selected, self._wants(INTERVAL))
        if repeated:
            complaints.append(
                f"{repeated} of the runs repeat cell and seed of a later one, perhaps with another "
                "version of a plug-in, and do not count; --each run lists them"
            )
        conditions = [c for c in self.conditions if c.field not in OF_RUNS]
        return self._answer(entries, conditions, complaints)

    def _wants(self, fields: Iterable[str]) -> bool:
        asked = {*self.columns, (self.sort or "").removeprefix("-")}
        return not asked.union(c.field for c in self.conditions).isdisjoint(fields)

    def _answer(
        self, entries: list[Entry], conditions: Sequence[Condition], complaints: list[str]
    ) -> Answer:
        selected = _select(entries, conditions)
        if not selected:
            complaints += [_instead(c, entries) for c in conditions if not _select(entries, [c])]
        return Answer(_in_order(selected, self.sort), complaints)


def _select(entries: Iterable[Entry], conditions: Sequence[Condition]) -> list[Entry]:
    return [entry for entry in entries if all(c.holds(entry[c.field]) for c in conditions)]


def _in_order(entries: list[Entry], by: str | None) -> list[Entry]:
    ordered = sorted(entries, key=place)
    if by is None:
        return ordered
    name = by.removeprefix("-")
    measured = [entry for entry in ordered if entry[name] is not None]
    others = [entry for entry in ordered if entry[name] is None]
    return sorted(measured, key=lambda entry: entry[name], reverse=by != name) + others


def _named(value: Any) -> str:
    """Return the names of a chain of plug-ins, or a text up to its colon."""
    return "+".join(link.partition(":")[0] for link in registry.links(str(value)))


def _instead(condition: Condition, entries: Iterable[Entry]) -> str:
    """Name the values that the field of a condition has here, which nothing meets."""
    values = [entry[condition.field] for entry in entries]
    texts = sorted({_named(value) for value in values if value is not None})
    few = ", ".join(texts[:8]) + (", ..." if len(texts) > 8 else "")
    return f"nothing has {condition.text}; {condition.field} is {few or 'never known'} here"
