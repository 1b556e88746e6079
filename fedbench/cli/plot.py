"""``fedbench plot``: records as figures, or as sketches in the terminal."""

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

    for name in kind or ():
        require("--kind", name, name in KINDS, f"{', '.join(KINDS[:-1])} or {KINDS[-1]}")
    for name in format or ():
        require("--format", name, name in FORMATS, " or ".join(FORMATS))
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
    """Return the kinds that were asked for, or by default all that can be shown.

    Raises:
        ConfigError: a kind that was asked for cannot be shown.
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
    """Write every figure in every format, and print the paths."""
    from fedbench.figures.kinds import KINDS as ALL
    from fedbench.figures.style import save

    for kind in kinds:
        figure = ALL[kind].compose(table)
        paths = [out / f"{kind}.{format}" for format in formats]
        for path in paths:
            save(figure, path)
        print(" and ".join(map(str, paths)))


def sketch(table: list[Row], kinds: list[str]) -> None:
    """Print every figure in characters."""
    from rich.console import Console

    from fedbench.figures.sketches import Sketch

    console = Console()
    for number, kind in enumerate(kinds):
        if number:
            console.print()
        console.print(Sketch(kind, table))
