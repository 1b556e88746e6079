"""``fedbench attack``: protocols under attack, and a table that says who survived."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from fedbench.sweep.cells import Cell
    from fedbench.sweep.local import Options
    from fedbench.sweep.plan import Plan
    from fedbench.sweep.summary import Row

Axis = list[str] | None
_WHAT, _WHERE, _WHO, _HOW = "What is tried", "Data and model", "Clients and training", "Running"
_DP = "What ε means"


def attack(
    protocol: Annotated[
        Axis, typer.Option("--protocol", "-p", help="repeat for a grid", rich_help_panel=_WHAT)
    ] = None,
    attack: Annotated[
        Axis,
        typer.Option(
            "--attack",
            "-a",
            help="repeat for a grid; 'all' is every one that fits; 'none' always runs too",
            rich_help_panel=_WHAT,
        ),
    ] = None,
    defense: Annotated[
        Axis,
        typer.Option(
            "--defense",
            "-d",
            help="repeat for a grid; 'own' is the protocol's default",
            rich_help_panel=_WHAT,
        ),
    ] = None,
    mechanism: Annotated[
        Axis,
        typer.Option(
            "--mechanism",
            "-m",
            help="repeat for a grid; privacy, e.g. mask-gaussian:sigma=0.2",
            rich_help_panel=_WHAT,
        ),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(help="a table that comes with fedbench", rich_help_panel=_WHAT),
    ] = None,
    dataset: Annotated[str | None, typer.Option(rich_help_panel=_WHERE)] = None,
    model: Annotated[str | None, typer.Option(rich_help_panel=_WHERE)] = None,
    partition: Annotated[
        str | None, typer.Option(help="e.g. dirichlet:beta=0.5", rich_help_panel=_WHERE)
    ] = None,
    clients: Annotated[int | None, typer.Option(rich_help_panel=_WHO)] = None,
    per_round: Annotated[
        int | None, typer.Option(help="clients sampled in each round", rich_help_panel=_WHO)
    ] = None,
    malicious: Annotated[
        float | None, typer.Option(help="share of all clients", rich_help_panel=_WHO)
    ] = None,
    declared: Annotated[
        float | None,
        typer.Option(
            help="share the server is prepared for; default: --malicious", rich_help_panel=_WHO
        ),
    ] = None,
    rounds: Annotated[int | None, typer.Option(rich_help_panel=_WHO)] = None,
    epochs: Annotated[int | None, typer.Option(rich_help_panel=_WHO)] = None,
    batch_size: Annotated[int | None, typer.Option(rich_help_panel=_WHO)] = None,
    lr: Annotated[
        float | None,
        typer.Option(help="local learning rate of every protocol", rich_help_panel=_WHO),
    ] = None,
    server_checks: Annotated[
        str | None,
        typer.Option(
            help="none; finite: reject NaN and infinity; range: and what no honest client can send",
            rich_help_panel=_WHO,
        ),
    ] = None,
    delta: Annotated[
        float | None, typer.Option(help="of (ε, δ); default 1e-5", rich_help_panel=_DP)
    ] = None,
    adjacency: Annotated[
        str | None,
        typer.Option(
            help="replace-one, zero-out or add-remove; default: the mechanism's own",
            rich_help_panel=_DP,
        ),
    ] = None,
    sampling: Annotated[
        str | None,
        typer.Option(help="clients a round: fixed, or poisson (by coins)", rich_help_panel=_DP),
    ] = None,
    sees: Annotated[
        str | None,
        typer.Option(
            help="what privacy's adversary sees: messages, sum, hidden-sum or model",
            rich_help_panel=_DP,
        ),
    ] = None,
    eval_every: Annotated[
        int | None, typer.Option(help="rounds between two looks at test data", rich_help_panel=_HOW)
    ] = None,
    local_models: Annotated[
        bool | None,
        typer.Option(
            "--local-models", help="also judge clients' own last models", rich_help_panel=_HOW
        ),
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(help="comma-separated, e.g. 0,1,2", rich_help_panel=_HOW)
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda", rich_help_panel=_HOW)] = "auto",
    executor: Annotated[
        str, typer.Option(help="auto, loop or stacked", rich_help_panel=_HOW)
    ] = "auto",
    chunk: Annotated[
        int, typer.Option(help="clients a stacked launch trains", rich_help_panel=_HOW)
    ] = 32,
    workers: Annotated[
        int, typer.Option(help="processes; 0 is one per core", rich_help_panel=_HOW)
    ] = 0,
    threads: Annotated[
        int, typer.Option(help="of each process, on a CPU", rich_help_panel=_HOW)
    ] = 1,
    out: Annotated[
        Path, typer.Option(help="folder for records, table and chart", rich_help_panel=_HOW)
    ] = Path("results"),
) -> None:
    """Train protocols with malicious clients; print who survived, what it cost, how sure we are.

    Without options this is [bold]--preset table2-mini[/bold]: the FSL paper's Table 2 in miniature.
    """
    from rich.console import Console

    from fedbench.sweep.local import Options

    scalars: dict[str, Any] = {
        "dataset": dataset,
        "model": model,
        "partition": partition,
        "clients": clients,
        "per_round": per_round,
        "malicious": malicious,
        "declared": declared,
        "rounds": rounds,
        "epochs": epochs,
        "batch_size": batch_size,
        "eval_every": eval_every,
        "server_checks": server_checks,
        "local_models": local_models,
        "delta": delta,
        "adjacency": adjacency,
        "sampling": sampling,
        "sees": sees,
    }
    axes = {
        "protocol": protocol or [],
        "mechanism": mechanism or [],
        "defense": defense or [],
        "attack": attack or [],
    }
    options = Options(device, executor, chunk, workers, threads)
    plan = choose(preset, {k: v for k, v in scalars.items() if v is not None}, axes, seeds, lr)
    run(Console(), plan, options, out)


def choose(
    preset: str | None,
    scalars: dict[str, Any],
    axes: dict[str, list[str]],
    seeds: str | None,
    lr: float | None,
) -> Plan:
    """The table that the options describe: a preset with changes, or a grid of its own."""
    import dataclasses

    from fedbench.sweep.plan import Plan

    if preset is None and any(axes.values()):
        grid = {"protocol": "fedavg", "attack": "all"} | {k: v for k, v in axes.items() if v}
        plan = Plan.of({"title": "Who survives", "scenario": scalars, "grid": [grid]}, "attack")
    else:
        plan = Plan.preset(preset or "table2-mini", scalars, axes)
    if seeds is not None:
        plan = dataclasses.replace(plan, seeds=parse_seeds(seeds))
    if lr is not None:
        plan = plan.with_lr(lr)
    return plan


def parse_seeds(text: str) -> tuple[int, ...]:
    """Distinct non-negative integers.

    >>> parse_seeds("0,1,2")
    (0, 1, 2)
    """
    from fedbench.errors import require

    parts = [part.strip() for part in text.split(",")]
    good = all(part.isascii() and part.isdigit() for part in parts) and len(set(parts)) == len(
        parts
    )
    require("--seeds", text, good, "distinct integers like 0,1,2")
    return tuple(int(part) for part in parts)


def run(console: Console, plan: Plan, options: Options, out: Path) -> None:
    """Play the plan, show it, write it."""
    from fedbench.cli.live import watcher
    from fedbench.cli.table import final_table, skipped_lines
    from fedbench.files import writable
    from fedbench.setup import prepare
    from fedbench.sweep.drive import play_all
    from fedbench.sweep.plan import runs
    from fedbench.sweep.store import Store
    from fedbench.sweep.summary import rows

    cells, skipped = plan.cells()
    first = cells[0].scenario.model_copy(update={"seed": plan.seeds[0]})
    # Data, model and partition fit, or it ends here.
    prepare(first, options.device, options.executor, options.chunk)
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
        records = play_all(cells, plan.seeds, options, watch, out)
    table = rows(cells, records)
    if table:
        console.print(final_table(table, console.width))
        console.print(write(plan, table, out), highlight=False, soft_wrap=True)
    done = sum(map(len, records.values()))
    if done < len(planned):
        print(f"fedbench: stopped after {done} of {len(planned)} runs", file=sys.stderr)
        raise typer.Exit(130)


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


def write(plan: Plan, table: list[Row], out: Path) -> str:
    """Chart and Markdown table beside the records, and a line that says where."""
    from fedbench.cli.table import markdown
    from fedbench.files import write_atomically
    from fedbench.pictures.survival import draw

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
    count = sum(len(row.records) for row in table)
    return f"{count} records in {out}/*.json, the table in {text}, the chart in {chart}"
