"""``fedbench attack``: protocols under attack, and a table that says who survived."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from fedbench.sweep.plan import Plan

Axis = list[str] | None
_WHAT, _WHERE, _WHO, _HOW = "What is tried", "Data and model", "Clients and training", "Running"
_DP = "What ε means"
_ADVERSARY = "What the adversary may do"


def attack(
    protocol: Annotated[
        Axis, typer.Option("--protocol", "-p", help="repeat for a grid", rich_help_panel=_WHAT)
    ] = None,
    attack: Annotated[
        Axis,
        typer.Option(
            "--attack",
            "-a",
            help="repeat for a grid; 'all': the mandatory ensemble; 'installed': every one that "
            "fits; 'strongest:budget=N': the worst of N on validation data; 'none' always runs too",
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
    knowledge: Annotated[
        str | None,
        typer.Option(
            help="the most an attack may be shown, e.g. colluders or all+defense+state; "
            "default: what it asks for",
            rich_help_panel=_ADVERSARY,
        ),
    ] = None,
    attack_from: Annotated[
        int | None,
        typer.Option(help="first round, from 0, in which it acts", rich_help_panel=_ADVERSARY),
    ] = None,
    attack_until: Annotated[
        int | None,
        typer.Option(help="first round in which it no longer acts", rich_help_panel=_ADVERSARY),
    ] = None,
    attack_every: Annotated[
        int | None,
        typer.Option(help="it acts in every so many rounds", rich_help_panel=_ADVERSARY),
    ] = None,
    defense_draw: Annotated[
        int | None,
        typer.Option(
            help="which draw of the server's randomness, of rules that have some",
            rich_help_panel=_WHO,
        ),
    ] = None,
    rounds: Annotated[int | None, typer.Option(rich_help_panel=_WHO)] = None,
    epochs: Annotated[int | None, typer.Option(rich_help_panel=_WHO)] = None,
    batch_size: Annotated[int | None, typer.Option(rich_help_panel=_WHO)] = None,
    precision: Annotated[
        str | None,
        typer.Option(
            help="of training: fp32, or bf16, faster and not the same", rich_help_panel=_WHO
        ),
    ] = None,
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
        str, typer.Option(help="auto, loop, stacked, recorded or forked", rich_help_panel=_HOW)
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
    out: Annotated[
        Path, typer.Option(help="folder for records, table and chart", rich_help_panel=_HOW)
    ] = Path("results"),
) -> None:
    """Train protocols with malicious clients; print who survived, what it cost, how sure we are.

    Without options this is [bold]--preset demo[/bold]: ten clients, two of them malicious.
    """
    from rich.console import Console

    from fedbench.cli.attack_play import run
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
        "knowledge": knowledge,
        "attack_from": attack_from,
        "attack_until": attack_until,
        "attack_every": attack_every,
        "defense_draw": defense_draw,
        "precision": precision,
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
    options = Options(
        device, executor, chunk, workers, threads, run_timeout=run_timeout, isolate=isolate
    )
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
        plan = Plan.preset("demo" if preset is None else preset, scalars, axes)
    if seeds is not None:
        plan = dataclasses.replace(plan, seeds=parse_seeds(seeds))
    if lr is not None:
        plan = plan.with_lr(lr)
    return plan


def parse_seeds(text: str) -> tuple[int, ...]:
    """Return distinct integers in 0 .. 2**63 - 1, comma-separated.

    >>> parse_seeds("0,1,2")
    (0, 1, 2)
    """
    from fedbench.core.errors import require

    parts = [part.strip() for part in text.split(",")]
    digits = all(part.isascii() and part.isdigit() for part in parts)
    require("--seeds", text, digits, "distinct integers like 0,1,2")
    short = all(len(part) < 20 for part in parts)
    seeds = tuple(int(part) for part in parts) if short else ()
    require("--seeds", text, short and max(seeds) < 2**63, "integers in 0 .. 2**63 - 1")
    require("--seeds", text, len(set(seeds)) == len(seeds), "distinct integers like 0,1,2")
    return seeds
