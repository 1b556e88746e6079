"""``fedbench bench codecs``: what codecs lose and cost, by themselves."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from fedbench.cli.options import Device, Threads, option, torch_threads

if TYPE_CHECKING:
    from fedbench.probes.codec_play import Bench

app = typer.Typer(no_args_is_help=True, help="Measure the codecs of messages by themselves.")
FORMATS = ("table", "csv", "json", "md")
_WHAT = "What is measured"


@app.command()
def codecs(
    protocol: Annotated[
        list[str] | None,
        option(
            "Protocol with its parameters, e.g. eden:bits=2. Repeat for more; by default "
            "all that compress updates.",
            "--protocol",
            "-p",
            panel=_WHAT,
        ),
    ] = None,
    input: Annotated[
        list[str] | None,
        option(
            "Input: gaussian, lognormal or real. Repeat for more; by default all.",
            "--input",
            "-i",
            panel=_WHAT,
        ),
    ] = None,
    model: Annotated[str, option("Network whose updates are compressed.", panel=_WHAT)] = "lenet",
    dataset: Annotated[
        str | None,
        option(
            "Data set of the real updates; by default fashion-mnist if it is here, else mnist-5k.",
            panel=_WHAT,
        ),
    ] = None,
    seeds: Annotated[int, option("Number of inputs of each kind.")] = 10,
    draws: Annotated[
        int,
        option("Messages of each input; more see a smaller bias."),
    ] = 2,
    clients: Annotated[int, option("Messages that are compressed at once.")] = 1,
    device: Device = "auto",
    threads: Threads = 2,
    format: Annotated[str, option("Form of the output: table, csv, json or md.")] = "table",
) -> None:
    """Measure what codecs lose, cost and take, on drawn vectors and on updates of real clients.

    Squared error, bias, bits and times, all of messages that went over the wire and back.
    """
    from fedbench.cli.terminal import status
    from fedbench.core.errors import require
    from fedbench.probes.codec_play import play
    from fedbench.probes.codecs import CodecPlan

    require("--format", format, format in FORMATS, ", ".join(FORMATS[:-1]) + f" or {FORMATS[-1]}")
    plan = CodecPlan(seeds, draws, clients)
    with torch_threads(threads), status() as say:
        done = play(protocol, input, dataset, model, device, plan, say)
    show(done, format)


def show(bench: Bench, format: str) -> None:
    """The results on stdout; what a program would stumble over, on stderr."""
    from rich.console import Console

    from fedbench.cli import codec_table

    if format == "table":
        console = Console()
        console.print(codec_table.CodecReport(bench))
    elif format == "md":
        print(codec_table.markdown(bench), end="")
    else:
        write = codec_table.csv if format == "csv" else codec_table.json
        print(write(bench), end="")
        for line in codec_table.remarks(bench):
            print(f"fedbench: {line}", file=sys.stderr)
