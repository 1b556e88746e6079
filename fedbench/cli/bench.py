"""``fedbench bench codecs``: what codecs lose and cost, by themselves."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console, ConsoleOptions, Group, RenderableType

from fedbench.cli.options import Device, Threads, chosen, explained, torch_threads
from fedbench.cli.terminal import status
from fedbench.results.aggregate import grouped
from fedbench.tables.export import as_csv, bullets, literal, markdown
from fedbench.tables.numbers import NA, bits, counted
from fedbench.tables.table import Column, Line, Table
from fedbench.tables.terminal import cell, grid, listed

if TYPE_CHECKING:
    from fedbench.probes.codec_bench import Bench
    from fedbench.probes.codecs import CodecResult, Distortion

app = typer.Typer(no_args_is_help=True, help="Measure the codecs of messages by themselves.")
FIXED = " *"


@app.command()
@explained
def codecs(
    protocol: list[str] | None = None,
    input: list[str] | None = None,
    model: str = "lenet",
    dataset: str | None = None,
    seeds: int = 10,
    draws: int = 2,
    clients: int = 1,
    device: Device = "auto",
    threads: Threads = 2,
    format: str = "table",
) -> None:
    """Measure what codecs lose, cost and take, on drawn vectors and on updates of real clients.

    Squared error, bias, bits and times, all of messages that went over the wire and back.

    What is measured:
        protocol: Protocol with its parameters, e.g. eden:bits=2. Repeat for more; by default all
            that compress updates.
        input: Input: gaussian, lognormal or real. Repeat for more; by default all.
        model: Network whose updates are compressed.
        dataset: Data set of the real updates, by which the network's size goes, too; by default
            fashion-mnist if it is here, else mnist-5k.

    Running:
        seeds: Number of inputs of each kind.
        draws: Messages of each input; more of them resolve a smaller bias.
        clients: Messages that are compressed at once.
        format: Form of the output: table, csv, json or md.
    """
    from fedbench.probes.codec_bench import play
    from fedbench.probes.codecs import CodecPlan

    chosen("--format", format, ("table", "csv", "json", "md"))
    plan = CodecPlan(seeds, draws, clients)
    with torch_threads(threads), status() as say:
        bench = play(protocol, input, dataset, model, device, plan, say)
    if format == "table":
        console = Console()
        console.print(report(bench, console.options))
    elif format == "md":
        print(page(bench), end="")
    else:
        print(csv_text(bench) if format == "csv" else json_text(bench), end="")
        for line in remarks(bench):  # a program would stumble over them
            print(f"fedbench: {line}", file=sys.stderr)


def number(x: float) -> str:
    """Format a number with a few digits.

    >>> [number(x) for x in (0.0, 4.34e-8, 0.0096, 0.5709, 32.34, 1234.5)]
    ['0', '4.3e-08', '0.0096', '0.571', '32.3', '1234']
    """
    if x == 0:
        return "0"
    if x < 1e-3:
        return f"{x:.1e}"
    if x < 0.1:
        return f"{x:.4f}"
    return f"{x:.3f}" if x < 10 else f"{x:.1f}" if x < 1000 else f"{x:.0f}"


def percent(share: float) -> str:
    """Format a share in percent, with two digits where they are needed.

    >>> [percent(share) for share in (0.0002083, 0.06, 0.9981, 1.2)]
    ['0.021', '6.0', '99.8', '120']
    """
    x = 100 * share
    return f"{x:.2g}" if x < 1 else f"{x:.1f}" if x < 100 else f"{x:.0f}"


def bias(of: Distortion) -> str:
    """Format a bias in percent, or ``0 (<2.6)`` if it is below what the test could detect.

    >>> from fedbench.probes.codecs import Distortion
    >>> bias(Distortion(0.57, 0.57, 0.004, biased=False, bias_limit=0.026, gain=1.0))
    '0 (<2.6)'
    """
    if of.biased:
        return percent(of.bias)
    return f"0 (<{percent(of.bias_limit)})" if of.bias_limit else "0"


def _lost(text: Callable[[Distortion], str]) -> Callable[[CodecResult], str]:
    return lambda row: NA if row.distortion is None else text(row.distortion)


COLUMNS: dict[str, Callable[[CodecResult], str]] = {
    "NMSE\nmean": _lost(lambda of: number(of.nmse)),
    "NMSE\nmax": _lost(lambda of: number(of.nmse_max)),
    "bias\n%": _lost(bias),
    "\ngain": _lost(lambda of: f"{of.gain:.3f}"),
    "\nbits": lambda row: bits(row.bits),
    "encode\nms/M": lambda row: f"{row.encode:.1f}",
    "decode\nms/M": lambda row: f"{row.decode:.1f}",
}


def name(row: CodecResult) -> str:
    """Name the codec, marked if its magnitude is fixed."""
    return row.codec + (FIXED if row.scale == "fixed" else "")


def header(bench: Bench) -> str:
    """Describe the setting on which all numbers depend."""
    plan = bench.plan
    where = counted(bench.threads, "thread") if bench.device == "cpu" else bench.device
    return (
        f"updates of {bench.model} on {bench.dataset}, {bench.parameters:,} parameters; "
        f"{plan.seeds} inputs of each kind, {plan.draws} draws; {where}"
    )


def captions(bench: Bench) -> dict[str, str]:
    """Explain the kinds of input and the columns."""
    from fedbench.probes.codec_bench import INPUTS
    from fedbench.probes.codecs import LEVEL

    rows = bench.rows
    terms = {kind: INPUTS[kind] for kind in dict.fromkeys(row.kind for row in rows)}
    if "real" in terms:
        terms["real"] += f" on {bench.dataset}"
    if any(row.distortion for row in rows):
        terms["NMSE"] = "|x' - x|^2 / |x|^2, where x' is what arrived; over inputs and draws"
        terms["bias"] = (
            "|E x' - x| / |x|, from several draws of each input; 0 (<a): not told from 0 by a "
            f"t-test at {100 * LEVEL:g} %, as a bias of about a % would have been"
        )
        terms["gain"] = "mean of <x', x> / |x|^2: 1 if the part of x' along x has the length of x"
    terms["bits"] = "per parameter, counted on messages that were decoded again"
    clients = bench.plan.clients
    together = f", {clients} messages at once" if clients > 1 else ""
    terms["ms/M"] = (
        "milliseconds per million parameters, median: encode from update to bytes, decode from "
        f"bytes to dense values{together}"
    )
    if any(row.distortion is None for row in rows):
        terms[NA] = "messages without a scale: nothing to compare"
    if any(row.scale == "fixed" for row in rows):
        terms[FIXED.strip()] = "of a fixed magnitude: what is lost depends on how long x is"
    if memory := dict.fromkeys(row.codec for row in rows if row.error_feedback):
        terms["memory"] = f"{', '.join(memory)}: measured without a past, so with no error fed back"
    return terms


def remarks(bench: Bench) -> list[str]:
    """Return notes on data and times, and the codecs that were not measured, by reason."""
    reasons = grouped(bench.others, bench.others.__getitem__)
    skipped = "; ".join(f"{', '.join(codecs)} ({why})" for why, codecs in reasons.items())
    return [*bench.notes, *([f"not measured: {skipped}"] if skipped else [])]


def report(bench: Bench, options: ConsoleOptions) -> Group:
    """Lay out a table for each kind of input, for a terminal."""
    parts: list[RenderableType] = [cell(header(bench), options, "bold")]
    for table in tables(bench):
        parts += ["", grid(table, options)]
    notes = [cell(line, options, "dim") for line in remarks(bench)]
    return Group(*parts, "", listed(captions(bench).items(), options), *notes)


def tables(bench: Bench) -> list[Table]:
    """Make a table for each kind of input, all with columns of one width."""
    longest = max(len(name(row)) for row in bench.rows)
    names = Column("\ncodec", "left", wraps=True, width=min(24, longest))
    numbers = [
        Column(heading, width=max(len(text(row)) for row in bench.rows))
        for heading, text in COLUMNS.items()
    ]

    def line(row: CodecResult) -> Line:
        return Line([name(row), *(text(row) for text in COLUMNS.values())])

    kinds = grouped(bench.rows, lambda row: row.kind)
    return [Table([names, *numbers], [*map(line, rows)], kind) for kind, rows in kinds.items()]


def page(bench: Bench) -> str:
    """Write the tables and their notes in Markdown."""
    head = header(bench)
    parts = [f"{head[0].upper()}{head[1:]}.\n"]
    parts += [f"### {table.title}\n\n{markdown(table, literal)}" for table in tables(bench)]
    terms = captions(bench).items()
    parts.append(bullets(f"{literal(term)}: {literal(text)}" for term, text in terms))
    parts += [f"{literal(line)}\n" for line in remarks(bench)]
    return "\n".join(parts)


def csv_text(bench: Bench) -> str:
    """Write a line for each codec and kind of input; what does not exist is empty."""
    return as_csv([flat(row) for row in bench.rows]).decode()


def json_text(bench: Bench) -> str:
    """Write everything, in full precision."""
    fields = dataclasses.asdict(bench) | {"rows": [flat(row) for row in bench.rows]}
    return json.dumps(fields, indent=2) + "\n"


def flat(row: CodecResult) -> dict[str, Any]:
    """Flatten a row; ``*_ms`` are milliseconds per million parameters of a client."""
    from fedbench.probes.codecs import Distortion

    lost = [field.name for field in dataclasses.fields(Distortion)]
    return {
        "codec": row.codec,
        "input": row.kind,
        **{name: row.distortion and getattr(row.distortion, name) for name in lost},
        "bits": row.bits,
        "encode_ms": row.encode,
        "decode_ms": row.decode,
        "scale": row.scale,
        "error_feedback": row.error_feedback,
    }
