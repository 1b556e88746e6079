"""``fedbench plot``: records as pictures, or as sketches in the terminal."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from fedbench.results.summary import Row

KINDS = ("rounds", "bits", "heatmap", "impact", "epsilon")
FORMATS = ("png", "svg")


def plot(
    records: Annotated[
        list[Path],
        typer.Argument(help="Records, folders of them, archives (*.jsonl.gz).", metavar="RECORDS"),
    ],
    kind: Annotated[
        list[str] | None,
        typer.Option(
            help=f"Kind of picture: {', '.join(KINDS[:-1])} or {KINDS[-1]}. Repeat for more; by "
            "default all that these records can show."
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the pictures.")] = Path("results/pictures"),
    format: Annotated[
        list[str] | None, typer.Option(help="Format of the files: png or svg; by default both.")
    ] = None,
    terminal: Annotated[
        bool, typer.Option("--terminal", help="Draw sketches in characters, and write no files.")
    ] = False,
) -> None:
    """Draw pictures of records: accuracy over rounds, against bits, under attacks, against epsilon.

    A folder means its *.json; of these, what is no record is skipped.
    """
    from fedbench.core.errors import require
    from fedbench.results.gather import cells_of, gather
    from fedbench.results.summary import rows

    for one in kind or ():
        require("--kind", one, one in KINDS, f"{', '.join(KINDS[:-1])} or {KINDS[-1]}")
    for one in format or ():
        require("--format", one, one in FORMATS, " or ".join(FORMATS))
    cells = cells_of(gather(records, _skipped))
    table = rows(list(cells), cells)
    shown = chosen(table, kind)
    if terminal:
        sketch(table, shown)
    else:
        draw(table, shown, list(dict.fromkeys(format or FORMATS)), out)


def _skipped(reason: str) -> None:
    from fedbench.core.errors import one_line

    print(one_line(f"fedbench: skipped: {reason}"), file=sys.stderr)


def chosen(table: list[Row], kinds: list[str] | None) -> list[str]:
    """What was asked for; if nothing was, what can be shown.

    Raises:
        ConfigError: it cannot be shown.
    """
    from fedbench.core.errors import ConfigError
    from fedbench.figures.kinds import KINDS as ALL

    for kind in kinds or ():
        if not ALL[kind].shows(table):
            raise ConfigError(
                f"--kind {kind} needs {ALL[kind].lacks} in the records, got none; leave it out"
            )
    return [kind for kind in KINDS if kind in (kinds or KINDS) and ALL[kind].shows(table)]


def draw(table: list[Row], kinds: list[str], formats: list[str], out: Path) -> None:
    """Write every picture in every format; say where."""
    from fedbench.figures.kinds import KINDS as ALL
    from fedbench.figures.style import save

    for kind in kinds:
        figure = ALL[kind].compose(table)
        paths = [out / f"{kind}.{format}" for format in formats]
        for path in paths:
            save(figure, path)
        print(" and ".join(map(str, paths)))


def sketch(table: list[Row], kinds: list[str]) -> None:
    """Print every picture in characters."""
    from rich.console import Console

    from fedbench.figures.sketches import Sketch

    console = Console()
    for number, kind in enumerate(kinds):
        if number:
            console.print()
        console.print(Sketch(kind, table))
