"""``fedbench bench defenses``."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from fedbench.bench.defenses import Cost

FORMATS = ("table", "json", "md")
_WHAT, _HOW = "What is measured", "Running"
LARGEST = 1 << 31  # values of the rows, 8 GiB
HEAD = ("rule", "n", "d", "s", "±%", "means", "sort", "memory", "n^", "d^")


def defenses(
    defense: Annotated[
        list[str] | None,
        typer.Option(
            "--defense", "-d", help="repeat for more; default: all", rich_help_panel=_WHAT
        ),
    ] = None,
    clients: Annotated[
        list[int] | None,
        typer.Option(help="rows; repeat for more; default: 25, 100", rich_help_panel=_WHAT),
    ] = None,
    parameters: Annotated[
        list[float] | None,
        typer.Option(
            help="columns, e.g. 1.6e6; repeat for more; default: 2e5, 1.6e6", rich_help_panel=_WHAT
        ),
    ] = None,
    repeats: Annotated[int, typer.Option(help="of each", rich_help_panel=_HOW)] = 5,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda", rich_help_panel=_HOW)] = "auto",
    threads: Annotated[int, typer.Option(help="of torch, on a CPU", rich_help_panel=_HOW)] = 2,
    format: Annotated[str, typer.Option(help="table, json or md", rich_help_panel=_HOW)] = "table",
) -> None:
    """What every rule takes for random rows: seconds, peak memory, growth.

    Beside each call stand a plain mean, the floor, and torch's sort over the clients, what the
    obvious median costs.
    """
    from fedbench.bench.defenses import described, play
    from fedbench.cli.terminal import status
    from fedbench.core import registry
    from fedbench.core.errors import require
    from fedbench.experiment.prepare import choose_device

    require("--format", format, format in FORMATS, ", ".join(FORMATS[:-1]) + f" or {FORMATS[-1]}")
    require("--repeats", repeats, repeats >= 1, ">= 1")
    require("--threads", threads, threads >= 1, ">= 1")
    rows, asked = clients or [25, 100], parameters or [2e5, 1.6e6]
    require("--clients", rows, min(rows) >= 3, ">= 3")
    whole = all(1 <= d < 2**31 and d == int(d) for d in asked)
    require("--parameters", asked, whole, "whole numbers in 1 .. 2**31 - 1")
    columns, most = [int(d) for d in asked], LARGEST // max(rows)
    rule = f"<= {most} with --clients {max(rows)}, or the rows fill the memory"
    require("--parameters", asked, max(columns) <= most, rule)
    chosen = defense or registry.names("defense")
    with status() as say:
        where = choose_device(device).type
        costs = list(play(chosen, rows, columns, repeats, where, threads, say))
    if format == "json":
        print(json.dumps([described(cost) for cost in costs], indent=1))
    else:
        show(costs, format)


def show(costs: Sequence[Cost], format: str) -> None:
    """One line a rule and size; the growth beside the largest."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from fedbench.core import registry

    by_name: dict[str, list[Cost]] = {}
    for cost in costs:
        by_name.setdefault(registry.split(cost.defense)[0], []).append(cost)
    lines = [row(cost, by_name[registry.split(cost.defense)[0]]) for cost in costs]
    if format == "md":
        print("| " + " | ".join(HEAD) + " |\n| --- |" + " ---: |" * (len(HEAD) - 1))
        for line in lines:
            print("| " + " | ".join(line) + " |")
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    for i, title in enumerate(HEAD):
        table.add_column(title, justify="right" if i else "left", no_wrap=True)
    for line in lines:
        table.add_row(*line)
    console = Console()
    console.print(table)
    console.print(
        "s        seconds of a call, median; ±: half of the range\n"
        "means    so many plain means of the rows take as long\n"
        "sort     so many times faster than torch's sort over the rows\n"
        "memory   peak beyond the input, as a multiple of it\n"
        "n^, d^   exponents of the growth in rows and columns, the other at its largest",
        highlight=False,
    )


def row(cost: Cost, alike: Sequence[Cost]) -> list[str]:
    """Texts of a line; ``alike`` are all sizes of the rule."""
    from fedbench.bench.defenses import growth
    from fedbench.core import registry

    seconds = statistics.median(cost.seconds)
    spread = (max(cost.seconds) - min(cost.seconds)) / 2 / seconds
    grown = [growth(alike, axis) if cost is alike[-1] else None for axis in ("n", "k")]
    return [
        registry.split(cost.defense)[0],
        str(cost.n),
        f"{cost.k:.2g}".replace("e+0", "e"),
        f"{seconds:.3f}",
        f"{100 * spread:.0f}",
        f"{cost.over_mean:.1f}",
        f"{cost.sorts:.1f}",
        "" if cost.memory is None else f"{cost.memory:.2f}",
        *("" if power is None else f"{power:.2f}" for power in grown),
    ]
