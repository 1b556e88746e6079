"""``fedbench plot``: records as figures, or as sketches in the terminal."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedbench.cli.options import chosen, explained
from fedbench.cli.terminal import warn
from fedbench.core.errors import ConfigError
from fedbench.core.files import require_there

Records = Annotated[
    list[Path],
    typer.Argument(help="Records, folders of them, archives (*.jsonl.gz).", metavar="RECORDS"),
]


@explained
def plot(
    records: Records,
    kind: list[str] | None = None,
    out: Path = Path("results/pictures"),
    format: list[str] | None = None,
    width: float | None = None,
    attack: list[str] | None = None,
    bits: str = "total",
    terminal: bool = False,
) -> None:
    """Draw pictures of records: accuracy over rounds or malicious rows, against bits or epsilon.

    A folder means its *.json; files in it that are not records are skipped. Over malicious rows,
    share draws the accuracy of runs, and cohort how that changes in each round.

    Options:
        kind: Kind of picture: rounds, bits, heatmap, impact, share, cohort or epsilon. Repeat for
            more; by default all that these records can show.
        out: Folder for the pictures.
        format: Format of the files: png, svg, pdf or pgf (needs LaTeX); by default png and svg.
        width: Width of the pictures in inches; by default 10, of a heat map what its columns take.
        attack: Attack that heat maps and impact charts show. Repeat for more; by default all that
            have room.
        bits: Bits of the picture against bits: total, up and down, or uplink.
        terminal: Draw sketches in characters, and write no files.
    """
    require_there(records)
    from fedbench.figures.kinds import KINDS, Sketch, require_attacks
    from fedbench.figures.layout import View
    from fedbench.figures.style import FORMATS, USUAL, save
    from fedbench.leaderboard.board import require_no_board
    from fedbench.results.gather import cells_of, gather
    from fedbench.results.summary import rows

    for name in kind or ():
        chosen("--kind", name, tuple(KINDS))
    for name in format or ():
        chosen("--format", name, FORMATS)
    form = out.suffix.removeprefix(".").lower()
    if form in FORMATS and not out.is_dir():
        raise ConfigError(
            f"--out must be a folder for pictures, got {str(out)!r}; write --out "
            f"{shlex.quote(str(out.parent))} --format {form}"
        )
    try:
        cells = cells_of(gather(records, lambda reason: warn(f"skipped: {reason}")))
    except ConfigError:
        require_no_board(records)
        raise
    table = rows(list(cells), cells)
    view = View(
        width=width,
        attacks=tuple(attack or ()),
        bits=chosen("--bits", bits, ("total", "uplink")),
    )
    require_attacks(table, view)
    for name in kind or ():
        if not KINDS[name].shows(table):
            raise ConfigError(
                f"--kind {name} needs {KINDS[name].lacks} in the records, got none; leave it out"
            )
    shown = [name for name in KINDS if name in (kind or KINDS) and KINDS[name].shows(table)]
    if terminal:
        console = Console()
        for name in shown:
            if name != shown[0]:
                console.print()
            console.print(Sketch(name, table, view))
        return
    for name in shown:
        figure = KINDS[name].compose(table, view)
        paths = [out / f"{name}.{ending}" for ending in dict.fromkeys(format or USUAL)]
        for path in paths:
            save(figure, path)
        print(" and ".join(map(str, paths)))
