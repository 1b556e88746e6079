"""``fedbench bench rounds``."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from fedbench.bench.rounds import Split

LARGEST = 10**6  # images, 3 GB
FORMATS = ("table", "json", "md")
_WHAT, _HOW = "What is measured", "Running"


def rounds(
    quick: Annotated[
        bool, typer.Option("--quick", help="lenet only, one round of each that counts")
    ] = False,
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model", "-m", help="repeat for more; default: lenet, conv8", rich_help_panel=_WHAT
        ),
    ] = None,
    protocol: Annotated[
        list[str] | None,
        typer.Option(
            "--protocol", "-p", help="repeat for more; default: all", rich_help_panel=_WHAT
        ),
    ] = None,
    attack: Annotated[
        str,
        typer.Option(
            "--attack", "-a", help="of a fifth of the clients, e.g. dyn-opt", rich_help_panel=_WHAT
        ),
    ] = "none",
    clients: Annotated[
        int, typer.Option(help="of a round; all there are", rich_help_panel=_WHAT)
    ] = 25,
    samples: Annotated[int, typer.Option(help="of each client", rich_help_panel=_WHAT)] = 50,
    epochs: Annotated[int, typer.Option(help="passes over them", rich_help_panel=_WHAT)] = 1,
    batch_size: Annotated[int, typer.Option(help="samples a step", rich_help_panel=_WHAT)] = 8,
    count: Annotated[
        int | None,
        typer.Option(
            "--rounds", help="that count, after one to warm up; default: 3", rich_help_panel=_HOW
        ),
    ] = None,
    executor: Annotated[
        str, typer.Option(help="auto, loop, stacked, recorded or forked", rich_help_panel=_HOW)
    ] = "auto",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda", rich_help_panel=_HOW)] = "auto",
    threads: Annotated[int, typer.Option(help="of torch, on a CPU", rich_help_panel=_HOW)] = 2,
    format: Annotated[str, typer.Option(help="table, json or md", rich_help_panel=_HOW)] = "table",
) -> None:
    """Where the time of a whole round goes, for every protocol with its own rule.

    Clients hold random images and train one epoch at batch 8 by default, less than papers do:
    with more local work all else weighs less. Nobody looks at test data.
    """
    from fedbench.bench.paired import peak
    from fedbench.bench.rounds import Plan, described, play
    from fedbench.bench.speed import machine
    from fedbench.cli.options import torch_threads
    from fedbench.cli.terminal import status
    from fedbench.core.errors import require
    from fedbench.experiment.prepare import choose_device

    require("--format", format, format in FORMATS, ", ".join(FORMATS[:-1]) + f" or {FORMATS[-1]}")
    require("--samples", samples, samples >= 1, ">= 1")
    rule = f"<= {LARGEST} together with --clients = {clients}, which all have as many"
    require("--samples", samples, samples * max(clients, 1) <= LARGEST, rule)
    count = (1 if quick else 3) if count is None else count
    require("--rounds", count, count >= 1, ">= 1")
    plan = Plan(clients, samples, epochs, batch_size, count, attack)
    models = model or (["lenet"] if quick else ["lenet", "conv8"])
    where = choose_device(device)
    with torch_threads(threads), status() as say:
        here = machine(where, peak(where))
        splits, left = play(models, protocol or [], plan, where.type, executor, say)
    if format == "json":
        said = {"machine": dataclasses.asdict(here), "plan": dataclasses.asdict(plan), "left": left}
        print(json.dumps(said | {"rows": [described(split) for split in splits]}, indent=1))
        return
    show(splits, format)
    for name, why in left.items():
        print(f"left out: {name}: {why}")


def show(splits: Sequence[Split], format: str) -> None:
    """One line a protocol and model, then who misses the target."""
    from fedbench.bench.stopwatch import PARTS

    head = ("protocol", "ms", *PARTS, "each")
    sections = {split.model: [row(s) for s in splits if s.model == split.model] for split in splits}
    if format == "md":
        print("| " + " | ".join(head) + " |\n| --- |" + " ---: |" * (len(head) - 1))
        for model, lines in sections.items():
            print(f"| **{model}** |" + " |" * (len(head) - 1))
            print("\n".join("| " + " | ".join(line) + " |" for line in lines))
        print("\n" + verdict(splits))
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column(head[0], overflow="fold")
    for title in head[1:]:
        table.add_column(title, justify="right", no_wrap=True, min_width=len(title))
    for model, lines in sections.items():
        table.add_row(f"[bold]{model}[/bold]")
        for line in lines:
            table.add_row(*line)
    console = Console()
    console.print(table)
    console.print("ms         of a round, median; the others in %, which sum to 100")
    for part, what in PARTS.items():
        console.print(f"{part:10} {what}", highlight=False)
    console.print("each       ms of all but training, for one client", highlight=False)
    console.print(verdict(splits), highlight=False)
    if known := [split.others for split in splits if split.others is not None]:
        console.print(f"Other processes used up to {max(known):.1f} cores meanwhile.")


def row(split: Split) -> list[str]:
    """The texts of a line."""
    shares = split.shares
    return [
        split.protocol,
        f"{1e3 * split.total:.0f}",
        f"{100 * shares['train']:.0f}{'' if split.met else '!'}",
        *(f"{100 * share:.1f}" for part, share in shares.items() if part != "train"),
        f"{1e3 * split.overhead:.2f}",
    ]


def verdict(splits: Sequence[Split]) -> str:
    """Which rounds spend less of their time on training than they should."""
    from fedbench.bench.rounds import TARGET

    under = [s for s in sorted(splits, key=lambda s: s.shares["train"]) if not s.met]
    names = ", ".join(f"{s.protocol} on {s.model} ({100 * s.shares['train']:.0f})" for s in under)
    return f"! under {100 * TARGET:.0f} % training: {names or 'none'}"
