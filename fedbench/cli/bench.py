"""``fedbench bench``: the suite, and parts by themselves."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from fedbench.cli.bench_attacks import attacks
from fedbench.cli.bench_defenses import defenses
from fedbench.cli.bench_rounds import rounds
from fedbench.cli.bench_speed import speed

if TYPE_CHECKING:
    from fedbench.bench.play import Bench

app = typer.Typer(invoke_without_command=True)
FORMATS = ("table", "csv", "json", "md")
_WHAT, _HOW = "What is measured", "Running"


app.callback()(speed)
app.command("attacks")(attacks)
app.command("defenses")(defenses)
app.command("rounds")(rounds)


@app.command()
def codecs(
    protocol: Annotated[
        list[str] | None,
        typer.Option(
            "--protocol",
            "-p",
            help="repeat for more, e.g. -p eden:bits=2; default: all that compress updates",
            rich_help_panel=_WHAT,
        ),
    ] = None,
    input: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            "-i",
            help="gaussian, lognormal or real; repeat for more; default: all",
            rich_help_panel=_WHAT,
        ),
    ] = None,
    model: Annotated[
        str, typer.Option(help="the network whose updates they are", rich_help_panel=_WHAT)
    ] = "lenet",
    dataset: Annotated[
        str | None,
        typer.Option(
            help="of the real updates; default: fashion-mnist if it is here, else mnist-5k",
            rich_help_panel=_WHAT,
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(help="inputs of each kind", rich_help_panel=_HOW)] = 10,
    draws: Annotated[
        int,
        typer.Option(help="messages of each input; more see a smaller bias", rich_help_panel=_HOW),
    ] = 2,
    clients: Annotated[
        int, typer.Option(help="messages compressed at once", rich_help_panel=_HOW)
    ] = 1,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda", rich_help_panel=_HOW)] = "auto",
    threads: Annotated[int, typer.Option(help="of torch, on a CPU", rich_help_panel=_HOW)] = 2,
    format: Annotated[
        str, typer.Option(help="table, csv, json or md", rich_help_panel=_HOW)
    ] = "table",
) -> None:
    """What every codec loses, costs and takes: on drawn vectors and on updates of real clients.

    Squared error, bias, bits and times, all of messages that went over the wire and back.
    """
    from fedbench.bench.play import play
    from fedbench.cli.options import torch_threads
    from fedbench.cli.terminal import status
    from fedbench.core.errors import require
    from fedbench.probes.codecs import Plan

    require("--format", format, format in FORMATS, ", ".join(FORMATS[:-1]) + f" or {FORMATS[-1]}")
    plan = Plan(seeds, draws, clients)
    with torch_threads(threads), status() as say:
        done = play(protocol, input, dataset, model, device, plan, say)
    show(done, format)


def show(bench: Bench, format: str) -> None:
    """The results on stdout; what a program would stumble over, on stderr."""
    from rich.console import Console

    from fedbench.cli import codec_table

    if format == "table":
        console = Console()
        console.print(codec_table.Report(bench))
    elif format == "md":
        print(codec_table.markdown(bench), end="")
    else:
        write = codec_table.csv if format == "csv" else codec_table.json
        print(write(bench), end="")
        for line in codec_table.remarks(bench):
            print(f"fedbench: {line}", file=sys.stderr)
