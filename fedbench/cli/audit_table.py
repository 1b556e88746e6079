"""Results of audits beside the claims, for a terminal and for a program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from fedbench.tables.export import document
from fedbench.tables.numbers import nats, or_none
from fedbench.tables.table import Column, Line, Table
from fedbench.tables.terminal import cell, grid, listed

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

    from fedbench.audits.campaign import AuditPlan
    from fedbench.audits.finding import AuditFinding

NAMES = ("\naudit", "\nwhat it is")
NUMBERS = ("ε\nfound", "ε\nclaimed", "ε\nexact")


@dataclass(frozen=True)
class AuditReport:
    """Findings of the audits of a plan, for a terminal."""

    plan: AuditPlan
    findings: Sequence[AuditFinding]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        scenario = self.plan.scenario
        yield cell(scenario.mechanism.replace(",", ", "), options, "bold")
        yield cell(f"with {scenario.protocol}; ε at delta = {scenario.delta:g}", options)
        yield ""
        yield grid(self._table(), options)
        yield ""
        details: list[tuple[str, str]] = []
        for finding in self.findings:
            details.append((finding.method, f"{finding.audited}; {finding.evidence}"))
            details.append(("", covered(finding)))
        yield listed(details, options)
        yield ""
        yield listed(self._terms().items(), options)

    def _table(self) -> Table:
        exact = any(finding.exact is not None for finding in self.findings)
        lines = []
        for finding in self.findings:
            error = "" if finding.error is None else f" ± {nats(finding.error)}"
            kind = "lower bound" if finding.is_bound else "estimate"
            texts = [finding.method, kind, nats(finding.epsilon) + error, nats(finding.claimed)]
            texts += [or_none(finding.exact, nats)] if exact else []
            lines.append(Line([*texts, verdict(finding)], marked=finding.broken))
        names = [Column(heading, "left", wraps=True) for heading in (*NAMES, "\nthe claim")]
        numbers = [Column(heading) for heading in (NUMBERS if exact else NUMBERS[:2])]
        return Table([*names[:2], *numbers, names[2]], lines)

    def _terms(self) -> dict[str, str]:
        terms = {}
        if any(finding.is_bound for finding in self.findings):
            share = f"{100 * self.plan.confidence:g} %"
            terms["lower bound"] = (
                f"ε is at least that, with {share} confidence; none proves a claim"
            )
        if any(not finding.is_bound for finding in self.findings):
            terms["estimate"] = (
                "not a bound: it refutes nothing; ± one standard error over canaries"
            )
        if any(finding.exact is not None for finding in self.findings):
            terms["exact"] = "what the best auditor of these two inputs would find in the end"
        return terms


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
