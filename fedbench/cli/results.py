"""``fedbench results``: what folders of records say."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from fedbench.cli.options import explained
from fedbench.cli.terminal import abandon_stdout, warn
from fedbench.core.errors import require
from fedbench.core.files import write_atomically
from fedbench.tables.terminal import legible

if TYPE_CHECKING:
    from fedbench.tables.entries import ResultsPage

FORMATS = ("table", "csv", "json", "parquet", "md", "latex")


@explained
def results(
    stores: list[Path] | None = None,
    where: list[str] | None = None,
    each: str = "cell",
    format: str | None = None,
    columns: str | None = None,
    sort: str | None = None,
    failed: bool = False,
    out: Path | None = None,
) -> None:
    """Query stores: their cells or runs, chosen by any field, for people or for programs.

    Files that are not records are left out and named. Shares are in [0, 1], in tables in percent.
    Runs of other code, on another device or on other data are other cells.

    Positional:
        stores: Folders of records, by default results. A run that several have counts once.

    Options:
        where: FIELD OP VALUE, with = != < <= > >= or ~ (contains). Repeat: all must hold; by
            default everything is shown.
        each: What a line is: a cell, over its seeds, or a run.
        format: Form of the output: table, csv, json, parquet, md, latex (for booktabs); by default
            that of the ending of --out, else a table.
        columns: Fields, comma-separated; by default the usual ones.
        sort: FIELD, or -FIELD for the largest first; by default the order is by system.
        failed: List the runs without a record, and why.
        out: File for the output; by default the terminal.
    """
    from fedbench.results.query import Each, Query
    from fedbench.tables import export
    from fedbench.tables.entries import USUAL, ResultsPage
    from fedbench.tables.latex import as_latex

    require("--each", each, each in ("cell", "run"), "cell or run")
    ending = "" if out is None else out.suffix.removeprefix(".").lower()
    format = format or (ending if ending in FORMATS else "table")
    require("--format", format, format in FORMATS, f"one of {', '.join(FORMATS)}")
    require("--out", out, format != "parquet" or out is not None, "a file for --format parquet")
    if out is not None:
        require("--out", str(out), not out.is_dir(), "a file, not a folder")
    kind: Each = "failure" if failed else "run" if each == "run" else "cell"
    usual = USUAL[kind] if format in ("table", "md", "latex") else None
    named = usual if columns is None else [name.strip() for name in columns.split(",")]
    query = Query.parse(kind, where or [], named, sort)
    answer = query.answer(*dict.fromkeys(stores or [Path("results")]))
    if not answer.entries:
        from fedbench.leaderboard.board import require_no_board

        require_no_board(stores or [])
    for line in answer.complaints:
        warn(line)
    page = ResultsPage(query, answer.entries, flat=columns is not None)
    match format:
        case "table":
            show(page, out)
        case "md":
            emit(page.markdown().encode(), out)
        case "latex":
            emit(as_latex(page.table()).encode(), out)
        case "csv":
            emit(export.as_csv(answer.entries, query.columns), out)
        case "json":
            emit(export.as_json(answer.entries, query.columns), out)
        case "parquet":
            emit(export.as_parquet(answer.entries, query.columns, query.fields), out)
    if out is not None:
        print(f"{page.count()} in {out}")


def show(page: ResultsPage, out: Path | None) -> None:
    """Print a page, with styles on a terminal and without elsewhere."""
    console = Console()
    ascii_only = out is None and console.options.ascii_only

    def say(text: str) -> str:
        return legible(text, console.options) if ascii_only else text

    lines = page.lines(console.width, say, "-" if ascii_only else "─")
    if out is not None or not console.is_terminal:
        emit("".join(f"{text}\n" for text, _ in lines).encode(), out)
        return
    shown = Text()
    for text, style in lines:
        shown.append(f"{text}\n", style)
    console.print(shown, soft_wrap=True, end="")


def emit(data: bytes, out: Path | None) -> None:
    """Write to the file, or to stdout, if anybody still reads it."""
    if out is not None:
        write_atomically(out, data)
        return
    try:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        abandon_stdout()
