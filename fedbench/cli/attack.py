"""``fedbench attack``: protocols under attack, and a table of accuracy, bits and ε."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

from fedbench.cli import options as opt
from fedbench.cli.sweep import foresee, plan_size
from fedbench.cli.terminal import end, status, watcher
from fedbench.core.canonical import enter
from fedbench.core.errors import Incompatible, PluginError
from fedbench.core.files import writable, write_atomically
from fedbench.core.presets import require_preset
from fedbench.tables.numbers import counted

if TYPE_CHECKING:
    from fedbench.experiment.cells import Cell, Skipped
    from fedbench.results.summary import Row
    from fedbench.sweeps.local import Options
    from fedbench.sweeps.plan import Plan

GRID = "Repeat for a grid; by default that of --preset"
Command = opt.scenario_command(
    *(name for name in opt.FIELDS if name != "seed"),
    more={
        "protocol": f"{GRID}, else fedavg.",
        "attack": f"{GRID}, else all: the mandatory attacks. installed: every attack that fits; "
        "strongest:budget=N: the worst of N on validation data. none always runs too.",
        "defense": f"{GRID}, else own.",
        "mechanism": f"{GRID}, else none.",
    },
    protocol=[],
    attack=[],
    defense=[],
    mechanism=[],
)


@opt.explained
def attack(
    context: typer.Context,
    preset: str | None = None,
    lr: float | None = None,
    seeds: str | None = None,
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
    out: Path = Path("results"),
    track: opt.Track = None,
    dry_run: bool = False,
) -> None:
    """Train protocols with malicious clients; print accuracy, bits and ε with their spread.

    Without options this is [bold]--preset demo[/bold]: ten clients, two of them malicious. A
    preset has values of its own where it differs from the defaults below.

    What is tried:
        preset: A table that comes with fedbench; by default demo, unless a protocol, attack,
            defense or mechanism is named.

    Clients and training:
        lr: Local learning rate of every protocol that names none; by default its own.

    Running:
        seeds: Seeds, comma-separated; by default those of the preset, else 0,1,2.
        out: Folder for records, table and chart.
        dry_run: Say what would be played, how many malicious clients its rounds have, and how long
            it may take.
    """
    if canonical:
        enter()
    given = opt.typed(context)
    opt.require_installed(given)
    if preset is not None:
        require_preset(preset)
    numbers = None if seeds is None else opt.parse_seeds(seeds)
    with status() as say:  # torch alone takes seconds
        say("reading plug-ins")
        if is_own_grid(preset, given):
            opt.require_scenario(given)
        from fedbench.sweeps.local import Options

        plan = choose(preset, given, numbers, lr)
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
        models=out if save_model else None,
        checkpoint=checkpoint,
    )
    play(plan, options, out, dry_run, track or ())


def is_own_grid(preset: str | None, given: Mapping[str, Any]) -> bool:
    """Tell whether the options describe a grid of their own, and no preset with changes."""
    return preset is None and any(kind in given for kind in opt.PANELS[opt.TRIED])


def choose(
    preset: str | None, given: Mapping[str, Any], seeds: tuple[int, ...] | None, lr: float | None
) -> Plan:
    """Return the table that the options describe: a preset with changes, or a grid of its own."""
    from fedbench.sweeps.plan import Plan

    if is_own_grid(preset, given):
        grid = {"protocol": "fedavg", "attack": "all"}
        table = {"title": "Accuracy under attack", "scenario": {}, "grid": [grid]}
        plan = Plan.of(table, "attack", given)
    else:
        plan = Plan.preset("demo" if preset is None else preset, given)
    if seeds is not None:
        plan = dataclasses.replace(plan, seeds=seeds)
    return plan if lr is None else plan.with_lr(lr)


def play(
    plan: Plan, options: Options, out: Path, dry_run: bool = False, track: Sequence[str] = ()
) -> None:
    """Play the plan, show it, write it; exit with 1 if a run failed, with 130 if it was stopped.

    A dry run only says what would be played.
    """
    from fedbench.tracking.trackers import require_trackers

    require_trackers(track)
    console = Console(highlight=False)
    with status() as say:
        say("reading data and models")
        combined, impossible = plan.cells()
        cells, unplayable = playable(combined, plan.seeds[0], options)
        skipped = [*impossible, *unplayable]
        writable(out)
    from fedbench.results.aggregate import grouped
    from fedbench.results.store import Store
    from fedbench.results.summary import rows
    from fedbench.sweeps.drive import play_each
    from fedbench.sweeps.follow import Following
    from fedbench.sweeps.plan import runs
    from fedbench.tables.report import skipped_lines, terminal
    from fedbench.tracking.trackers import tracking

    console.print(header(plan, cells, options))
    for line in skipped_lines(skipped):
        console.print(f"skipped: {line}", markup=False)
    planned = runs(cells, plan.seeds)
    if dry_run:
        foresee(console, planned, out, options, options.processes(len(planned)))
        return
    store = Store(out)
    if existing := sum(map(store.has, planned)):
        console.print(f"{existing} of {len(planned)} runs have a record in {out} already")
    with (
        tracking(track, plan.title, out) as trackers,
        watcher(console, cells, plan.seeds, store) as watch,
    ):
        followed = Following(watch, trackers)
        records, failed = play_each(cells, plan.seeds, options, followed, out)
    done = sum(map(len, records.values()))
    if table := rows(cells, records, len(plan.seeds)):
        console.print(terminal(table, console.options))
        stored = len(list(out.glob("*-seed*.json")))
        records_there = f"{counted(done, 'record')} in {out}/*.json"
        if stored > done:  # earlier commands wrote there, too
            records_there = f"{done} of the {stored} records in {out}/*.json are shown"
        print(f"{records_there}, {write(plan, table, out)}")
    for (cell, reason), lost in grouped(failed, lambda run: (run.cell, str(failed[run]))).items():
        numbers = ", ".join(str(run.seed) for run in lost)
        place = store.failure_path(lost[0])
        print(f"failed: {cell}, seed{'s' * (len(lost) > 1)} {numbers}: {reason}; see {place}")
    again = f"{counted(len(failed), 'run')} failed; the same command plays them again"
    stopped = done + len(failed) < len(planned)
    end(again if failed else "", f"stopped after {done} of {len(planned)} runs" if stopped else "")


def playable(
    cells: Sequence[Cell], seed: int, options: Options
) -> tuple[list[Cell], list[Skipped]]:
    """Return the cells whose data, network and memory fit, and the others with the reason.

    `ConfigError` for what was typed wrong, and if no cell fits, before anything is written.
    """
    from fedbench.experiment.cells import Skipped

    fitting: list[Cell] = []
    refusals: dict[Skipped, Incompatible] = {}
    for cell in cells:
        try:
            require_playable(cell, seed, options)
        except Incompatible as error:
            parts = (cell.protocol, cell.defense, cell.attack)
            refusals.setdefault(Skipped(*parts, str(error)), error)
        else:
            fitting.append(cell)
    if not fitting:
        raise next(iter(refusals.values()))
    return fitting, list(refusals)


def require_playable(cell: Cell, seed: int, options: Options) -> None:
    """Raise the error of what does not fit together or in memory."""
    from fedbench.experiment.prepare import prepare
    from fedbench.experiment.streamable import streams
    from fedbench.run import begin

    scenario = cell.scenario.model_copy(update={"seed": seed})
    executor = "loop" if options.executor == "auto" else options.executor  # auto would measure
    with suppress(PluginError):  # of this cell, which fails by itself: others may go on
        setup = prepare(scenario, options.device, executor, options.chunk)
        begin(setup)  # in which a protocol may refuse a model
        streams(setup, None)


def header(plan: Plan, cells: list[Cell], options: Options) -> str:
    """Return in a few lines everything that the numbers depend on."""
    scenario = cells[0].scenario
    runs = len(cells) * len(plan.seeds)
    lines = [
        f"[bold]{plan.title}[/bold]",
        f"{', '.join([scenario.dataset, scenario.model, scenario.partition, *scenario.remarks])}; "
        f"{scenario.clients} clients, {scenario.per_round} a round, "
        f"{100 * scenario.malicious:g} % malicious; {counted(scenario.rounds, 'round')}, "
        f"{counted(scenario.epochs, 'epoch')}, batch {scenario.batch_size}",
        f"{plan_size(len(cells), plan.seeds)}; "
        f"{counted(options.processes(runs), 'worker')} x {counted(options.threads, 'thread')}, "
        f"device {options.device}, server checks {scenario.server_checks}",
    ]
    if any(cell.scenario.mechanism != "none" for cell in cells):
        lines.append(
            f"ε at δ = {scenario.delta:g}, before who sees "
            f"{scenario.sees or 'what each protects'}; {scenario.sampling} sampling, "
            f"adjacency {scenario.adjacency or 'of each mechanism'}"
        )
    return "\n".join(lines)


def write(plan: Plan, table: list[Row], out: Path) -> str:
    """Write chart and Markdown table beside the records; return words that say where."""
    from fedbench.figures.bars import survival
    from fedbench.figures.style import save
    from fedbench.tables.report import markdown

    scenario = table[0].cell.scenario
    subtitle = (
        f"{', '.join([scenario.dataset, scenario.model, *scenario.remarks])}, "
        f"{scenario.clients} clients, "
        f"{100 * scenario.malicious:g} % malicious, {counted(scenario.rounds, 'round')}, "
        f"{counted(len(plan.seeds), 'seed')}"
    )
    chart = out / "attack.png"
    text = out / "attack.md"
    save(survival(table, plan.title, subtitle), chart)
    write_atomically(text, markdown(table).encode())
    return f"the table in {text}, the chart in {chart}"
