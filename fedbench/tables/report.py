"""The report on attacked systems: tables, doubts and worst cases, for a terminal or in Markdown."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from rich.console import ConsoleOptions, Group, RenderableType
from rich.text import Text

from fedbench.results.aggregate import grouped
from fedbench.tables import columns
from fedbench.tables.export import bullets
from fedbench.tables.export import markdown as in_markdown
from fedbench.tables.numbers import NA, or_none, percent
from fedbench.tables.table import Line, Table
from fedbench.tables.terminal import FIRST_COLUMN, aligned, grid, legible, listed

if TYPE_CHECKING:
    from fedbench.experiment.cells import Skipped
    from fedbench.results.summary import Row
    from fedbench.tables.columns import ReportColumn

TITLE = "accuracy under attack"
PRICES = "the price"


def systems(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return the rows of each system, the clean one first."""
    groups = grouped(rows, lambda row: row.cell.system)
    return {name: sorted(group, key=lambda r: not r.cell.clean) for name, group in groups.items()}


def results(title: str, rows: Sequence[Row], chosen: Sequence[ReportColumn]) -> Table:
    """Make the table of all rows: every system's name, then its rows."""
    seeds = max((len(row.records) for row in rows), default=0)
    lines = []
    for name, group in systems(rows).items():
        lines.append(Line([name], title=True))
        for row in group:
            label = "none (clean)" if row.cell.clean else row.cell.attack
            label = f"strongest of {row.tried}: {label}" if row.tried else label
            if len(row.records) < seeds:
                label += f" ({len(row.records)} of {seeds} seeds)"
            label += f" (same as {row.same})" if row.same else ""
            label += f" {columns.mark(row)}" if row.worst else ""
            lines.append(Line([label, *(column.text(row) for column in chosen)], row.worst))
    return Table.of(["system\n  attack", *(column.heading for column in chosen)], lines, title)


def worst_cases(rows: Sequence[Row]) -> Table:
    """Make a table with a line for each system, the best worst case first, the unattacked last."""
    from fedbench.results.summary import lowest_by_seed, pooled

    prices = (columns.UP, columns.DOWN, columns.EPSILON)
    seeded = columns.seeded(rows)
    lines: list[tuple[float, Line]] = []
    for name, group in systems(rows).items():
        worst = next((row for row in group if row.worst), None)
        clean = columns.accuracy(group[0]) if group[0].cell.clean else NA
        attacked = [columns.accuracy(worst)] if worst else [NA]
        attacked += [or_none(lowest_by_seed(group), percent)] * seeded
        attacked.append(_among(worst) if worst else NA)
        price = [column.text(pooled(group)) for column in prices]
        lines.append((worst.accuracy if worst else -1.0, Line([name, clean, *attacked, *price])))
    title = columns.worst_case(rows)
    by_seed = ["by seed\n%"] * seeded
    headings = ["\nsystem", "clean\n%", f"{title}\n%", *by_seed, "\nattack"]
    ordered = [line for _, line in sorted(lines, key=lambda pair: -pair[0])]
    return Table.of([*headings, *(column.heading for column in prices)], ordered, title)


def _among(row: Row) -> str:
    """Name the attack with the lowest accuracy, and out of how many if some are missing."""
    if not row.missing:
        return row.cell.attack
    return f"{row.cell.attack} ({row.attacks - row.missing} of {row.attacks} attacks)"


def terminal(rows: Sequence[Row], options: ConsoleOptions) -> Group:
    """Lay out all results, the doubts about them, and last the worst case of every system.

    One table, with the columns that there is room for. Where the output has no Unicode, the table
    makes do with ASCII.
    """
    from fedbench.results.doubts import doubts

    parts: list[RenderableType] = []
    tables = layout(rows, options.max_width)
    for title, chosen in tables.items():
        parts += [grid(results(title, rows, chosen), options), ""]
    shown = [column for chosen in tables.values() for column in chosen]
    terms = columns.captions(rows, shown)
    if missed := left_out(rows, shown):
        terms["omitted"] = f"{missed}: the Markdown table has them"
    parts.append(listed(terms.items(), options))
    if claims := columns.guarantees(rows):
        parts.append(Text("\nprivacy:", style="bold"))
        parts.append(listed([("-", claim) for claim in claims], options))
    if warnings := doubts(rows):
        parts.append(Text("\ndoubts:", style="bold yellow"))
        parts.append(listed([("-", warning) for warning in warnings], options))
    parts.append("")
    if missing := columns.unfinished(rows):
        parts.append(Text(legible(missing, options), style="bold red"))
    return Group(*parts, grid(worst_cases(rows), options))


def layout(rows: Sequence[Row], width: int) -> dict[str, list[ReportColumn]]:
    """Choose the columns that fit into one table beside the names, by title.

    `SPARE` columns make room, group by group. Only if the others still do not fit, the price gets a
    table of its own.
    """
    chosen = columns.saying(rows, columns.ALL)
    for group in ((), *columns.SPARE):
        chosen = [column for column in chosen if column not in group]
        if FIRST_COLUMN + span(rows, chosen) <= width:
            return {TITLE: chosen}
    prices = [column for column in chosen if column in columns.PRICE]
    return {TITLE: [column for column in chosen if column not in prices], PRICES: prices}


def left_out(rows: Sequence[Row], shown: Collection[ReportColumn]) -> str:
    """Name the columns that the width does not hold; empty if all are shown."""
    missed = [column for column in columns.saying(rows, columns.ALL) if column not in shown]
    headings = [column.heading.split() for column in missed]
    return ", ".join(" ".join(word for word in words if word != "%") for words in headings)


def span(rows: Sequence[Row], chosen: Iterable[ReportColumn]) -> int:
    """Count the characters that the columns take, each with the gap before it."""
    total = 0
    for column in chosen:
        texts = aligned([column.text(row) for row in rows])
        total += 2 + max(map(len, [*texts, *column.heading.split("\n")]))
    return total


def markdown(rows: Sequence[Row]) -> str:
    """Write the report for GitHub: one table of everything, the doubts, the worst cases."""
    from fedbench.results.doubts import doubts

    table = results("", rows, columns.saying(rows, columns.ALL))
    parts = [in_markdown(table, emphasized=2)]
    parts.append(bullets(f"{term}: {meaning}" for term, meaning in columns.captions(rows).items()))
    if claims := columns.guarantees(rows):
        parts.append("Privacy:\n\n" + bullets(claims))
    if warnings := doubts(rows):
        parts.append("Doubts:\n\n" + bullets(warnings))
    if missing := columns.unfinished(rows):
        parts.append(f"{missing}\n")
    worst = worst_cases(rows)
    parts.append(f"{worst.title.capitalize()}:\n\n{in_markdown(worst)}")
    return "\n".join(parts)


def skipped_lines(skipped: Sequence[Skipped]) -> list[str]:
    """Say which combinations cannot exist and why, those with one reason in one line."""
    lines = []
    defenses = grouped(skipped, lambda s: (s.protocol, s.attack, s.reason))
    rules = {
        key: ", ".join(dict.fromkeys(s.defense for s in group)) for key, group in defenses.items()
    }
    alike = grouped(rules, lambda key: (key[0], rules[key], key[2]))
    for (protocol, names, reason), keys in alike.items():
        attacks = ", ".join(attack for _, attack, _ in keys)
        lines.append(f"{protocol} + {names} / {attacks}: {reason}")
    return lines
