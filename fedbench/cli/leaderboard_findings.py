"""Findings about files of a board, and comparisons of an entry with its repetition."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from rich.table import Table as RichTable

from fedbench.cli.leaderboard_table import short
from fedbench.tables.numbers import NONE, or_none
from fedbench.tables.table import Column, Line, Table
from fedbench.tables.terminal import cell, grid

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

    from fedbench.leaderboard.check import CheckedFile
    from fedbench.leaderboard.entry import Entry
    from fedbench.leaderboard.reproduction import Comparison
    from fedbench.leaderboard.verdict import RuleFinding

STYLES = {"error": "bold red", "warning": "yellow"}


@dataclass(frozen=True)
class CheckReport:
    """Files of a board and the findings about them, for a terminal."""

    checked: Sequence[CheckedFile]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for file in self.checked:
            yield cell(f"{verdict(file.findings)}  {file.path}", options, "bold")
            if file.findings:
                yield findings(file.findings, options)
        wrong = sum(verdict(file.findings) == "refused" for file in self.checked)
        yield cell(f"{len(self.checked)} checked, {wrong} refused", options)


def verdict(of: Iterable[RuleFinding]) -> str:
    """Return ``refused`` if any finding is an error, else ``good``."""
    return "refused" if any(finding.severity == "error" for finding in of) else "good"


def findings(of: Sequence[RuleFinding], options: ConsoleOptions) -> RichTable:
    """List the findings, a line each."""
    table = RichTable.grid(padding=(0, 1, 0, 0))
    for finding in of:
        style = STYLES[finding.severity]
        texts = (f"  {finding.severity}", finding.rule)
        table.add_row(*(cell(t, options, style) for t in texts), cell(finding.text, options))
    return table


def checked_json(checked: Sequence[CheckedFile]) -> str:
    """Write verdicts and findings for programs."""
    files = [
        {
            "path": file.path.as_posix(),
            "id": file.entry and file.entry.id,
            "verdict": verdict(file.findings),
            "findings": [asdict(finding) for finding in file.findings],
        }
        for file in checked
    ]
    good = all(file["verdict"] == "good" for file in files)
    return json.dumps({"good": good, "files": files}, indent=2)


@dataclass(frozen=True)
class Repetition:
    """Cells as they are claimed beside the same cells played again, for a terminal.

    Args:
        entry: Entry that was played again.
        comparisons: Comparisons of its cells.
        apart: Numbers that differ by more than the rules allow, by attack.
    """

    entry: Entry
    comparisons: Sequence[Comparison]
    apart: dict[str, list[str]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns = [
            Column(heading, "right" if heading in ("claimed", "again") else "left", wraps=True)
            for heading in ("attack", "what", "claimed", "again", "difference", "")
        ]
        lines = [line for comparison in self.comparisons for line in self._lines(comparison)]
        yield grid(Table(columns, lines), options)

    def _lines(self, comparison: Comparison) -> Iterator[Line]:
        name = short(self.entry, comparison.attack)
        for what, claimed, again in comparison.pairs():
            if claimed is None and again is None:
                continue
            far = what in self.apart[comparison.attack]
            difference = NONE if claimed is None or again is None else f"{again - claimed:+.6g}"
            values = (or_none(x, "{:.6g}".format) for x in (claimed, again))
            texts = [name, what.replace("_", " "), *values, difference, "too far" if far else ""]
            yield Line(texts, marked=far)
            name = ""
