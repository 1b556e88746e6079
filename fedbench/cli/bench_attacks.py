"""``fedbench bench attacks``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from fedbench.bench.attacks import Cost

FORMATS = ("table", "json", "md")
_WHAT, _HOW = "What is measured", "Running"
HEAD = ("system", "attack", "round, s", "%", "from", "to", "budget")


def attacks(
    protocol: Annotated[
        list[str] | None,
        typer.Option(
            "--protocol",
            "-p",
            help="repeat for more; default: fedavg, signsgd, fedpm, fsl",
            rich_help_panel=_WHAT,
        ),
    ] = None,
    attack: Annotated[
        list[str] | None,
        typer.Option(
            "--attack",
            "-a",
            help="repeat for more; default: every installed one that fits",
            rich_help_panel=_WHAT,
        ),
    ] = None,
    defense: Annotated[
        list[str] | None,
        typer.Option("--defense", "-d", help="repeat for more", rich_help_panel=_WHAT),
    ] = None,
    model: Annotated[str, typer.Option(rich_help_panel=_WHAT)] = "lenet",
    dataset: Annotated[str, typer.Option(rich_help_panel=_WHAT)] = "digits",
    per_round: Annotated[
        int, typer.Option(help="clients a round, of twice as many", rich_help_panel=_WHAT)
    ] = 25,
    malicious: Annotated[float, typer.Option(rich_help_panel=_WHAT)] = 0.2,
    rounds: Annotated[int, typer.Option(help="that count", rich_help_panel=_HOW)] = 3,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda", rich_help_panel=_HOW)] = "auto",
    threads: Annotated[int, typer.Option(help="of torch, on a CPU", rich_help_panel=_HOW)] = 2,
    format: Annotated[str, typer.Option(help="table, json or md", rich_help_panel=_HOW)] = "table",
) -> None:
    """What every attack adds to a round: its own seconds over those of everything else.

    The budget is 15 % for an attack that reads what is there anyway, 50 % for one that asks the
    server's rule, and none for one that trains.
    """
    from fedbench.bench.attacks import PROTOCOLS, described, play
    from fedbench.cli.options import torch_threads
    from fedbench.cli.terminal import status
    from fedbench.core.errors import require
    from fedbench.experiment.scenario import Scenario

    require("--format", format, format in FORMATS, ", ".join(FORMATS[:-1]) + f" or {FORMATS[-1]}")
    require("--rounds", rounds, rounds >= 1, ">= 1")
    scenario = Scenario.of(
        dataset=dataset,
        model=model,
        clients=2 * per_round,
        per_round=per_round,
        malicious=malicious,
    )
    with torch_threads(threads), status() as say:
        chosen = (protocol or PROTOCOLS, attack or [], defense or ["own"])
        costs = list(play(scenario, *chosen, rounds, device, say))
    if format == "json":
        print(json.dumps([described(cost) for cost in costs], indent=1))
    else:
        show(costs, format)


def show(costs: Sequence[Cost], format: str) -> None:
    """One line an attack, over its budget marked."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    if format == "md":
        print("| " + " | ".join(HEAD) + " |\n|" + " --- |" * 2 + " ---: |" * 5)
        for cost in costs:
            print("| " + " | ".join(row(cost)) + " |")
        return
    table = Table(box=box.SIMPLE_HEAD)
    for i, title in enumerate(HEAD):
        table.add_column(title, justify="left" if i < 2 else "right", no_wrap=True)
    for cost in costs:
        table.add_row(*row(cost), style=None if cost.within else "bold")
    console = Console()
    console.print(table)
    over = sum(not cost.within for cost in costs)
    console.print(
        "%: the adversary's seconds over those of all else in a round, median, least and most\n"
        f"{over} of {len(costs)} over their budget",
        highlight=False,
    )


def row(cost: Cost) -> list[str]:
    """Texts of a line."""
    shares = [f"{100 * share:.1f}" for share in (cost.share, min(cost.shares), max(cost.shares))]
    budget = "trains" if cost.budget is None else f"{100 * cost.budget:g}"
    mark = "" if cost.within else " !"
    names = [f"{cost.protocol} + {cost.defense}", cost.attack]
    return [*names, f"{cost.round:.2f}", *shares, budget + mark]
