"""A question to a store: which cells, runs or failures, by which conditions, in which order."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fedbench.core import registry
from fedbench.results import index
from fedbench.results.fields import CELL, FAILED, RUN, Entry, Fields, known
from fedbench.results.filters import Condition
from fedbench.results.over_seeds import INTERVAL, cells, place

Each = Literal["cell", "run", "failure"]
FIELDS: dict[Each, Fields] = {"cell": CELL, "run": RUN, "failure": FAILED}
OF_RUNS: Fields = {name: kind for name, kind in RUN.items() if name not in CELL} | {
    "data_seed": "whole"
}


@dataclass(frozen=True)
class Answer:
    """What a store says.

    Args:
        entries: In order.
        complaints: What is wrong with the store, a line each.
    """

    entries: list[Entry]
    complaints: list[str]


@dataclass(frozen=True)
class Query:
    """What is asked of a store.

    Args:
        each: What an entry is.
        conditions: That all must hold. One about a seed, an id or a file chooses the runs that
            cells are made of, any other one chooses cells.
        columns: The fields that are wanted, at least one.
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
        """As typed; without columns all fields.

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
        """That an entry has."""
        return FIELDS[self.each]

    def answer(self, store: Path) -> Answer:
        """From the records in a folder.

        Raises:
            ConfigError: there is no such folder.
        """
        if self.each == "failure":
            failures = index.failures(store)
            return self._answer(failures.entries, self.conditions, failures.complaints())
        runs = index.runs(store)
        said = runs.complaints()
        if number := index.failed(store):
            plural = "s" if number > 1 else ""
            remedy = f"fedbench results {shlex.quote(str(store))} --failed"
            said.append(f"{number} run{plural} failed: {remedy}")
        if self.each == "run":
            return self._answer(runs.entries, self.conditions, said)
        chosen = _choose(runs.entries, [c for c in self.conditions if c.field in OF_RUNS])
        found, repeated = cells(chosen, self._wants(INTERVAL))
        if repeated:
            said.append(
                f"{repeated} of the runs repeat cell and seed of a later one, perhaps with another "
                "version of a plug-in, and do not count; --each run lists them"
            )
        return self._answer(found, [c for c in self.conditions if c.field not in OF_RUNS], said)

    def _wants(self, fields: Iterable[str]) -> bool:
        asked = {*self.columns, (self.sort or "").removeprefix("-")}
        return not asked.union(c.field for c in self.conditions).isdisjoint(fields)

    def _answer(
        self, entries: list[Entry], conditions: Sequence[Condition], complaints: list[str]
    ) -> Answer:
        chosen = _choose(entries, conditions)
        if not chosen:
            complaints += [_instead(c, entries) for c in conditions if not _choose(entries, [c])]
        return Answer(_in_order(chosen, self.sort), complaints)


def _choose(entries: Iterable[Entry], conditions: Sequence[Condition]) -> list[Entry]:
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
    """Of plug-ins the names; of anything else all of it, up to a colon."""
    return "+".join(link.partition(":")[0] for link in registry.links(str(value)))


def _instead(condition: Condition, entries: Iterable[Entry]) -> str:
    """What the field of a condition that nothing meets has here."""
    values = [entry[condition.field] for entry in entries]
    texts = sorted({_named(value) for value in values if value is not None})
    few = ", ".join(texts[:8]) + (", ..." if len(texts) > 8 else "")
    return f"nothing has {condition.text}; {condition.field} is {few or 'never known'} here"
