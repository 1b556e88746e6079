"""Losses and costs of codecs, as tables for people and for programs."""

from __future__ import annotations

import dataclasses
import json as json_module
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console, ConsoleOptions, RenderResult

from fedbench.tables.export import as_csv
from fedbench.tables.markdown import bullets, literal
from fedbench.tables.markdown import markdown as in_markdown
from fedbench.tables.numbers import NONE, bits, counted
from fedbench.tables.table import Column, Line, Table
from fedbench.tables.terminal import cell, grid, listed

if TYPE_CHECKING:
    from fedbench.probes.codec_play import Bench
    from fedbench.probes.codecs import CodecResult
    from fedbench.probes.distortion import Distortion

FIXED = " *"


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

    >>> from fedbench.probes.distortion import Distortion
    >>> bias(Distortion(0.57, 0.57, 0.004, biased=False, bias_limit=0.026, gain=1.0))
    '0 (<2.6)'
    """
    if of.biased:
        return percent(of.bias)
    return f"0 (<{percent(of.bias_limit)})" if of.bias_limit else "0"


def _lost(text: Callable[[Distortion], str]) -> Callable[[CodecResult], str]:
    return lambda row: NONE if row.distortion is None else text(row.distortion)


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
    from fedbench.probes.codec_inputs import INPUTS
    from fedbench.probes.distortion import LEVEL

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
        terms[NONE] = "messages without a scale: nothing to compare"
    if any(row.scale == "fixed" for row in rows):
        terms[FIXED.strip()] = "of a fixed magnitude: what is lost depends on how long x is"
    if memory := dict.fromkeys(row.codec for row in rows if row.error_feedback):
        terms["memory"] = f"{', '.join(memory)}: measured without a past, so with no error fed back"
    return terms


def remarks(bench: Bench) -> list[str]:
    """Return notes on data and times, and the codecs that were not measured, by reason."""
    reasons: dict[str, list[str]] = {}
    for codec, reason in bench.others.items():
        reasons.setdefault(reason, []).append(codec)
    skipped = "; ".join(f"{', '.join(codecs)} ({why})" for why, codecs in reasons.items())
    return [*bench.notes, *([f"not measured: {skipped}"] if skipped else [])]


@dataclass(frozen=True, eq=False)
class CodecReport:
    """Tables of codecs for a terminal, one for each kind of input."""

    bench: Bench

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield cell(header(self.bench), options, "bold")
        for table in tables(self.bench):
            yield ""
            yield grid(table, options)
        yield ""
        yield listed(captions(self.bench).items(), options)
        for line in remarks(self.bench):
            yield cell(line, options, "dim")


def tables(bench: Bench) -> list[Table]:
    """Make a table for each kind of input, all with columns of one width."""
    names = Column(
        "\ncodec", "left", wraps=True, width=min(24, max(len(name(row)) for row in bench.rows))
    )
    numbers = [
        Column(heading, width=max(len(text(row)) for row in bench.rows))
        for heading, text in COLUMNS.items()
    ]
    lines: dict[str, list[Line]] = {}
    for row in bench.rows:
        texts = [name(row), *(text(row) for text in COLUMNS.values())]
        lines.setdefault(row.kind, []).append(Line(texts))
    return [Table([names, *numbers], rows, kind) for kind, rows in lines.items()]


def markdown(bench: Bench) -> str:
    """Write the tables and their notes for a page."""
    head = header(bench)
    parts = [f"{head[0].upper()}{head[1:]}.\n"]
    parts += [f"### {table.title}\n\n{in_markdown(table, literal)}" for table in tables(bench)]
    terms = captions(bench).items()
    parts.append(bullets(f"{literal(term)}: {literal(text)}" for term, text in terms))
    parts += [f"{literal(line)}\n" for line in remarks(bench)]
    return "\n".join(parts)


def csv(bench: Bench) -> str:
    """Write a line for each codec and kind of input; what does not exist is empty."""
    return as_csv([flat(row) for row in bench.rows]).decode()


def json(bench: Bench) -> str:
    """Write everything, in full precision."""
    fields = {f.name: getattr(bench, f.name) for f in dataclasses.fields(bench)}
    fields["plan"] = dataclasses.asdict(bench.plan)
    fields["rows"] = [flat(row) for row in bench.rows]
    return json_module.dumps(fields, indent=2) + "\n"


def flat(row: CodecResult) -> dict[str, Any]:
    """Flatten a row; ``*_ms`` are milliseconds per million parameters of a client."""
    from fedbench.probes.distortion import Distortion

    lost = row.distortion
    names = [field.name for field in dataclasses.fields(Distortion)]
    return {
        "codec": row.codec,
        "input": row.kind,
        **{name: None if lost is None else getattr(lost, name) for name in names},
        "bits": row.bits,
        "encode_ms": row.encode,
        "decode_ms": row.decode,
        "scale": row.scale,
        "error_feedback": row.error_feedback,
    }
