"""Entries of a store as a table: for a terminal of any width, or for a page."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from fedbench.core import registry
from fedbench.core.choices import SUMS
from fedbench.experiment.measurements import BY_NAME
from fedbench.results.fields import plugin_parts
from fedbench.tables.columns import LOWEST, MASKED, SO_FAR, WORST, heading, tested, text_of
from fedbench.tables.export import bullets, escaped, markdown
from fedbench.tables.numbers import NA, percent
from fedbench.tables.table import Column, Line, Table
from fedbench.tables.terminal import narrowed, plain_lines, translated

if TYPE_CHECKING:
    from fedbench.experiment.measurements import Kind
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
IMPACT = "impact\npoints"
COUNTS = ("rejected_malicious", "skipped_rounds")  # a column of zeros says nothing
PERCENT = ("accuracy_low", "accuracy_high", "accuracy_std")
WRAPS = ("plug-in", "name", "texts")
AXES = ("protocol", "mechanism", "defense", "attack")


@dataclass(frozen=True)
class ResultsPage:
    """The answer to a query, as a table and notes below it."""

    query: Query
    entries: Sequence[Entry]
    flat: bool  # the columns were chosen; otherwise by system, with the columns that fit

    def count(self) -> str:
        """Say how many entries there are, and under which conditions."""
        number = len(self.entries)
        where = " and ".join(condition.text for condition in self.query.conditions)
        text = f"{number or 'no'} {self.query.each}{'s' * (number != 1)}"
        return f"{text} with {where}" if where else text

    def lines(self, width: int, say: Callable[[str], str], dash: str) -> Iterator[tuple[str, str]]:
        """Yield lines of text and their styles, for a terminal of this width.

        ``say`` returns a text in the characters that the output has, of which ``dash`` is one.
        """
        if self.entries:
            whole = translated(self.table(), say)
            table = whole if self.flat else narrowed(whole, width)
            yield from plain_lines(table, width, dash)
            yield "", ""
            for note in self._notes(table, say):
                yield from (
                    (line, "") for line in textwrap.wrap(say(note), width, break_on_hyphens=False)
                )
        yield say(self.count()), ""

    def markdown(self) -> str:
        """Write the answer for a page."""
        if not self.entries:
            return f"{escaped(self.count())}\n"
        table = self.table()
        notes = bullets(map(escaped, self._notes(table, str)))
        parts = (markdown(table), notes, f"{escaped(self.count())}\n")
        return "\n".join(filter(None, parts))

    def table(self) -> Table:
        """Make the table: flat, or by system with the columns that say something."""
        make = flat if self.flat else by_system
        return make(self.entries, self.query.fields, self.query.columns)

    def _notes(self, table: Table, say: Callable[[str], str]) -> Iterator[str]:
        """Explain what a table shows, whose texts went through ``say``."""
        if self.query.each == "failure" or self.flat:
            return
        splits = {entry["split"] for entry in self.entries}
        shown = {column.heading for column in table.columns}
        yield f"accuracy: {BY_NAME['accuracy'].caption.format(tested=tested(splits))}"
        if any(say("±") in text for line in table.lines for text in line.texts):
            yield "±: sample standard deviation over seeds"
        if IMPACT in shown:
            yield f"impact: clean minus attacked, in percentage points; {WORST}: {LOWEST}"
        if any(line.marked and say(SO_FAR) in line.texts[0] for line in table.lines):
            yield f"{SO_FAR}: an attack on the system has fewer seeds than another"
        if heading(BY_NAME["uplink_bits"]) in shown:
            yield f"bits: {BY_NAME['uplink_bits'].caption}"
        if say(heading(BY_NAME["epsilon"])) in shown:
            yield f"ε: {BY_NAME['epsilon'].caption}; natural logarithms"
        skipped = BY_NAME["skipped_rounds"]
        if heading(skipped) in shown:
            yield f"{skipped.term}: {skipped.caption}"
        if any(entry["sees"] in SUMS for entry in self.entries):
            yield f"bits up: {MASKED}"
        flagged = sum(bool(entry["flags"]) for entry in self.entries)
        if flagged:
            yield f"doubts about {flagged} of {len(self.entries)}: --columns attack,flags"


def by_system(entries: Sequence[Entry], fields: Fields, columns: Iterable[str]) -> Table:
    """Make the table by system and attack, without columns that say nothing."""
    from fedbench.results.aggregate import SYSTEM, lacks_seeds

    short = shortened(entries, fields)
    others = [name for name in (*SYSTEM, "data_seed") if name in fields and name not in AXES]
    if "seed" in fields:
        others.remove("data_seed")
    varied = [name for name in others if len({entry[name] for entry in short}) > 1]
    texts = {name: _column(entries, name, fields[name]) for name in columns}
    chosen = [name for name in columns if any(_says(name, text) for text in texts[name])]
    lines = []
    rows = zip(short, *(texts[name] for name in chosen), strict=True)
    for title, members in groupby(rows, lambda row: _system(row[0], varied)):
        lines.append(Line([title], title=True))
        group = list(members)
        mark = SO_FAR if lacks_seeds(entry for entry, *_ in group) else WORST
        for entry, *numbers in group:
            worst = entry.get("worst", False)
            attack = "none (clean)" if entry["attack"] == "none" else entry["attack"]
            label = f"{attack} {mark}" if worst else attack
            lines.append(Line([label, *numbers], worst))
    names = Column("system\n  attack", "left", wraps=True)
    return Table([names, *(_head(name, fields[name]) for name in chosen)], lines)


def _says(name: str, text: str) -> bool:
    return text not in (NA, "") and (text != "0" or name not in COUNTS)


def flat(entries: Sequence[Entry], fields: Fields, columns: Sequence[str]) -> Table:
    """Make the table of the columns, with a line for each entry."""
    short = shortened(entries, fields)
    rows = zip(*(_column(short, name, fields[name]) for name in columns), strict=True)
    return Table([_head(name, fields[name]) for name in columns], [Line(row) for row in rows])


def _head(name: str, kind: Kind) -> Column:
    """Make the column of a field: headed as in a report if it is usual, else as it is typed."""
    usual = any(name in names for names in USUAL.values())
    if name == "impact":
        above = IMPACT
    elif usual and name in BY_NAME:
        above = heading(BY_NAME[name])
    else:
        above = name.replace("_", "\n") + ("\n%" if kind == "share" or name in PERCENT else "")
    return Column(above, "left", wraps=True) if kind in WRAPS else Column(above)


def text(entry: Entry, name: str, kind: Kind) -> str:
    """Format a field for people: shares in percent."""
    value = entry[name]
    if name == "epsilon" and value is None:
        return NA if entry["unit"] is None else "unknown"
    if name == "impact" and entry["attack"] == "none":
        return ""
    if value is None:
        return NA
    if kind in ("share", "points") or name in PERCENT:
        return percent(value)
    if name in BY_NAME and BY_NAME[name].unit:
        return text_of(BY_NAME[name])(value)
    if kind == "number":
        return f"{value:.4g}"
    if kind == "yes":
        return "yes" if value else "no"
    return "; ".join(value) if kind == "texts" else str(value)


def _column(entries: Sequence[Entry], name: str, kind: Kind) -> list[str]:
    texts = [text(entry, name, kind) for entry in entries]
    if name != "accuracy" or not any(entry.get("accuracy_std") is not None for entry in entries):
        return texts
    stds = [entry.get("accuracy_std") for entry in entries]  # means stand below each other
    return [
        f"{mean} " + ("" if std is None else f"± {percent(std)}").ljust(6)
        for mean, std in zip(texts, stds, strict=True)
    ]


def _system(entry: Entry, varied: Sequence[str]) -> str:
    """Name a system: protocol, mechanism if there is one, rule, and fields that differ."""
    parts = [entry["protocol"], entry["mechanism"], entry["defense"]]
    name = " + ".join(part for part in parts if part != "none")
    values = {field: entry[field] for field in varied if entry[field] is not None}
    texts = {key: f"{x:g}" if isinstance(x, float) else str(x) for key, x in values.items()}
    return name + "".join(f"; {field} {text}" for field, text in texts.items())


def shortened(entries: Sequence[Entry], fields: Fields) -> list[Entry]:
    """Keep of each plug-in only the parameters in which those of one name differ here."""
    names = [name for name, kind in fields.items() if kind == "plug-in"]
    short = {name: _shortened({entry[name] for entry in entries}) for name in names}
    return [entry | {name: short[name][entry[name]] for name in names} for entry in entries]


def _shortened(texts: Iterable[str]) -> dict[str, str]:
    """Map every text to a shorter one.

    >>> _shortened(["fsl:k=1,lr=2", "fsl:k=1,lr=3", "mean"])
    {'fsl:k=1,lr=2': 'fsl:lr=2', 'fsl:k=1,lr=3': 'fsl:lr=3', 'mean': 'mean'}
    """
    read = {text: plugin_parts(text) for text in texts}
    plugins = Counter(name for name, _ in read.values())
    given = Counter((name, param) for name, params in read.values() for param in params.items())
    short = {}
    for text, (name, params) in read.items():
        differing = dict(pair for pair in params.items() if given[name, pair] < plugins[name])
        short[text] = registry.joined(name, differing)
    return short
