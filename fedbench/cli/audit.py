"""``fedbench audit``: a measured epsilon beside the one that a mechanism claims."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from fedbench.cli import options as opt
from fedbench.cli.terminal import status

if TYPE_CHECKING:
    from fedbench.audits.campaign import AuditPlan

METHOD = "Method mechanism"
CANARIES = "Methods one-run and one-shot"
Command = opt.scenario_command(
    *("mechanism", "protocol", "dataset", "model", "partition", "clients", "per_round", "rounds"),
    *("epochs", "batch_size", "delta", "adjacency", "sampling", "sees", "seed"),
    more={
        "protocol": "By default one that fits the mechanism.",
        "per_round": "By default all.",
        "adjacency": "For canaries zero-out.",
    },
    mechanism=...,
    protocol=None,
    model="micro",
    partition="iid",
    clients=320,
    per_round=None,
    rounds=3,
    epochs=1,
)


def audit(
    context: typer.Context,
    method: Annotated[
        list[str] | None,
        opt.option(
            "mechanism, the default: a lower bound from two neighbours; one-run: one from "
            "canary clients in a run; one-shot: an estimate from them. Repeat for more, or all.",
            panel=opt.TRIED,
        ),
    ] = None,
    confidence: Annotated[
        float,
        opt.option("Confidence of every lower bound.", panel=opt.PRIVACY),
    ] = 0.95,
    releases: Annotated[int, opt.option("Releases of each neighbour.", panel=METHOD)] = 200_000,
    dim: Annotated[int, opt.option("Coordinates of a release.", panel=METHOD)] = 5,
    canaries: Annotated[int, opt.option("Canaries among the clients.", panel=CANARIES)] = 300,
    threads: opt.Threads = 1,
    format: opt.Format = "table",
) -> int:
    """Measure epsilon and compare it with the claim: exit code 1 if the claim is refuted.

    A lower bound above the claim refutes it, if another seed finds the same. An estimate proves
    nothing in either direction, and no audit proves that a claim is true.
    """
    from fedbench.audits.campaign import METHODS, AuditPlan, fitting
    from fedbench.experiment.scenario import Scenario

    opt.chosen("--format", format, ("table", "json"))
    fields = context.obj
    fields["protocol"] = fields["protocol"] or fitting(fields["mechanism"])
    if fields["per_round"] is None:
        fields["per_round"] = fields["clients"]
    scenario = Scenario.of(**fields, malicious=0.0, eval_every=max(fields["rounds"], 1))
    every = "all" in (method or [])
    methods = METHODS if every else tuple(dict.fromkeys(method or ["mechanism"]))
    plan = AuditPlan(scenario, methods, confidence, releases, dim, canaries)
    with opt.torch_threads(threads):
        return show(plan, lenient=every, format=format)


def show(plan: AuditPlan, lenient: bool, format: str) -> int:
    """Print findings on stdout and what did not apply on stderr; return 1 if a claim is refuted."""
    from fedbench.cli import audit_table

    with status() as say:
        played = list(plan.play(say, lenient))
    findings = [finding for finding in played if not isinstance(finding, str)]
    if format == "json":
        print(audit_table.as_json(plan, findings))
    else:
        Console().print(audit_table.AuditReport(plan, findings))
    for reason in played:
        if isinstance(reason, str):
            print(f"fedbench: skipped {reason}", file=sys.stderr)
    return int(any(finding.broken for finding in findings))
