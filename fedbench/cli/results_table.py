"""Entries of a store in words: as a table for a terminal of any width, or for a page."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from fedbench.cli.long_table import Line, Table, escaped
from fedbench.core import registry
from fedbench.core.errors import ConfigError
from fedbench.tables.columns import MASKED, NONE, SUMS, WORST, bits, nats, percent

if TYPE_CHECKING:
    from fedbench.results.fields import Entry, Fields
    from fedbench.results.query import Query

# What is shown unless columns are chosen: of those that say something, as many as the width holds.
USUAL = {
    "cell": (
        *("accuracy", "impact", "uplink_bits", "downlink_bits", "epsilon", "seeds"),
        *("worst_client", "rejected_malicious", "skipped_rounds", "model_bits", "entropy_bits"),
    ),
    "run": (
        *("seed", "accuracy", "uplink_bits", "downlink_bits", "epsilon", "id"),
        *("worst_client", "rejected_malicious", "skipped_rounds", "seconds"),
    ),
    "failure": ("seed", "kind", "tries", "error", "message"),
}
HEADS = {
    "impact": "impact\npoints",
    "uplink_bits": "up\nbits",
    "entropy_bits": "entropy\nbits",
    "downlink_bits": "down\nbits",
    "model_bits": "model\nbits",
    "worst_client": "worst\nclient %",
    "epsilon": "ε",
}
BITS = ("uplink_bits", "entropy_bits", "downlink_bits", "model_bits")
COUNTS = ("rejected_malicious", "skipped_rounds")  # a column of zeros says nothing
PERCENT = ("accuracy_low", "accuracy_high", "accuracy_std")
WRAPS = ("plug-in", "name", "texts")
AXES = ("protocol", "mechanism", "defense", "attack")
CAPTION = {
    "accuracy": "percent of the benign clients' pooled test data, at the last round",
    "±": "sample standard deviation over seeds",
    "impact": f"clean minus attacked, in percentage points; {WORST}: the lowest accuracy",
    "bits": "per parameter and message, counted on what was sent",
    "ε": f"{NONE} without a privacy mechanism; natural logarithms",
}


@dataclass(frozen=True)
class Page:
    """An answer in words.

    Args:
        query: What was asked.
        entries: What was answered.
        flat: Were the columns chosen? Otherwise the table is by system, with the columns that fit.
    """

    query: Query
    entries: Sequence[Entry]
    flat: bool

    def count(self) -> str:
        """How many there are of what, and by which conditions."""
        number, where = len(self.entries), " and ".join(c.text for c in self.query.conditions)
        said = f"{number or 'no'} {self.query.each}{'s' * (number != 1)}"
        return f"{said} with {where}" if where else said

    def lines(self, width: int, say: Callable[[str], str], rule: str) -> Iterator[tuple[str, str]]:
        """For a terminal: lines of text and their styles.

        Args:
            width: Of the terminal.
            say: A text in the characters that the output has.
            rule: One of its characters.
        """
        if self.entries:
            table = self._table().translated(say)
            yield from (table if self.flat else table.within(width)).shown(width, rule)
            yield "", ""
            for note in self._notes():
                yield from ((line, "") for line in textwrap.wrap(say(note), width))
        yield say(self.count()), ""

    def markdown(self) -> str:
        """For a page."""
        if not self.entries:
            return f"{escaped(self.count())}\n"
        notes = [f"- {escaped(note)}\n" for note in self._notes()]
        parts = (self._table().markdown(), "".join(notes), f"{escaped(self.count())}\n")
        return "\n".join(filter(None, parts))

    def _table(self) -> Table:
        make = flat if self.flat else by_system
        return make(self.entries, self.query.fields, self.query.columns)

    def _notes(self) -> Iterator[str]:
        if self.query.each != "failure" and not self.flat:
            yield from (f"{term}: {said}" for term, said in CAPTION.items())
            if any(entry.get("sees") in SUMS for entry in self.entries):
                yield f"bits up: {MASKED}"
            flagged = sum(bool(entry["flags"]) for entry in self.entries)
            if flagged:
                yield f"doubts about {flagged} of {len(self.entries)}: --columns attack,flags"


def by_system(entries: Sequence[Entry], fields: Fields, columns: Iterable[str]) -> Table:
    """What each system measured under each attack: those of the columns that say something."""
    from fedbench.results.over_seeds import SYSTEM

    short = shortened(entries, fields)
    others = [name for name in (*SYSTEM, "data_seed") if name in fields and name not in AXES]
    if "seed" in fields:
        others.remove("data_seed")
    varied = [name for name in others if len({entry[name] for entry in short}) > 1]
    texts = {name: _column(entries, name, fields[name]) for name in columns}
    chosen = [name for name in columns if any(_says(name, text) for text in texts[name])]
    lines = []
    rows = zip(short, *(texts[name] for name in chosen), strict=True)
    for title, group in groupby(rows, lambda row: _system(row[0], varied)):
        lines.append(Line([title], "bold", title=True))
        for entry, *said in group:
            worst = entry.get("worst", False)
            attack = "none (clean)" if entry["attack"] == "none" else entry["attack"]
            label = f"  {attack} {WORST}" if worst else f"  {attack}"
            lines.append(Line([label, *said], "bold red" if worst else ""))
    heads = ["system\n  attack", *(head(name, fields[name]) for name in chosen)]
    return Table(heads, [True, *(fields[name] in WRAPS for name in chosen)], lines)


def _says(name: str, text: str) -> bool:
    return text not in (NONE, "") and (text != "0" or name not in COUNTS)


def flat(entries: Sequence[Entry], fields: Fields, columns: Sequence[str]) -> Table:
    """The columns, of each entry a line."""
    short = shortened(entries, fields)
    rows = zip(*(_column(short, name, fields[name]) for name in columns), strict=True)
    heads = [head(name, fields[name]) for name in columns]
    return Table(heads, [fields[name] in WRAPS for name in columns], [Line([*row]) for row in rows])


def head(name: str, kind: str) -> str:
    """Of a column."""
    unit = "\n%" if kind == "share" or name in PERCENT else ""
    return HEADS.get(name, name.replace("_", "\n") + unit)


def text(entry: Entry, name: str, kind: str) -> str:
    """A field for people: shares in percent."""
    value = entry[name]
    if name == "epsilon" and value is None:
        return NONE if entry["unit"] is None else "unknown"
    if name == "impact" and entry["attack"] == "none":
        return ""
    if value is None:
        return NONE
    if kind in ("share", "points") or name in PERCENT:
        return percent(value)
    if name in BITS:
        return bits(value)
    if kind == "number":
        return nats(value) if name == "epsilon" else f"{value:.4g}"
    if kind == "yes":
        return "yes" if value else "no"
    return "; ".join(value) if kind == "texts" else str(value)


def _column(entries: Sequence[Entry], name: str, kind: str) -> list[str]:
    texts = [text(entry, name, kind) for entry in entries]
    if name != "accuracy" or not any(entry.get("accuracy_std") is not None for entry in entries):
        return texts
    stds = [entry.get("accuracy_std") for entry in entries]  # means stand below each other
    return [
        f"{mean} " + ("" if std is None else f"± {percent(std)}").ljust(6)
        for mean, std in zip(texts, stds, strict=True)
    ]


def _system(entry: Entry, varied: Sequence[str]) -> str:
    """Protocol, mechanism if there is one, rule, and what differs between systems."""
    parts = [entry["protocol"], entry["mechanism"], entry["defense"]]
    name = " + ".join(part for part in parts if part != "none")
    there = [field for field in varied if entry[field] is not None]
    return name + "".join(f"; {field} {_said(entry[field])}" for field in there)


def _said(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def shortened(entries: Sequence[Entry], fields: Fields) -> list[Entry]:
    """Of the plug-ins only the parameters in which those of one name differ here."""
    names = [name for name, kind in fields.items() if kind == "plug-in"]
    short = {name: _shortened({entry[name] for entry in entries}) for name in names}
    return [entry | {name: short[name][entry[name]] for name in names} for entry in entries]


def _shortened(texts: Iterable[str]) -> dict[str, str]:
    """Of every text a shorter one.

    >>> _shortened(["fsl:k=1,lr=2", "fsl:k=1,lr=3", "mean"])
    {'fsl:k=1,lr=2': 'fsl:lr=2', 'fsl:k=1,lr=3': 'fsl:lr=3', 'mean': 'mean'}
    """
    read = {text: _split(text) for text in texts}
    values: dict[tuple[str, str], list[str]] = {}
    for name, params in read.values():
        for key, value in params.items():
            values.setdefault((name, key), []).append(value)
    plugins = Counter(name for name, _ in read.values())
    shared = {
        (name, key)
        for (name, key), found in values.items()
        if len(found) == plugins[name] and len(set(found)) == 1
    }
    short = {}
    for text, (name, params) in read.items():
        told = {key: value for key, value in params.items() if (name, key) not in shared}
        short[text] = registry.joined(name, told)
    return short


def _split(text: str) -> tuple[str, dict[str, str]]:
    try:
        return registry.split(text)
    except ConfigError:  # a name of somebody's own
        return text, {}
