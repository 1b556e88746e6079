"""What codecs lose and cost: as tables for people, and for programs."""

from __future__ import annotations

import csv as csv_module
import dataclasses
import io
import json as json_module
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from fedbench.tables.columns import NONE, bits
from fedbench.tables.table import cell, listed

if TYPE_CHECKING:
    from fedbench.probes.codec_play import Bench
    from fedbench.probes.codecs import CodecResult
    from fedbench.probes.distortion import Distortion

FIXED = " *"


def number(x: float) -> str:
    """A few digits.

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
    """Two digits where they are needed.

    >>> [percent(share) for share in (0.0002083, 0.06, 0.9981, 1.2)]
    ['0.021', '6.0', '99.8', '120']
    """
    x = 100 * share
    return f"{x:.2g}" if x < 1 else f"{x:.1f}" if x < 100 else f"{x:.0f}"


def bias(of: Distortion) -> str:
    """In percent; ``0 (<2.6)`` where it is not told from 0, and what would have been.

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
    """The codec, marked if its magnitude is fixed."""
    return row.codec + (FIXED if row.scale == "fixed" else "")


def header(bench: Bench) -> str:
    """What all numbers depend on."""
    plan, s = bench.plan, "s" * (bench.threads > 1)
    where = f"{bench.threads} thread{s}" if bench.device == "cpu" else bench.device
    return (
        f"updates of {bench.model} on {bench.dataset}, {bench.parameters:,} parameters; "
        f"{plan.seeds} inputs of each kind, {plan.draws} draws; {where}"
    )


def captions(bench: Bench) -> dict[str, str]:
    """What kinds of input and columns are."""
    from fedbench.probes.codec_inputs import INPUTS
    from fedbench.probes.distortion import LEVEL

    plan, rows = bench.plan, bench.rows
    said = {kind: INPUTS[kind] for kind in dict.fromkeys(row.kind for row in rows)}
    if "real" in said:
        said["real"] += f" on {bench.dataset}"
    if any(row.distortion for row in rows):
        said["NMSE"] = "|x' - x|^2 / |x|^2, where x' is what arrived; over inputs and draws"
        said["bias"] = (
            "|E x' - x| / |x|, from several draws of each input; 0 (<a): not told from 0 by a "
            f"t-test at {100 * LEVEL:g} %, as a bias of about a % would have been"
        )
        said["gain"] = "mean of <x', x> / |x|^2: 1 if the part of x' along x has the length of x"
    said["bits"] = "per parameter, counted on messages that were decoded again"
    together = f", {plan.clients} messages at once" if plan.clients > 1 else ""
    said["ms/M"] = (
        "milliseconds per million parameters, median: encode from update to bytes, decode from "
        f"bytes to dense values{together}"
    )
    if any(row.distortion is None for row in rows):
        said[NONE] = "messages without a scale: nothing to compare"
    if any(row.scale == "fixed" for row in rows):
        said[FIXED.strip()] = "of a fixed magnitude: what is lost depends on how long x is"
    if memory := dict.fromkeys(row.codec for row in rows if row.error_feedback):
        said["memory"] = f"{', '.join(memory)}: measured without a past, so with no error fed back"
    return said


def remarks(bench: Bench) -> list[str]:
    """On data and times, and what was not measured, those with one reason together."""
    reasons: dict[str, list[str]] = {}
    for codec, reason in bench.others.items():
        reasons.setdefault(reason, []).append(codec)
    skipped = "; ".join(f"{', '.join(codecs)} ({why})" for why, codecs in reasons.items())
    return [*bench.notes, *([f"not measured: {skipped}"] if skipped else [])]


def by_kind(rows: Sequence[CodecResult]) -> dict[str, list[CodecResult]]:
    """A table's rows each."""
    kinds: dict[str, list[CodecResult]] = {}
    for row in rows:
        kinds.setdefault(row.kind, []).append(row)
    return kinds


@dataclass(frozen=True, eq=False)
class Report:
    """For a terminal: a table for each kind of input, with columns of one width."""

    bench: Bench

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield cell(header(self.bench), options, "bold")
        for kind, rows in by_kind(self.bench.rows).items():
            yield ""
            yield self._table(kind, rows, options)
        yield ""
        yield listed(captions(self.bench).items(), options)
        for line in remarks(self.bench):
            yield cell(line, options, "dim")

    def _table(self, kind: str, rows: Sequence[CodecResult], options: ConsoleOptions) -> Table:
        table = Table(
            title=Text(kind, style="bold"),
            title_justify="left",
            box=box.HORIZONTALS,
            padding=(0, 1, 0, 0),
            pad_edge=False,
            show_edge=False,
        )
        every = self.bench.rows
        table.add_column("\ncodec", min_width=min(24, max(len(name(row)) for row in every)))
        for head, text in COLUMNS.items():
            width = max(len(text(row)) for row in every)
            table.add_column(head, justify="right", no_wrap=True, min_width=width)
        for row in rows:
            shown = name(row).replace(",", ", ")  # long parameter lists wrap at spaces
            texts = (shown, *(text(row) for text in COLUMNS.values()))
            table.add_row(*(cell(text, options) for text in texts))
        return table


def markdown(bench: Bench) -> str:
    """The same for a page."""
    heads = ["codec", *(head.replace("\n", " ").strip() for head in COLUMNS)]
    said = header(bench)
    parts = [f"{said[0].upper()}{said[1:]}.\n"]
    for kind, rows in by_kind(bench.rows).items():
        body = [[name(row), *(text(row) for text in COLUMNS.values())] for row in rows]
        cells = [heads, [":--", *["--:"] * len(COLUMNS)], *body]
        lines = [f"| {' | '.join(_escaped(text) for text in line)} |\n" for line in cells]
        parts.append(f"### {kind}\n\n{''.join(lines)}")
    terms = captions(bench).items()
    parts.append("".join(f"- {_escaped(term)}: {_escaped(said)}\n" for term, said in terms))
    parts += [f"{_escaped(line)}\n" for line in remarks(bench)]
    return "\n".join(parts)


def _escaped(text: str) -> str:
    for special in "|*<":
        text = text.replace(special, "\\" + special)
    return text


def csv(bench: Bench) -> str:
    """A line for each codec and kind of input; what does not exist is empty."""
    out = io.StringIO()
    records = [flat(row) for row in bench.rows]
    writer = csv_module.DictWriter(out, list(records[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return out.getvalue()


def json(bench: Bench) -> str:
    """Everything, in full precision."""
    fields = {f.name: getattr(bench, f.name) for f in dataclasses.fields(bench)}
    fields["plan"] = dataclasses.asdict(bench.plan)
    fields["rows"] = [flat(row) for row in bench.rows]
    return json_module.dumps(fields, indent=2) + "\n"


def flat(row: CodecResult) -> dict[str, Any]:
    """One level of names; ``*_ms`` are milliseconds per million parameters of a client."""
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
