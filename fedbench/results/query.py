"""Queries to stores: cells, runs or failures, selected by conditions and ordered."""

from __future__ import annotations

import math
import operator
import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fedbench.core import registry
from fedbench.core.errors import ConfigError
from fedbench.experiment.measurements import Kind
from fedbench.results import index
from fedbench.results.aggregate import (
    INTERVAL,
    cells,
    grouped,
    lacks_seeds,
    place,
    repeated,
    system_of,
)
from fedbench.results.fields import CELL, FAILED, RUN, Entry, Fields, plugin_parts, require_field

Each = Literal["cell", "run", "failure"]
Test = Callable[[Any], bool]
FIELDS: dict[Each, Fields] = {"cell": CELL, "run": RUN, "failure": FAILED}
RUN_FIELDS = {name: kind for name, kind in RUN.items() if name not in CELL or name == "data_seed"}
_READS = re.compile(r"\s*([\w.:-]+)\s*(!=|<=|>=|==?|<|>|~)\s*(.*?)\s*", re.DOTALL)
_ORDERS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
REPEATED = "repeat cell and seed of a later one, perhaps with another version of a plug-in"
_TEXTUAL = ("plug-in", "name", "texts")
_PARAMETER = re.compile(r"(\w+)[.:](\w+)")


@dataclass(frozen=True)
class Answer:
    """Answer of stores to a query."""

    entries: list[Entry]  # in order
    complaints: list[str]  # troubles of the stores, a line each


@dataclass(frozen=True)
class Query:
    """Query to stores; all its conditions must hold.

    A condition about a seed, an id or a file selects the runs that cells are made of, any other
    one selects cells.
    """

    each: Each
    conditions: tuple[Condition, ...]
    columns: tuple[str, ...]  # fields that are wanted, at least one
    sort: str | None = None  # a field, or ``-field`` for the largest first; None: by system

    @classmethod
    def parse(
        cls,
        each: Each,
        where: Iterable[str] = (),
        columns: Iterable[str] | None = None,
        sort: str | None = None,
    ) -> Query:
        """Parse what was typed, or raise `ConfigError`; without columns all fields are wanted."""
        fields = FIELDS[each]
        asked = fields | RUN_FIELDS if each == "cell" else fields
        if sort is not None:
            require_field(sort.removeprefix("-"), fields, "--sort")
        conditions = tuple(Condition.parse(text, asked) for text in where)
        named = [require_field(name, fields, "--columns") for name in columns or fields]
        return cls(each, conditions, tuple(dict.fromkeys(named)), sort)

    @property
    def fields(self) -> Fields:
        """Fields that an entry has."""
        return FIELDS[self.each]

    def answer(self, *stores: Path) -> Answer:
        """Answer the query from the records in folders; `ConfigError` if one is no folder.

        A run that several of them have is that of the first.
        """
        entries: list[Entry] = []
        complaints: list[str] = []
        for store in stores:
            listing = index.failures(store) if self.each == "failure" else index.runs(store)
            earlier = {entry["id"] for entry in entries}
            entries += [entry for entry in listing.entries if entry["id"] not in earlier]
            subject = f"{store}: " if len(stores) > 1 else ""
            complaints += [f"{subject}{complaint}" for complaint in listing.complaints()]
            if self.each != "failure" and (number := index.failed(store)):
                plural = "s" if number > 1 else ""
                remedy = f"fedbench results {shlex.quote(str(store))} --failed"
                complaints.append(f"{number} run{plural} failed: {remedy}")
        if self.each == "failure":
            return self._answer(entries, self.conditions, complaints)
        return self.among(entries, complaints)

    def among(self, runs: list[Entry], complaints: Iterable[str] = ()) -> Answer:
        """Answer a query for runs or cells from the entries of runs, with more to complain of."""
        complaints = list(complaints)
        if self.each == "run":
            if number := repeated(_select(runs, self.conditions)):
                complaints.append(f"{number} of the runs {REPEATED}; in no cell do they count")
            return self._answer(runs, self.conditions, complaints)
        selected = _select(runs, [c for c in self.conditions if c.field in RUN_FIELDS])
        asked = {*self.columns, *(c.field for c in self.conditions)}
        asked.add((self.sort or "").removeprefix("-"))
        entries, number = cells(selected, intervals=not asked.isdisjoint(INTERVAL))
        if number:
            complaints.append(
                f"{number} of the runs {REPEATED}, and do not count; --each run lists them"
            )
        conditions = [c for c in self.conditions if c.field not in RUN_FIELDS]
        answer = self._answer(entries, conditions, complaints)
        if "worst" in asked:
            systems = grouped(entries, system_of)
            shown = set(map(system_of, answer.entries))
            if number := sum(lacks_seeds(systems[system]) for system in shown):
                answer.complaints.append(
                    f"worst is only the lowest so far of {number} system{'s' * (number > 1)}, of "
                    "which an attack has fewer seeds than another"
                )
        return answer

    def _answer(
        self, entries: list[Entry], conditions: Sequence[Condition], complaints: list[str]
    ) -> Answer:
        selected = _select(entries, conditions)
        if not selected:
            complaints += [_instead(c, entries) for c in conditions if not _select(entries, [c])]
        ordered = sorted(selected, key=place)
        if self.sort is not None:
            name = self.sort.removeprefix("-")
            measured = [entry for entry in ordered if entry[name] is not None]
            measured.sort(key=operator.itemgetter(name), reverse=self.sort != name)
            ordered = measured + [entry for entry in ordered if entry[name] is None]
        return Answer(ordered, complaints)


def _select(entries: Iterable[Entry], conditions: Sequence[Condition]) -> list[Entry]:
    return [entry for entry in entries if all(c.holds(entry[c.field]) for c in conditions)]


def _instead(condition: Condition, entries: Iterable[Entry]) -> str:
    """Name the values, of plug-ins the names, that the field of a condition has here."""
    values = [entry[condition.field] for entry in entries]
    links = [registry.links(str(value)) for value in values if value is not None]
    texts = sorted({"+".join(link.partition(":")[0] for link in chain) for chain in links})
    few = ", ".join(texts[:8]) + (", ..." if len(texts) > 8 else "")
    return f"nothing has {condition.text}; {condition.field} is {few or 'never known'} here"


@dataclass(frozen=True)
class Condition:
    """Comparison of a field with a value, as typed; ``holds`` tells whether a value meets it."""

    field: str
    text: str
    holds: Test

    @classmethod
    def parse(cls, text: str, fields: Fields) -> Condition:
        """Parse ``FIELD OP VALUE``; `ConfigError` if there is no such field, or no such value."""
        read = _READS.fullmatch(text)
        if read is None:
            raise ConfigError(
                f"--where must read FIELD OP VALUE with one of = != < <= > >= ~, got {text!r}; "
                "for example 'accuracy>=0.5'"
            )
        field, comparison, value = read.groups()
        comparison = "=" if comparison == "==" else comparison
        below = _PARAMETER.fullmatch(field)
        if below is not None and fields.get(below[1]) == "plug-in":
            equals = "!=" if comparison == "!=" else "="  # parameters are in no other order
            raise ConfigError(
                f"--where {text!r} must name a field, got {field!r}; for a parameter write "
                f"{below[1]}{equals}NAME:{below[2]}={value}"
            )
        kind = fields[require_field(field, fields, f"--where {text!r}")]
        named = kind == "plug-in" and comparison != "~"
        meant = _expanded(field, value) if named else value
        return cls(field, text.strip(), _test(text, kind, comparison, meant))


def _expanded(kind: str, text: str) -> str:
    """Replace ``as=...`` by the parameters that it stands for, as records have them."""
    name, params = registry.split(text)
    return registry.joined(name, registry.expanded(kind, name, params))


def _test(text: str, kind: Kind, comparison: str, wanted: str) -> Test:
    if comparison in _ORDERS:
        if kind in (*_TEXTUAL, "yes"):
            got = f"got a field of {_holds(kind)}"
            raise ConfigError(f"--where {text!r} must compare numbers, {got}; use = or !=")
        order = _ORDERS[comparison]
        limit = _number(text, kind, wanted)
        return lambda value: isinstance(value, int | float) and order(value, limit)
    if comparison == "~":
        if kind not in _TEXTUAL:
            got = f"got a field of {_holds(kind)}"
            raise ConfigError(f"--where {text!r} must search in text, {got}; use = or !=")
        return lambda value: any(wanted in text for text in _texts(value))
    equals = _equals(text, kind, wanted)
    return equals if comparison == "=" else lambda value: not equals(value)


def _holds(kind: Kind) -> str:
    """Describe the values of a field of this kind, in an error."""
    if kind == "yes":
        return "true or false"
    return "text" if kind in _TEXTUAL else "numbers"


def _equals(text: str, kind: Kind, wanted: str) -> Test:
    if kind == "plug-in":
        return _plug_in(wanted)
    if wanted.lower() == "none":  # not measured; no flags
        return lambda value: value is None or value == []
    if kind == "yes":
        if wanted.lower() not in ("true", "false"):
            raise ConfigError(f"--where {text!r} must compare with true or false, got {wanted!r}")
        return lambda value: value is (wanted.lower() == "true")
    if kind in _TEXTUAL:
        return lambda value: wanted in _texts(value)
    number = _number(text, kind, wanted)
    return lambda value: value == number


def _plug_in(wanted: str) -> Test:
    """Test for a plug-in of this name with these parameters; it may have others."""
    name, params = registry.split(wanted)

    def test(value: Any) -> bool:
        its_name, its_params = plugin_parts(value) if isinstance(value, str) else (None, {})
        return its_name == name and all(
            key in its_params and _same(param, its_params[key]) for key, param in params.items()
        )

    return test


def _same(text: str, other: str) -> bool:
    try:
        return float(text) == float(other)
    except ValueError:
        return text.lower() == other.lower()


def _texts(value: Any) -> list[str]:
    return value if isinstance(value, list) else [value] if isinstance(value, str) else []


def _number(text: str, kind: Kind, wanted: str) -> float:
    try:
        number = int(wanted) if wanted.lstrip("+-").isdigit() else float(wanted)
        finite = math.isfinite(number)
    except (ValueError, OverflowError):  # no number, or one that no float holds
        finite = False
    if not finite:
        raise ConfigError(f"--where {text!r} must compare with a number, got {wanted!r}")
    if kind in ("share", "points") and abs(number) > 1:
        raise ConfigError(
            f"--where {text!r} must compare with a share in [0, 1], got {wanted!r}; "
            f"write {number / 100:g} for {wanted} %"
        )
    return number
