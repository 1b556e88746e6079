"""Play the plan of ``fedbench attack``, show it, write it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from fedbench.experiment.cells import Cell, Run
    from fedbench.results.store import Failure, Store
    from fedbench.results.summary import Row
    from fedbench.sweep.local import Options
    from fedbench.sweep.plan import Plan


def run(console: Console, plan: Plan, options: Options, out: Path) -> None:
    """Play the plan, show it, write it; exit 1 if a run failed, 130 if it was stopped."""
    from fedbench.cli.live import watcher
    from fedbench.core.errors import PluginError
    from fedbench.core.files import writable
    from fedbench.experiment.prepare import prepare
    from fedbench.results.store import Store
    from fedbench.results.summary import rows
    from fedbench.sweep.drive import play_each
    from fedbench.sweep.plan import runs
    from fedbench.tables.columns import counted
    from fedbench.tables.table import final_table, skipped_lines

    cells, skipped = plan.cells()
    first = cells[0].scenario.model_copy(update={"seed": plan.seeds[0]})
    # Data, model and partition fit, or it ends here.
    engine = "loop" if options.executor == "auto" else options.executor  # measured by who trains
    with suppress(PluginError):  # of this cell, which fails by itself: others may go on
        prepare(first, options.device, engine, options.chunk)
    writable(out)
    console.print(header(plan, cells, options), highlight=False)
    for line in skipped_lines(skipped):
        console.print(f"skipped: {line}", highlight=False, markup=False)

    store, planned = Store(out), runs(cells, plan.seeds)
    if known := sum(map(store.has, planned)):
        console.print(
            f"{known} of {len(planned)} runs have a record in {out} already", highlight=False
        )
    with watcher(console, cells, plan.seeds) as watch:
        records, failed = play_each(cells, plan.seeds, options, watch, out)
    table, done = rows(cells, records, len(plan.seeds)), sum(map(len, records.values()))
    if table:
        console.print(final_table(table, console.width))
        console.print(write(plan, table, out, done), highlight=False, soft_wrap=True)
    for line in failed_lines(failed, store):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    if failed:
        again = "the same command plays them again"
        print(f"fedbench: {counted(len(failed), 'run')} failed; {again}", file=sys.stderr)
    if done + len(failed) < len(planned):
        print(f"fedbench: stopped after {done} of {len(planned)} runs", file=sys.stderr)
        raise typer.Exit(130)
    if failed:
        raise typer.Exit(1)


def failed_lines(failed: Mapping[Run, Failure], store: Store) -> Iterator[str]:
    """Name the cells without a record, why, and the file with the traceback; seeds share a line."""
    alike: dict[tuple[Cell, str], list[Run]] = {}
    for run, failure in failed.items():
        alike.setdefault((run.cell, str(failure)), []).append(run)
    for (cell, reason), runs in alike.items():
        seeds = ", ".join(str(run.seed) for run in runs)
        place = store.failure_path(runs[0])
        yield f"failed: {cell}, seed{'s' * (len(runs) > 1)} {seeds}: {reason}; see {place}"


def header(plan: Plan, cells: list[Cell], options: Options) -> str:
    """Everything that the numbers depend on, in a few lines."""
    scenario = cells[0].scenario
    runs = len(cells) * len(plan.seeds)
    workers, threads = options.processes(runs), options.threads
    privacy = (
        f"ε at δ = {scenario.delta:g}, before who sees {scenario.sees or 'what each protects'}; "
        f"{scenario.sampling} sampling, adjacency {scenario.adjacency or 'of each mechanism'}"
    )
    return (
        f"[bold]{plan.title}[/bold]\n"
        f"{scenario.dataset}, {scenario.model}, {scenario.partition}; "
        f"{scenario.clients} clients, {scenario.per_round} a round, "
        f"{100 * scenario.malicious:g} % malicious; "
        f"{scenario.rounds} rounds, {scenario.epochs} epoch{'s' * (scenario.epochs > 1)}, "
        f"batch {scenario.batch_size}\n"
        f"{len(cells)} cells x seeds {','.join(map(str, plan.seeds))} = {runs} runs; "
        f"{workers} worker{'s' * (workers > 1)} x {threads} thread{'s' * (threads > 1)}, "
        f"device {options.device}, server checks {scenario.server_checks}"
        + (f"\n{privacy}" if any(c.scenario.mechanism != "none" for c in cells) else "")
    )


def write(plan: Plan, table: list[Row], out: Path, count: int) -> str:
    """Chart and Markdown table beside the records, and a line that says where."""
    from fedbench.core.files import write_atomically
    from fedbench.figures.survival import draw
    from fedbench.tables.table import markdown

    scenario = table[0].cell.scenario
    seeds = len(plan.seeds)
    subtitle = (
        f"{scenario.dataset}, {scenario.model}, {scenario.clients} clients, "
        f"{100 * scenario.malicious:g} % malicious, {scenario.rounds} rounds, "
        f"{seeds} seed{'s' * (seeds > 1)}"
    )
    chart, text = out / "attack.png", out / "attack.md"
    draw(table, plan.title, subtitle, chart)
    write_atomically(text, markdown(table).encode())
    return f"{count} records in {out}/*.json, the table in {text}, the chart in {chart}"
