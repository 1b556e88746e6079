"""What is wrong with files of a board, and what playing an entry again has shown."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table

from fedbench.cli.leaderboard_table import short
from fedbench.tables.columns import NONE
from fedbench.tables.table import cell

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

    from fedbench.leaderboard.check import Checked
    from fedbench.leaderboard.entry import Entry
    from fedbench.leaderboard.judge import Finding
    from fedbench.leaderboard.reproduction import Comparison

STYLES = {"error": "bold red", "warning": "yellow"}


@dataclass(frozen=True)
class Report:
    """Files of a board, and what is wrong with them."""

    checked: Sequence[Checked]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for one in self.checked:
            yield cell(f"{verdict(one.findings)}  {one.path}", options, "bold")
            if one.findings:
                yield findings(one.findings, options)
        wrong = sum(verdict(one.findings) == "refused" for one in self.checked)
        yield cell(f"{len(self.checked)} checked, {wrong} refused", options)


def verdict(found: Iterable[Finding]) -> str:
    """In a word."""
    return "refused" if any(one.severity == "error" for one in found) else "good"


def findings(found: Sequence[Finding], options: ConsoleOptions) -> Table:
    """A line each."""
    table = Table.grid(padding=(0, 1, 0, 0))
    for one in found:
        style = STYLES[one.severity]
        texts = (f"  {one.severity}", one.rule)
        table.add_row(*(cell(t, options, style) for t in texts), cell(one.text, options))
    return table


def checked_json(checked: Sequence[Checked]) -> str:
    """For programs."""
    files = [
        {
            "path": one.path.as_posix(),
            "id": one.entry and one.entry.id,
            "verdict": verdict(one.findings),
            "findings": [asdict(finding) for finding in one.findings],
        }
        for one in checked
    ]
    good = all(file["verdict"] == "good" for file in files)
    return json.dumps({"good": good, "files": files}, indent=2)


@dataclass(frozen=True)
class Repetition:
    """Cells as they are claimed, and as they were played again.

    Args:
        entry: Which.
        comparisons: Of its cells.
        apart: Of each attack, what differs by more than the rules allow.
    """

    entry: Entry
    comparisons: Sequence[Comparison]
    apart: dict[str, list[str]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = Table(box=box.HORIZONTALS, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
        for head in ("attack", "what", "claimed", "again", "difference", ""):
            table.add_column(head, justify="right" if head in ("claimed", "again") else "left")
        for one in self.comparisons:
            names = [short(self.entry, one.attack)]
            for what, claimed, again in one.pairs():
                if claimed is None and again is None:
                    continue
                far = what in self.apart[one.attack]
                difference = NONE if claimed is None or again is None else f"{again - claimed:+.6g}"
                values = (f"{x:.6g}" if x is not None else NONE for x in (claimed, again))
                row = (
                    *names,
                    what.replace("_", " "),
                    *values,
                    difference,
                    "too far" if far else "",
                )
                table.add_row(*(cell(t, options, STYLES["error"] if far else "") for t in row))
                names = [""]
        yield table
