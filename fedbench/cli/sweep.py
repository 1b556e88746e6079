"""``fedbench sweep``: hundreds of runs from one file, in a store that survives anything."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from fedbench.experiment.cells import Cell, Run, Skipped
    from fedbench.sweep.drive import Tally
    from fedbench.sweep.engine import Engine
    from fedbench.sweep.local import Options
    from fedbench.sweep.plan import Plan

_CLUSTER, _HOW = "Ray", "Running"


def sweep(
    file: Annotated[
        Path, typer.Argument(help="TOML: seeds, [scenario], [[grid]]; a list is an axis")
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="the store; default: results/NAME of FILE", show_default=False),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="only say what it would do, and how long it may take")
    ] = False,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="also play runs that failed before")
    ] = False,
    engine: Annotated[str, typer.Option(help="local or ray", rich_help_panel=_HOW)] = "local",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda", rich_help_panel=_HOW)] = "auto",
    executor: Annotated[
        str, typer.Option(help="auto, loop, stacked, recorded or forked", rich_help_panel=_HOW)
    ] = "auto",
    chunk: Annotated[
        int,
        typer.Option(
            help="clients a stacked launch trains; less where memory runs out", rich_help_panel=_HOW
        ),
    ] = 32,
    workers: Annotated[
        int,
        typer.Option(
            help="runs at once; 0: one per GPU, or per --threads cores", rich_help_panel=_HOW
        ),
    ] = 0,
    threads: Annotated[int, typer.Option(help="of each run, on a CPU", rich_help_panel=_HOW)] = 1,
    together: Annotated[
        int,
        typer.Option(
            help="runs of a worker that share launches: for GPUs, and very small models",
            rich_help_panel=_HOW,
        ),
    ] = 1,
    run_timeout: Annotated[
        float,
        typer.Option(
            help="seconds after which a run is ended and counts as failed", rich_help_panel=_HOW
        ),
    ] = 21600.0,
    isolate: Annotated[
        bool,
        typer.Option(
            "--isolate",
            help="attack and defense in processes of their own, which hold only what they are "
            "shown",
            rich_help_panel=_HOW,
        ),
    ] = False,
    address: Annotated[
        str | None,
        typer.Option(
            help="of the cluster: auto, HOST:PORT, ray://…; default: one of its own",
            show_default=False,
            rich_help_panel=_CLUSTER,
        ),
    ] = None,
    gpus_per_run: Annotated[
        float, typer.Option(help="a fraction lets runs share one", rich_help_panel=_CLUSTER)
    ] = 0.0,
) -> None:
    """Play every combination of a file over its seeds; what the store has is not played again.

    A record is there as soon as its run ends. Killed at any instant, the same command goes on where
    it was; two sweeps, on two machines too, may share a store. A run that fails is recorded with
    its traceback, and the sweep goes on.
    """
    from rich.console import Console

    from fedbench.core.errors import require
    from fedbench.executors.factory import require_known
    from fedbench.sweep.local import Options
    from fedbench.sweep.plan import Plan, runs

    require("--engine", engine, engine in ("local", "ray"), "local or ray")
    require("--device", device, device in ("auto", "cpu", "cuda"), "auto, cpu or cuda")
    require_known(executor)
    require("--gpus-per-run", gpus_per_run, gpus_per_run >= 0, ">= 0")
    options = Options(device, executor, chunk, workers, threads, together, run_timeout, isolate)
    if engine == "local":
        options.require_machine()
    plan = Plan.read(file)
    cells, skipped = plan.cells()
    everything = runs(cells, plan.seeds)
    store = out or Path("results") / file.stem
    console = Console()
    announce(console, plan, cells, skipped, store)
    if dry_run:
        workers = options.processes(len(everything)) if engine == "local" else workers or 1
        foresee(console, everything, store, options, workers)
        return
    start = time.monotonic()
    with _engine(engine, options, len(everything), address, gpus_per_run) as playing:
        tally = go(console, plan, cells, everything, playing, store, chunk, retry_failed)
    summarise(console, tally, store, len(everything), time.monotonic() - start)


def announce(
    console: Console, plan: Plan, cells: list[Cell], skipped: list[Skipped], store: Path
) -> None:
    """What is swept over, and what is left out with the reason."""
    from fedbench.tables.table import skipped_lines

    seeds = ",".join(map(str, plan.seeds))
    total = len(cells) * len(plan.seeds)
    console.print(plan.title, style="bold", highlight=False, markup=False)
    counts = f"{len(cells)} cells x seeds {seeds} = {total} runs, store {store}"
    console.print(counts, highlight=False, markup=False, soft_wrap=True)
    if cells[0].varied:
        console.print(f"axes beside the plug-ins: {', '.join(cells[0].varied)}", highlight=False)
    for line in skipped_lines(skipped):
        console.print(f"skipped: {line}", highlight=False, markup=False)


def foresee(
    console: Console, runs: list[Run], folder: Path, options: Options, workers: int
) -> None:
    """What is there already, what is missing, how long that may take."""
    from fedbench.cli.live import duration
    from fedbench.results.store import Store
    from fedbench.sweep.estimate import estimate
    from fedbench.tables.columns import counted

    store = Store(folder)
    missing = [run for run in runs if not store.has(run)]
    failed = sum(store.failure(run) is not None for run in missing)
    said = f"{len(runs) - len(missing)} runs have a record, {len(missing)} are missing"
    console.print(said + (f", {failed} of which failed before" if failed else ""), highlight=False)
    if not missing:
        return
    expected = estimate(missing, options)
    if expected.seconds is None:
        console.print("no probe could be played: no estimate", highlight=False)
        return
    each = min(workers, len(missing))
    console.print(
        f"about {duration(expected.seconds / each)} on {counted(each, 'worker')}, from two "
        f"rounds of {expected.probed} of {expected.cells} cells",
        highlight=False,
    )


def go(
    console: Console,
    plan: Plan,
    cells: list[Cell],
    runs: list[Run],
    engine: Engine,
    folder: Path,
    chunk: int,
    retry_failed: bool,
) -> Tally:
    """Play what is missing, and show it."""
    from fedbench.cli.live import watcher
    from fedbench.results.store import Store
    from fedbench.sweep.drive import Sweep

    with Store(folder) as store, watcher(console, cells, plan.seeds, table=False) as watch:
        return Sweep(engine, store, watch, chunk, retry_failed).play(runs)


def summarise(console: Console, tally: Tally, store: Path, runs: int, seconds: float) -> None:
    """Counts, failures, where to look; exit 1 for failures, 130 if it was stopped."""
    from fedbench.cli.live import duration
    from fedbench.tables.columns import counted

    whole = len(tally.found) + len(tally.played)
    console.print(
        f"{whole} of {runs} runs have a record in {store}: {len(tally.found)} were there, "
        f"{len(tally.played)} played in {duration(seconds)}; now: fedbench results {store}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
    if tally.failed:
        print(
            f"fedbench: {counted(len(tally.failed), 'run')} failed; tracebacks: fedbench results "
            f"{store} --failed; --retry-failed plays them again",
            file=sys.stderr,
        )
    if tally.left:
        print(f"fedbench: stopped with {counted(len(tally.left), 'run')} left", file=sys.stderr)
        raise typer.Exit(130)
    if tally.failed:
        raise typer.Exit(1)


def _engine(
    name: str, options: Options, runs: int, address: str | None, gpus_per_run: float
) -> Engine:
    from fedbench.core.errors import require

    if name == "ray":
        from fedbench.sweep.on_ray import OnRay

        require("--together", options.together, options.together == 1, "1 with --engine ray")
        return OnRay(options, address, gpus_per_run)
    from fedbench.sweep.local import Local

    require("--address", address, address is None, "left out without --engine ray")
    require("--gpus-per-run", gpus_per_run, gpus_per_run == 0, "left out without --engine ray")
    return Local(options, options.processes(runs))
