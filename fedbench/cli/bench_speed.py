"""``fedbench bench``: the whole suite."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedbench.core.errors import ConfigError

if TYPE_CHECKING:
    from fedbench.bench.defenses import Cost
    from fedbench.bench.paired import Ratio
    from fedbench.bench.speed import Report

FORMATS = ("table", "json", "md")
HEAD = ("ours / the other way", "faster", "range", "target", "ms", "peak", "busy")
GROWN = ("rule", "n^", "d^", "slowest", "s", "memory")
_HOW = "Running"


def speed(
    context: typer.Context,
    quick: Annotated[
        bool, typer.Option("--quick", help="small sizes: five minutes on two cores")
    ] = False,
    only: Annotated[
        list[str] | None,
        typer.Option(
            help="comparisons with this in their name; repeat for more", show_default=False
        ),
    ] = None,
    executor: Annotated[
        str, typer.Option(help="auto, loop, stacked, recorded or forked", rich_help_panel=_HOW)
    ] = "auto",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda", rich_help_panel=_HOW)] = "auto",
    threads: Annotated[int, typer.Option(help="of torch, on a CPU", rich_help_panel=_HOW)] = 2,
    chart: Annotated[
        Path | None, typer.Option(help="a picture of it, *.png or *.svg", rich_help_panel=_HOW)
    ] = None,
    format: Annotated[str, typer.Option(help="table, json or md", rich_help_panel=_HOW)] = "table",
) -> None:
    """How fast fedbench is, beside what somebody would write: training, rounds, servers, messages.

    Each figure is a ratio of two ways that took turns in this process. The commands measure parts
    by themselves.
    """
    if context.invoked_subcommand is not None:
        given = [name for name in context.params if _typed(context, name)]
        if given:
            raise ConfigError(
                f"--{given[0]} is of the whole suite, got {context.invoked_subcommand} behind it; "
                f"write it after {context.invoked_subcommand}"
            )
        return
    from fedbench.bench.paired import peak
    from fedbench.bench.speed import FULL, QUICK, Report, growths, machine, play, require_known
    from fedbench.cli.options import torch_threads
    from fedbench.cli.terminal import status
    from fedbench.core.errors import require
    from fedbench.executors.malloc import keep_memory
    from fedbench.experiment.prepare import choose_device
    from fedbench.figures.style import FORMATS as PICTURES

    require("--format", format, format in FORMATS, ", ".join(FORMATS[:-1]) + f" or {FORMATS[-1]}")
    require("--threads", threads, threads >= 1, ">= 1")
    known = chart is None or chart.suffix.removeprefix(".") in PICTURES
    require("--chart", str(chart), known, "a path that ends in .png or .svg")
    require_known(only or [])
    size, where = QUICK if quick else FULL, choose_device(device)
    keep_memory()
    with torch_threads(threads), status() as say:
        here = machine(where, peak(where))
        ratios = list(play(size, where, executor, say, only or []))
        rule = "part of a group or a name, like 'server' or 'bf16'; without it all are measured"
        require("--only", only, bool(ratios), rule)
        done = Report(here, ratios, [] if only else list(growths(size, where, say)))
    if format == "json":
        print(json.dumps(done.described(), indent=1))
    else:
        show(done, format)
    if chart is not None:
        from fedbench.figures.speed import compose
        from fedbench.figures.style import save

        save(compose(done), chart)


def _typed(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def show(report: Report, format: str) -> None:
    """A table of ratios and one of growth, under a line on the machine."""
    here = report.machine
    s = "s" if here.threads != 1 else ""
    where = here.device if here.device != "cpu" else f"{here.threads} thread{s}"
    said = (
        f"{here.processor}, {here.cores} cores, {where}; torch {here.torch}, Python {here.python}; "
        f"matrix products: {here.peak / 1e9:.0f} GFLOP/s"
    )
    groups = dict.fromkeys(ratio.group for ratio in report.ratios)
    sections = [(g, [line(r, report) for r in report.ratios if r.group == g]) for g in groups]
    grown = [growth_line(name, report.growth) for name in _rules(report.growth)]
    if format == "md":
        print(f"{said}\n\n" + "\n".join(_markdown(HEAD, 1)))
        for group, lines in sections:
            print(f"| **{group}** |" + " |" * (len(HEAD) - 1))
            print("\n".join("| " + " | ".join(cells) + " |" for cells in lines))
        if grown:
            print("\n" + "\n".join(_markdown(GROWN, 1)))
            print("\n".join("| " + " | ".join(cells) + " |" for cells in grown))
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console()
    console.print(said, highlight=False)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for i, title in enumerate(HEAD[:-1]):
        wide = None if i else 36
        table.add_column(title, justify="right" if i else "left", no_wrap=True, min_width=wide)
    for group, lines in sections:
        table.add_row(f"[bold]{group}[/bold]")
        for cells in lines:
            table.add_row(*cells[:-1])
    console.print(table)
    if grown:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
        for i, title in enumerate(GROWN):
            table.add_column(title, justify="right" if i else "left", no_wrap=True)
        for cells in grown:
            table.add_row(*cells)
        console.print(table)
    console.print(
        "faster  times, median of the turns; ! misses its target\n"
        "ms      of ours, for one client or one call\n"
        "peak    % of the machine's matrix products, what training reaches\n"
        "n^, d^  exponents of a rule's time in rows and columns; memory beyond the input",
        highlight=False,
    )
    if known := [ratio.others for ratio in report.ratios if ratio.others is not None]:
        console.print(f"Other processes used up to {max(known):.1f} cores meanwhile.")


def line(ratio: Ratio, report: Report) -> list[str]:
    """The texts of a comparison."""
    from fedbench.bench.paired import short

    missed = "" if ratio.met is not False else "!"
    digits = len(str(int(ratio.milliseconds))) - 1
    return [
        f"{ratio.what} / {ratio.against}",
        f"{short(ratio.faster)}{missed}",
        f"{short(min(ratio.turns))}-{short(max(ratio.turns))}",
        "" if ratio.target is None else f"{ratio.target:.2g}",
        f"{ratio.milliseconds:.{max(0, 2 - digits)}f}",
        f"{100 * ratio.rate / report.machine.peak:.0f}" if ratio.flops else "",
        "" if ratio.others is None else f"{ratio.others:.1f}",
    ]


def growth_line(name: str, costs: Sequence[Cost]) -> list[str]:
    """The texts of a rule."""
    from fedbench.bench.defenses import growth

    mine = [cost for cost in costs if cost.defense.partition(":")[0] == name]
    last = max(mine, key=lambda cost: cost.seconds[0])
    powers = [growth(mine, axis) for axis in ("n", "k")]
    return [
        name,
        *("" if power is None else f"{power:.2f}" for power in powers),
        f"{last.n} x {last.k:.0e}".replace("e+0", "e"),
        f"{last.seconds[0]:.3g}",
        "" if last.memory is None else f"{last.memory:.2f}",
    ]


def _rules(costs: Sequence[Cost]) -> list[str]:
    return list(dict.fromkeys(cost.defense.partition(":")[0] for cost in costs))


def _markdown(head: Sequence[str], texts: int) -> list[str]:
    rule = [" :-- "] * texts + [" --: "] * (len(head) - texts)
    return ["| " + " | ".join(head) + " |", "|" + "|".join(rule) + "|"]
