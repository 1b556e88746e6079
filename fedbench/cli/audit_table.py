"""What audits found beside what was claimed, for a terminal and for a program."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table

from fedbench.cli.plain import finite
from fedbench.tables.columns import known, nats
from fedbench.tables.table import cell, legible, listed

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

    from fedbench.audits.campaign import AuditPlan
    from fedbench.audits.finding import AuditFinding

NAMES = ("\naudit", "\nwhat it is")
NUMBERS = ("ε\nfound", "ε\nclaimed", "ε\nexact")


@dataclass(frozen=True)
class Report:
    """For a terminal.

    Args:
        plan: What was asked.
        findings: What was found.
    """

    plan: AuditPlan
    findings: Sequence[AuditFinding]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        scenario = self.plan.scenario
        yield cell(scenario.mechanism.replace(",", ", "), options, "bold")
        yield cell(f"with {scenario.protocol}; ε at delta = {scenario.delta:g}", options)
        yield ""
        yield self._table(options)
        yield ""
        yield listed(self._details(), options)
        yield ""
        yield listed(self._said().items(), options)

    def _table(self, options: ConsoleOptions) -> Table:
        table = Table(box=box.HORIZONTALS, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
        exact = any(one.exact is not None for one in self.findings)
        for head in NAMES:
            table.add_column(head)
        for head in NUMBERS if exact else NUMBERS[:2]:
            table.add_column(legible(head, options), justify="right", no_wrap=True)
        table.add_column("\nthe claim")
        for one in self.findings:
            style = "bold red" if one.broken else ""
            texts = [one.method, "lower bound" if one.is_bound else "estimate", found(one)]
            texts += [nats(one.claimed), *([known(one.exact, nats)] if exact else [])]
            table.add_row(*(cell(text, options, style) for text in [*texts, verdict(one)]))
        return table

    def _details(self) -> Iterator[tuple[str, str]]:
        for one in self.findings:
            yield one.method, f"{one.audited}; {one.evidence}"
            yield "", covered(one)

    def _said(self) -> dict[str, str]:
        said = {}
        if any(one.is_bound for one in self.findings):
            share = f"{100 * self.plan.confidence:g} %"
            said["lower bound"] = (
                f"ε is at least that, with {share} confidence; none proves a claim"
            )
        if any(not one.is_bound for one in self.findings):
            said["estimate"] = "not a bound: it refutes nothing; ± one standard error over canaries"
        if any(one.exact is not None for one in self.findings):
            said["exact"] = "what the best auditor of these two inputs would find in the end"
        return said


def found(one: AuditFinding) -> str:
    """The number, and the standard error of an estimate."""
    return nats(one.epsilon) + ("" if one.error is None else f" ± {nats(one.error)}")


def verdict(one: AuditFinding) -> str:
    """Whether the claim survived."""
    if one.is_bound:
        return "REFUTED" if one.broken else "holds"
    return "is smaller" if one.claimed < one.epsilon else "is larger"


def covered(one: AuditFinding) -> str:
    """Whose data the claim covers, and what others would claim."""
    paper = "" if one.paper is None else f"; its own paper would claim {nats(one.paper)}"
    return f"claimed for one {one.unit}, {one.adjacency}{paper}"


def as_json(plan: AuditPlan, findings: Sequence[AuditFinding]) -> str:
    """Everything, in full precision; what is not finite is null."""
    rows = [finite(asdict(one)) | {"refuted": one.broken} for one in findings]
    scenario = plan.scenario.model_dump()
    asked = {"releases": plan.releases, "dim": plan.dim, "canaries": plan.canaries}
    return json.dumps({"scenario": scenario, **asked, "findings": rows}, indent=2)
