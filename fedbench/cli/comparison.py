"""Numbers of a paper and ours side by side: a table, and the known reasons for differences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedbench.tables.table import Column, Line, Table

if TYPE_CHECKING:
    from fedbench.reproduce.exhibits import Exhibit, Reason
    from fedbench.reproduce.verdicts import Comparison


def comparison_table(exhibit: Exhibit, cells: Sequence[Comparison]) -> Table:
    """Return a line for every cell: the paper's number, ours with its seeds, and the verdict."""
    numbered = reasons(cells)
    trained = any(not cell.claim.formula for cell in cells)
    lines = []
    for cell in cells:
        paper = spread(cell.claim.says, None)
        ours = "" if cell.ours is None else spread(cell.ours.mean, cell.ours.std)
        seeds = "" if cell.ours is None else str(len(cell.ours.values))
        if cell.ours is not None and cell.claim.formula:
            paper = f"{cell.claim.says:.{cell.claim.digits}f}"
            ours = f"{cell.ours.mean:.{cell.claim.digits + 1}f}"
            seeds = ""
        verdict = cell.verdict.value
        if cell.reason is not None:
            verdict += f" ({numbered.index(in_words(cell.reason)) + 1})"
        elif cell.why:
            verdict += f": {cell.why}"
        texts = [cell.claim.name, paper, ours]
        lines.append(Line([*texts, *([seeds] if trained else []), verdict]))
    unit = f", {exhibit.unit}" if exhibit.unit else ""
    columns = [
        Column("cell", "left", wraps=True),
        Column(f"paper{unit}", "mean"),
        Column(f"ours{unit}", "mean"),
        *([Column("seeds")] if trained else []),
        Column("verdict", "left", wraps=True),
    ]
    return Table(columns, lines)


def in_words(reason: Reason) -> str:
    """Return a reason with its control experiment and what that showed."""
    return f"{reason.text} Control: `{reason.control}`: {reason.shows}"


def reasons(cells: Sequence[Comparison]) -> list[str]:
    """Return the known reasons for differences, each text once, in the order of the cells."""
    return list(dict.fromkeys(in_words(cell.reason) for cell in cells if cell.reason is not None))


def explanations(cells: Sequence[Comparison]) -> list[str]:
    """Return a numbered text for each reason."""
    return [f"({number}) {text}" for number, text in enumerate(reasons(cells), 1)]


def spread(mean: float, std: float | None) -> str:
    """Format a mean and its standard deviation with the digits that papers print.

    >>> spread(98.71, 0.123), spread(0.79, None)
    ('98.7 ± 0.1', '0.79')
    """
    digits = 1 if abs(mean) >= 10 else 3
    text = f"{mean:.{digits}f}" if std is not None or abs(mean) >= 10 else f"{mean:.4g}"
    return text if std is None else f"{text} ± {std:.{digits}f}"
