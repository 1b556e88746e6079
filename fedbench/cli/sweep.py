"""``fedbench sweep``: hundreds of runs from one file, in a store that survives anything."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from fedbench.cli import options as opt
from fedbench.cli.terminal import duration, end, status, watcher
from fedbench.core.canonical import enter
from fedbench.core.errors import ONE_OF_THEM, ConfigError, require
from fedbench.core.files import read_toml
from fedbench.tables.numbers import counted
from fedbench.tables.report import skipped_lines

if TYPE_CHECKING:
    from fedbench.experiment.cells import Cell, Run, Skipped
    from fedbench.sweeps.drive import Tally
    from fedbench.sweeps.engine import Engine
    from fedbench.sweeps.local import Options
    from fedbench.sweeps.plan import Plan


@opt.explained
def sweep(
    file: Path,
    out: Path | None = None,
    dry_run: bool = False,
    retry_failed: bool = False,
    engine: str = "local",
    device: opt.Device = "auto",
    executor: opt.Executor = "auto",
    chunk: opt.Chunk = 32,
    workers: opt.Workers = 0,
    threads: opt.Threads = 1,
    run_timeout: opt.RunTimeout = 21600.0,
    isolate: opt.Isolate = False,
    canonical: opt.Canonical = False,
    keep_states: opt.KeepStates = None,
    save_model: opt.SaveModel = False,
    checkpoint: opt.Checkpoint = None,
    track: opt.Track = None,
    address: str | None = None,
    gpus_per_run: float = 0.0,
) -> None:
    """Play every combination of a file over its seeds; what the store has is not played again.

    The fields of a scenario are the options of [bold]fedbench attack[/bold]. A record is there as
    soon as its run ends. After a kill at any time the same command continues; two sweeps, on two
    machines too, may share a store. A run that fails is recorded with its traceback, and the
    sweep goes on.

    Positional:
        file: TOML file: seeds, a table scenario, tables grid, where a list is an axis.

    Options:
        out: Folder of the store; by default results/NAME of FILE.
        dry_run: Say what would be played and how long it may take.
        retry_failed: Play also runs that failed before.

    Running:
        engine: What plays the runs: local or ray.

    Ray:
        address: Address of the cluster: auto, HOST:PORT or ray://…; by default that of RAY_ADDRESS,
            else of one that starts here.
        gpus_per_run: GPUs of a run; a fraction lets runs share one.
    """
    if canonical:
        enter()
    opt.chosen("--engine", engine, ("local", "ray"))
    require("--gpus-per-run", gpus_per_run, gpus_per_run >= 0, ">= 0")
    table = read_toml(file)
    with status() as say:  # torch alone takes seconds
        say("reading plug-ins")
        from fedbench.core.devices import require_device_name
        from fedbench.executors.factory import require_known
    from fedbench.results.store import Store
    from fedbench.sweeps.drive import Sweep
    from fedbench.sweeps.follow import Following
    from fedbench.sweeps.local import Options
    from fedbench.sweeps.plan import Plan, runs
    from fedbench.tracking.trackers import require_trackers, tracking

    require_device_name(device)
    require_known(executor)
    require_trackers(track or ())
    folder = out or Path("results") / file.stem
    options = Options(
        device=device,
        executor=executor,
        chunk=chunk,
        workers=workers,
        threads=threads,
        run_timeout=run_timeout,
        isolate=isolate,
        canonical=canonical,
        states=keep_states,
        models=folder if save_model else None,
        checkpoint=checkpoint,
        checkpoints=Store(folder).checkpoints,
    )
    if engine == "local":
        options.require_machine()
    plan = Plan.of(table, str(file))
    with status() as say:
        say("reading data and models")
        try:
            cells, skipped = plan.cells()
        except ConfigError as error:
            reason = str(error).replace(ONE_OF_THEM, "for several write a list of names")
            raise ConfigError(f"{file}: {reason}") from error
    everything = runs(cells, plan.seeds)
    console = Console(highlight=False)
    announce(console, plan, cells, skipped, folder)
    if dry_run:
        workers = options.processes(len(everything)) if engine == "local" else workers or 1
        foresee(console, everything, folder, options, workers)
        return
    start = time.monotonic()
    with (
        make_engine(engine, options, len(everything), address, gpus_per_run) as players,
        Store(folder) as store,
        tracking(track or (), plan.title, folder) as trackers,
        watcher(console, cells, plan.seeds) as watch,
    ):
        tally = Sweep(
            engine=players,
            store=store,
            watcher=Following(watch, trackers),
            chunk=chunk,
            retry_failed=retry_failed,
            canonical=canonical,
            models=options.models,
        ).play(everything)
    summarise(tally, folder, len(everything), time.monotonic() - start)


def announce(
    console: Console, plan: Plan, cells: list[Cell], skipped: list[Skipped], store: Path
) -> None:
    """Print what is swept over, and what is left out with the reason."""
    console.print(plan.title, style="bold", markup=False)
    print(f"{plan_size(len(cells), plan.seeds)}, store {store}")
    if cells[0].varied:
        console.print(f"axes beside the plug-ins: {', '.join(cells[0].varied)}")
    for line in skipped_lines(skipped):
        console.print(f"skipped: {line}", markup=False)


def plan_size(cells: int, seeds: Sequence[int]) -> str:
    """Say how many cells, seeds and runs there are.

    >>> plan_size(1, [0]), plan_size(2, [0, 1])
    ('1 cell x seed 0 = 1 run', '2 cells x seeds 0,1 = 4 runs')
    """
    numbers = ",".join(map(str, seeds))
    runs = counted(cells * len(seeds), "run")
    return f"{counted(cells, 'cell')} x seed{'s' * (len(seeds) > 1)} {numbers} = {runs}"


def foresee(
    console: Console, runs: list[Run], folder: Path, options: Options, workers: int
) -> None:
    """Print how many rows are malicious, what the store has and lacks, how long that may take."""
    from fedbench.cli.cohorts import malicious_rows
    from fedbench.results.store import Store

    for line in malicious_rows(run.cell for run in runs):
        console.print(line, markup=False)
    store = Store(folder)
    missing = [run for run in runs if not store.has(run)]
    failed = sum(store.failure(run) is not None for run in missing)
    counts = f"{len(runs) - len(missing)} of {counted(len(runs), 'run')} have a record"
    counts += f", {failed} failed before" if failed else ""
    if others := store.by_other_code(missing):
        counts += f"; another version of fedbench or of a plug-in played {others} of the others"
    console.print(counts)
    if not missing:
        return
    console.print(expectation(missing, options, workers))


def expectation(missing: list[Run], options: Options, workers: int) -> str:
    """Say how long runs may take on so many workers, by playing two rounds of some cells."""
    from fedbench.sweeps.estimate import estimate

    with status() as say:  # on a busy machine, or of a large network, they take minutes
        say("playing two rounds of some cells to estimate the time")
        expected = estimate(missing, options)
    if expected.seconds is None:
        return "no probe could be played: no estimate"
    busy = min(workers, len(missing))
    return (
        f"about {duration(expected.seconds / busy)} on {counted(busy, 'worker')}, from two "
        f"rounds of {expected.probed} of {expected.cells} cells"
    )


def summarise(tally: Tally, store: Path, runs: int, seconds: float) -> None:
    """Print counts, failures and where to look; exit with 1 after failures, 130 after a stop."""
    whole = len(tally.recorded) + len(tally.played)
    command = f"fedbench results {shlex.quote(str(store))}"
    print(
        f"{whole} of {runs} runs have a record in {store}: {len(tally.recorded)} were there, "
        f"{len(tally.played)} played in {duration(seconds)}; now: {command}"
    )
    failed = (
        f"{counted(len(tally.failed), 'run')} failed; see {command} --failed "
        "(--columns traceback --format csv); --retry-failed plays them again"
    )
    stopped = f"stopped with {counted(len(tally.left), 'run')} left"
    end(failed if tally.failed else "", stopped if tally.left else "")


def make_engine(
    name: str, options: Options, runs: int, address: str | None, gpus_per_run: float
) -> Engine:
    """Return the engine of this name; refuse options that it does not have."""
    if name == "ray":
        from fedbench.sweeps.on_ray import OnRay

        if options.canonical:  # workers of a cluster have an environment of their own
            raise ConfigError("--engine must be local with --canonical, got 'ray'")
        if options.models is not None:  # a node may write to a disk of its own
            raise ConfigError("--engine must be local with --save-model, got 'ray'")
        return OnRay(options, address, gpus_per_run)
    from fedbench.sweeps.local import LocalEngine

    require("--address", address, address is None, "left out without --engine ray")
    require("--gpus-per-run", gpus_per_run, gpus_per_run == 0, "left out without --engine ray")
    return LocalEngine(options, options.processes(runs))
