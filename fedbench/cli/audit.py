"""``fedbench audit``: a measured epsilon beside the one that a mechanism claims."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer
from rich.console import Console, ConsoleOptions, Group

from fedbench.cli import options as opt
from fedbench.cli.terminal import status
from fedbench.tables.export import document
from fedbench.tables.numbers import nats, or_none
from fedbench.tables.table import Column, Line, Table
from fedbench.tables.terminal import cell, grid, listed

if TYPE_CHECKING:
    from fedbench.audits.bounds import AuditFinding
    from fedbench.audits.campaign import AuditPlan

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


@opt.explained
def audit(
    context: typer.Context,
    method: list[str] | None = None,
    confidence: float = 0.95,
    releases: int = 200_000,
    dim: int = 5,
    canaries: int = 300,
    threads: opt.Threads = 1,
    format: opt.Format = "table",
) -> int:
    """Measure epsilon and compare it with the claim: exit code 1 if the claim is refuted.

    A lower bound above the claim refutes it, if another seed finds the same. An estimate proves
    nothing in either direction, and no audit proves that a claim is true.

    What is tried:
        method: mechanism, the default: a lower bound from two neighbours; one-run: one from canary
            clients in a run; one-shot: an estimate from them. Repeat for more, or all.

    What ε means:
        confidence: Confidence of every lower bound.

    Method mechanism:
        releases: Releases of each neighbour.
        dim: Coordinates of a release.

    Methods one-run and one-shot:
        canaries: Canaries among the clients.
    """
    opt.require_installed(opt.typed(context))
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
    with opt.torch_threads(threads), status() as say:
        played = list(plan.play(say, lenient=every))
    findings = [finding for finding in played if not isinstance(finding, str)]
    if format == "json":
        print(as_json(plan, findings))
    else:
        console = Console()
        console.print(report(plan, findings, console.options))
    for reason in played:
        if isinstance(reason, str):
            print(f"fedbench: skipped {reason}", file=sys.stderr)
    return int(any(finding.broken for finding in findings))


def report(plan: AuditPlan, findings: Sequence[AuditFinding], options: ConsoleOptions) -> Group:
    """Lay out findings beside the claims, for a terminal."""
    scenario = plan.scenario
    details: list[tuple[str, str]] = []
    for finding in findings:
        details.append((finding.method, f"{finding.audited}; {finding.evidence}"))
        details.append(("", covered(finding)))
    return Group(
        cell(scenario.mechanism.replace(",", ", "), options, "bold"),
        cell(f"with {scenario.protocol}; ε at delta = {scenario.delta:g}", options),
        *("", grid(table(findings), options)),
        *("", listed(details, options)),
        *("", listed(terms(findings, plan.confidence), options)),
    )


def table(findings: Sequence[AuditFinding]) -> Table:
    """Make the table, with what is exact if any audit knows it."""
    exact = any(finding.exact is not None for finding in findings)
    lines = []
    for finding in findings:
        error = "" if finding.error is None else f" ± {nats(finding.error)}"
        kind = "lower bound" if finding.is_bound else "estimate"
        texts = [finding.method, kind, nats(finding.epsilon) + error, nats(finding.claimed)]
        texts += [or_none(finding.exact, nats)] if exact else []
        lines.append(Line([*texts, verdict(finding)], marked=finding.broken))
    numbers = ("ε\nfound", "ε\nclaimed", *(["ε\nexact"] if exact else []))
    names = ("\naudit", "\nwhat it is", "\nthe claim")
    audit, what, claim = (Column(heading, "left", wraps=True) for heading in names)
    return Table([audit, what, *map(Column, numbers), claim], lines)


def terms(findings: Sequence[AuditFinding], confidence: float) -> list[tuple[str, str]]:
    """Explain the kinds of findings that there are."""
    bound = f"ε is at least that, with {100 * confidence:g} % confidence; none proves a claim"
    estimate = "not a bound: it refutes nothing; ± one standard error over canaries"
    exact = "what the best auditor of these two inputs would find in the end"
    explained = [
        ("lower bound", bound, any(finding.is_bound for finding in findings)),
        ("estimate", estimate, any(not finding.is_bound for finding in findings)),
        ("exact", exact, any(finding.exact is not None for finding in findings)),
    ]
    return [(term, meaning) for term, meaning, shown in explained if shown]


def verdict(finding: AuditFinding) -> str:
    """Say whether the claim survived the audit."""
    if finding.is_bound:
        return "REFUTED" if finding.broken else "holds"
    return "is smaller" if finding.claimed < finding.epsilon else "is larger"


def covered(finding: AuditFinding) -> str:
    """Say what data the claim covers, and what the mechanism's own paper would claim."""
    paper = "" if finding.paper is None else f"; its own paper would claim {nats(finding.paper)}"
    return f"claimed for one {finding.unit}, {finding.adjacency}{paper}"


def as_json(plan: AuditPlan, findings: Sequence[AuditFinding]) -> str:
    """Write everything, in full precision; what is not finite is null."""
    rows = [asdict(finding) | {"refuted": finding.broken} for finding in findings]
    asked = {"releases": plan.releases, "dim": plan.dim, "canaries": plan.canaries}
    return document({"scenario": plan.scenario.model_dump(), **asked, "findings": rows}, indent=2)
