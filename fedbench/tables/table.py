"""The results as tables: for a terminal of any width, and for a page in Markdown."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from fedbench.tables.columns import (
    ALL,
    DOWN,
    EPSILON,
    NONE,
    PRICE,
    SPARE,
    UP,
    Column,
    accuracy,
    captions,
    guarantees,
    mark,
    saying,
    unfinished,
    worst_case,
)

if TYPE_CHECKING:
    from fedbench.experiment.cells import Skipped
    from fedbench.results.summary import Row

NAMES = 25  # characters that the names get beside the numbers
TITLE, PRICES = "accuracy under attack", "the price"
_ASCII = str.maketrans({"±": "+-", "ε": "eps", "◀": "<-", "…": "..."})


def legible(text: str, options: ConsoleOptions) -> str:
    """The text in the characters that this output can show."""
    if not options.ascii_only:
        return text
    return text.translate(_ASCII).encode("ascii", "replace").decode()


def system(row: Row) -> str:
    """What is defended: protocol, mechanism and rule."""
    return row.cell.system


def systems(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The rows of each system, the clean one first."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(system(row), []).append(row)
    return {name: sorted(group, key=lambda r: not r.cell.clean) for name, group in groups.items()}


@dataclass(frozen=True)
class Line:
    """A line of a table: its texts, whether it is marked, and whether it only names a group."""

    texts: list[str]
    marked: bool = False
    title: bool = False


def lines(rows: Sequence[Row], columns: Sequence[Column]) -> list[Line]:
    """Every system's name, then its rows."""
    seeds = max((len(row.records) for row in rows), default=0)
    out = []
    for name, group in systems(rows).items():
        out.append(Line([name, *("" for _ in columns)], title=True))
        for row in group:
            label = "none (clean)" if row.cell.clean else row.cell.attack
            label = f"strongest of {row.tried}: {label}" if row.tried else label
            if len(row.records) < seeds:
                label += f" ({len(row.records)} of {seeds} seeds)"
            label += f" {mark(row)}" if row.worst else ""
            out.append(Line([label, *(column.text(row) for column in columns)], row.worst))
    return out


def summary_heads(name: str) -> tuple[str, ...]:
    """Heads of the table of systems, whose third column is called ``name``."""
    return ("\nsystem", "clean\n%", f"{name}\n%", "\nattack", "up\nbits", "down\nbits", "\nε")


def worst_cases(rows: Sequence[Row]) -> list[Line]:
    """One line a system, the best worst case first; last those that nobody has attacked yet."""
    from fedbench.results.summary import pooled

    found: list[tuple[float, Line]] = []
    for name, group in systems(rows).items():
        worst = next((row for row in group if row.worst), None)
        clean = accuracy(group[0]) if group[0].cell.clean else NONE
        attacked = [accuracy(worst), _among(worst)] if worst else [NONE, NONE]
        price = [column.text(pooled(group)) for column in (UP, DOWN, EPSILON)]
        found.append((worst.accuracy if worst else -1.0, Line([name, clean, *attacked, *price])))
    return [line for _, line in sorted(found, key=lambda pair: -pair[0])]


def _among(row: Row) -> str:
    """Attack with the lowest accuracy, and out of how many if some of them are missing."""
    if not row.missing:
        return row.cell.attack
    return f"{row.cell.attack} ({row.attacks - row.missing} of {row.attacks} attacks)"


def final_table(rows: list[Row], width: int) -> RenderableType:
    """All results, the doubts about them, and last the worst case of every system.

    One table, with the columns that its width has room for. Where the output has no Unicode, the
    table makes do with ASCII.
    """
    return _Report(rows, width)


@dataclass(frozen=True)
class _Report:
    rows: list[Row]
    width: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        options = options.update_width(self.width)
        for part in self._parts(options):
            yield from console.render(part, options)

    def _parts(self, options: ConsoleOptions) -> Iterator[RenderableType]:
        from fedbench.results.warnings import doubts

        tables = layout(self.rows, self.width)
        for title, columns in tables.items():
            yield results(title, self.rows, columns, options)
            yield ""
        shown = [column for columns in tables.values() for column in columns]
        terms = captions(self.rows, shown)
        if missed := left_out(self.rows, shown):
            terms["no room"] = f"for {missed}: the Markdown table has them"
        yield listed(terms.items(), options)
        if claims := guarantees(self.rows):
            yield Text("\nprivacy:", style="bold")
            yield listed([("-", claim) for claim in claims], options)
        if found := doubts(self.rows):
            yield Text("\ndoubts:", style="bold yellow")
            yield listed([("-", doubt) for doubt in found], options)
        yield ""
        if missing := unfinished(self.rows):
            yield Text(legible(missing, options), style="bold red")
        name = worst_case(self.rows)
        yield grid(name, summary_heads(name), worst_cases(self.rows), options)


def layout(rows: Sequence[Row], width: int) -> dict[str, list[Column]]:
    """Choose the columns that fit into one table beside the names, by title.

    `SPARE` columns make room, group by group. Only if the others still do not fit, the price gets a
    table of its own.
    """
    columns = saying(rows, ALL)
    for group in ((), *SPARE):
        columns = [column for column in columns if column not in group]
        if NAMES + span(rows, columns) <= width:
            return {TITLE: columns}
    prices = [column for column in columns if column in PRICE]
    return {TITLE: [column for column in columns if column not in prices], PRICES: prices}


def left_out(rows: Sequence[Row], shown: Collection[Column]) -> str:
    """Name the columns that there was no room for; empty if all are shown."""
    heads = [column.head.split() for column in saying(rows, ALL) if column not in shown]
    return ", ".join(" ".join(word for word in head if word != "%") for head in heads)


def span(rows: Sequence[Row], columns: Iterable[Column]) -> int:
    """Characters that the columns take, each with the gap before it."""
    texts = [_aligned([column.text(row) for row in rows]) for column in columns]
    heads = [column.head.split("\n") for column in columns]
    return sum(2 + max(map(len, texts + head)) for texts, head in zip(texts, heads, strict=True))


def results(
    title: str, rows: Sequence[Row], columns: Sequence[Column], options: ConsoleOptions
) -> Table:
    """A table of every row, by system."""
    heads = ["system\n  attack", *(column.head for column in columns)]
    return grid(title, heads, lines(rows, columns), options)


def grid(title: str, heads: Sequence[str], body: Sequence[Line], options: ConsoleOptions) -> Table:
    """Horizontal rules only; numbers never wrap, names do."""
    table = Table(
        title=Text(title, style="bold") if title else None,
        title_justify="left",
        box=box.HORIZONTALS,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
    )
    columns = [_aligned([line.texts[i] for line in body]) for i in range(len(heads))]
    for head, texts in zip(heads, columns, strict=True):
        is_name = "attack" in head or "system" in head
        table.add_column(
            legible(head, options),
            justify="left" if is_name or any("±" in text for text in texts) else "right",
            no_wrap=not is_name,
        )
    grouped = any(line.title for line in body)
    for i, line in enumerate(body):
        indent = "  " if grouped and not line.title else ""
        name = indent + columns[0][i].replace(",", ", ")  # long parameter lists wrap at spaces
        style = "bold" if line.title else "bold red" if line.marked else ""
        ends = i + 1 < len(body) and body[i + 1].title
        row = (name, *(column[i] for column in columns[1:]))
        table.add_row(*(cell(text, options, style) for text in row), end_section=ends)
    return table


def cell(text: str, options: ConsoleOptions, style: str = "") -> Text:
    """Folded, or cut off where the options forbid to wrap."""
    flat = options.no_wrap
    shown = legible(text, options)
    return Text(shown, style, no_wrap=flat, overflow="ellipsis" if flat else "fold")


def _aligned(texts: list[str]) -> list[str]:
    """Means of ``mean ± std`` below each other."""
    if not any("±" in text for text in texts):
        return texts
    means = [text.partition(" ±")[0] for text in texts]
    width = max(map(len, means))
    return [" " * (width - len(mean)) + text for mean, text in zip(means, texts, strict=True)]


def listed(pairs: Iterable[tuple[str, str]], options: ConsoleOptions) -> Table:
    """Terms and what they mean; what wraps is indented."""
    table = Table.grid(padding=(0, 1, 0, 0))
    for pair in pairs:
        table.add_row(*(cell(text, options) for text in pair))
    return table


def markdown(rows: Sequence[Row]) -> str:
    """The same for GitHub: one table of everything, the doubts, the worst cases."""
    from fedbench.results.warnings import doubts

    columns = saying(rows, ALL)
    body, name = [], ""
    for line in lines(rows, columns):
        if line.title:
            name = line.texts[0]
            continue
        texts = line.texts
        if line.marked:
            texts = [*(f"**{text}**" for text in texts[:2]), *texts[2:]]
        body.append([name, *texts])
        name = ""
    text = _pipes(["system", "attack", *(column.head for column in columns)], body, 2)
    text += "\n" + "".join(f"- {term}: {said}\n" for term, said in captions(rows).items())
    if claims := guarantees(rows):
        text += "\nPrivacy:\n\n" + "".join(f"- {claim}\n" for claim in claims)
    if found := doubts(rows):
        text += "\nDoubts:\n\n"
        text += "".join(f"- {doubt}\n" for doubt in found)
    worst = [line.texts for line in worst_cases(rows)]
    name = worst_case(rows)
    text += f"\n{missing}\n" if (missing := unfinished(rows)) else ""
    return f"{text}\n{name.capitalize()}:\n\n{_pipes(summary_heads(name), worst, 1)}"


def _pipes(heads: Sequence[str], body: Sequence[Sequence[str]], names: int) -> str:
    aligned = [":--" if i < names or "attack" in head else "--:" for i, head in enumerate(heads)]
    cells = [[head.replace("\n", " ") for head in heads], aligned, *body]
    escaped = [[cell.strip().replace("|", r"\|") for cell in row] for row in cells]
    return "".join(f"| {' | '.join(row)} |\n" for row in escaped)


def skipped_lines(skipped: Sequence[Skipped]) -> list[str]:
    """Combinations that cannot exist and why, those with one reason in one line."""
    defenses: dict[tuple[str, str, str], dict[str, None]] = {}
    for s in skipped:
        defenses.setdefault((s.protocol, s.attack, s.reason), {})[s.defense] = None
    attacks: dict[tuple[str, str, str], list[str]] = {}
    for (protocol, attack, reason), rules in defenses.items():
        attacks.setdefault((protocol, ", ".join(rules), reason), []).append(attack)
    merged = attacks.items()
    return [f"{p} + {rules} / {', '.join(names)}: {why}" for (p, rules, why), names in merged]
