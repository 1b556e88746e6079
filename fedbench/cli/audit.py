"""``fedbench audit``: whether a mechanism is as private as it says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from fedbench.audits.campaign import Plan

_WHAT, _CLAIM, _MECHANISM = "What is audited", "The claim", "Method mechanism"
_RUN, _HOW = "Methods one-run and one-shot", "Running"


def audit(
    mechanism: Annotated[
        str,
        typer.Option(
            "--mechanism", "-m", help="e.g. mask-gaussian:sigma=0.5", rich_help_panel=_WHAT
        ),
    ],
    method: Annotated[
        list[str] | None,
        typer.Option(
            help="mechanism (default): a lower bound from two neighbours; one-run: one from canary "
            "clients in a run; one-shot: an estimate from them; repeat for more, or all",
            rich_help_panel=_WHAT,
        ),
    ] = None,
    protocol: Annotated[
        str | None,
        typer.Option("--protocol", "-p", help="default: one that fits", rich_help_panel=_WHAT),
    ] = None,
    delta: Annotated[float, typer.Option(help="of every ε", rich_help_panel=_CLAIM)] = 1e-5,
    adjacency: Annotated[
        str | None,
        typer.Option(
            help="replace-one, zero-out or add-remove; default: the mechanism's own, and zero-out "
            "for canaries",
            rich_help_panel=_CLAIM,
        ),
    ] = None,
    sampling: Annotated[
        str, typer.Option(help="fixed, or poisson (by coins)", rich_help_panel=_CLAIM)
    ] = "fixed",
    sees: Annotated[
        str | None,
        typer.Option(
            help="the adversary: messages, sum, hidden-sum or model; default: messages, or model "
            "where the noise is the server's",
            rich_help_panel=_RUN,
        ),
    ] = None,
    confidence: Annotated[
        float, typer.Option(help="of every lower bound", rich_help_panel=_CLAIM)
    ] = 0.95,
    releases: Annotated[
        int, typer.Option(help="of each neighbour", rich_help_panel=_MECHANISM)
    ] = 200_000,
    dim: Annotated[
        int, typer.Option(help="coordinates of a release", rich_help_panel=_MECHANISM)
    ] = 5,
    canaries: Annotated[int, typer.Option(help="among the clients", rich_help_panel=_RUN)] = 300,
    dataset: Annotated[str, typer.Option(rich_help_panel=_RUN)] = "digits",
    model: Annotated[str, typer.Option(rich_help_panel=_RUN)] = "micro",
    partition: Annotated[str, typer.Option(rich_help_panel=_RUN)] = "iid",
    clients: Annotated[int, typer.Option(help="all of them, N", rich_help_panel=_RUN)] = 320,
    per_round: Annotated[
        int | None, typer.Option(help="sampled in a round; default: all", rich_help_panel=_RUN)
    ] = None,
    rounds: Annotated[int, typer.Option(rich_help_panel=_RUN)] = 3,
    epochs: Annotated[int, typer.Option(rich_help_panel=_RUN)] = 1,
    batch_size: Annotated[int, typer.Option(rich_help_panel=_RUN)] = 8,
    seed: Annotated[int, typer.Option(help="of everything", rich_help_panel=_HOW)] = 0,
    threads: Annotated[int, typer.Option(help="of torch", rich_help_panel=_HOW)] = 1,
    format: Annotated[str, typer.Option(help="table or json", rich_help_panel=_HOW)] = "table",
) -> int:
    """Measure epsilon and compare it with the claim: exit code 1 if the claim is refuted.

    A lower bound above the claim refutes it, if another seed finds the same. An estimate proves
    nothing in either direction, and no audit proves that a claim is true.
    """
    from fedbench.audits.campaign import METHODS, Plan, fitting
    from fedbench.cli.probe import torch_threads
    from fedbench.core.errors import require
    from fedbench.experiment.scenario import Scenario

    require("--format", format, format in ("table", "json"), "table or json")
    scenario = Scenario.of(
        mechanism=mechanism,
        protocol=protocol or fitting(mechanism),
        dataset=dataset,
        model=model,
        partition=partition,
        clients=clients,
        per_round=clients if per_round is None else per_round,
        malicious=0.0,
        rounds=rounds,
        epochs=epochs,
        batch_size=batch_size,
        eval_every=max(rounds, 1),
        sampling=sampling,
        sees=sees,
        adjacency=adjacency,
        delta=delta,
        seed=seed,
    )
    every = "all" in (method or [])
    methods = METHODS if every else tuple(dict.fromkeys(method or ["mechanism"]))
    plan = Plan(scenario, methods, confidence, releases, dim, canaries)
    with torch_threads(threads):
        return show(plan, lenient=every, format=format)


def show(plan: Plan, lenient: bool, format: str) -> int:
    """The findings on stdout, what did not apply on stderr; 1 if a claim is refuted."""
    import sys

    from rich.console import Console

    from fedbench.cli import audit_table
    from fedbench.cli.bench import progress

    with progress() as say:
        played = list(plan.play(say, lenient))
    skipped = [one for one in played if isinstance(one, str)]
    findings = [one for one in played if not isinstance(one, str)]
    if format == "json":
        print(audit_table.as_json(plan, findings))
    else:
        Console().print(audit_table.Report(plan, findings))
    for reason in skipped:
        print(f"fedbench: skipped {reason}", file=sys.stderr)
    return int(any(one.broken for one in findings))
