"""``fedbench results``: what a folder of records says."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from fedbench.results.fields import Entry
    from fedbench.results.query import Query
    from fedbench.tables.entries import ResultsPage

FORMATS = ("table", "csv", "json", "parquet", "md")


def results(
    store: Annotated[Path, typer.Argument(help="Folder of records.")] = Path("results"),
    where: Annotated[
        list[str] | None,
        typer.Option(
            help="FIELD OP VALUE, with = != < <= > >= or ~ (contains). Repeat: all must hold; by "
            "default everything is shown."
        ),
    ] = None,
    each: Annotated[
        str, typer.Option(help="What a line is: a cell, over its seeds, or a run.")
    ] = "cell",
    format: Annotated[
        str, typer.Option(help=f"Form of the output: {', '.join(FORMATS)}.")
    ] = "table",
    columns: Annotated[
        str | None, typer.Option(help="Fields, comma-separated; by default the usual ones.")
    ] = None,
    sort: Annotated[
        str | None,
        typer.Option(help="FIELD, or -FIELD for the largest first; by default as stored."),
    ] = None,
    failed: Annotated[
        bool, typer.Option("--failed", help="List the runs without a record, and why.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="File for the output; by default the terminal.")
    ] = None,
) -> None:
    """Query a store: its cells or runs, chosen by any field, for people or for programs.

    What is no record is left out and named. Shares are in [0, 1], in tables in percent. Runs of
    other code or on another device are other cells.
    """
    from fedbench.core.errors import one_line, require

    require("--each", each, each in ("cell", "run"), "cell or run")
    require("--format", format, format in FORMATS, f"one of {', '.join(FORMATS)}")
    require("--out", out, format != "parquet" or out is not None, "a file for --format parquet")
    from fedbench.results.query import Each, Query
    from fedbench.tables.entries import USUAL, ResultsPage

    kind: Each = "failure" if failed else "run" if each == "run" else "cell"
    usual = USUAL[kind] if format in ("table", "md") else None
    named = usual if columns is None else [name.strip() for name in columns.split(",")]
    query = Query.parse(kind, where or [], named, sort)
    answer = query.answer(store)
    for line in answer.complaints:
        print(one_line(f"fedbench: {line}"), file=sys.stderr)
    page = ResultsPage(query, answer.entries, flat=columns is not None)
    if format == "table":
        show(page, out)
    elif format == "md":
        emit(page.markdown().encode(), out)
    else:
        emit(exported(query, answer.entries, format), out)
    if out is not None:
        print(f"{page.count()} in {out}")


def exported(query: Query, entries: Sequence[Entry], format: str) -> bytes:
    """Write entries for another program."""
    from fedbench.tables import export

    if format == "csv":
        return export.as_csv(entries, query.columns)
    if format == "json":
        return export.as_json(entries, query.columns)
    return export.as_parquet(entries, query.columns, query.fields)


def show(page: ResultsPage, out: Path | None) -> None:
    """Print a page, with styles on a terminal and without elsewhere."""
    from rich.console import Console
    from rich.text import Text

    from fedbench.tables.terminal import legible

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
        from fedbench.core.files import write_atomically

        write_atomically(out, data)
        return
    try:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
