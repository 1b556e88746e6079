"""The list of rules, and who is judged by them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Literal

from fedbench.leaderboard import conditions, doubts
from fedbench.leaderboard.build import Case
from fedbench.scenario import Scenario

Severity = Literal["error", "warning"]


@dataclass(frozen=True)
class Finding:
    """A rule that is broken, or a doubt.

    Args:
        rule: Its name.
        severity: An ``error`` keeps an entry out; a ``warning`` stands beside it.
        text: What the rule asks, what we got.
    """

    rule: str
    severity: Severity
    text: str


@dataclass(frozen=True)
class Rule:
    """A rule about the records of an entry.

    Args:
        name: That people read.
        broken: Says every way in which a case breaks it.
        severity: Of what it finds.
    """

    name: str
    broken: Callable[[Case], Iterable[str]]
    severity: Severity = "error"

    def judge(self, case: Case) -> list[Finding]:
        """What it finds."""
        return [Finding(self.name, self.severity, text) for text in self.broken(case)]


# What the other rules take for granted.
SOUND: tuple[Rule, ...] = (
    Rule("record", conditions.record),
    Rule("one system", conditions.one_system),
)
RULES: tuple[Rule, ...] = (
    Rule("code", partial(conditions.one_environment, "fedbench")),
    Rule("device", partial(conditions.one_environment, "device")),
    Rule("id", conditions.identity),
    Rule("name", conditions.name),
    Rule("track", conditions.track),
    Rule("data", conditions.data),
    Rule("seeds", conditions.seeds),
    Rule("paired", conditions.paired),
    Rule("ensemble", conditions.ensemble),
    Rule("attacked", conditions.attacked),
    *(Rule(f"fixed: {name}", partial(conditions.fixed, name)) for name in Scenario.model_fields),
    Rule("envelope", conditions.envelope),
    Rule("doubts", doubts.doubts, "warning"),
    Rule("outdated", doubts.weaker_attacks, "warning"),
    Rule("harmless", doubts.harmless, "warning"),
    Rule("easy", doubts.easy, "warning"),
    Rule("participation", doubts.participation, "warning"),
    Rule("unpriced", doubts.unpriced, "warning"),
)


def judge(case: Case) -> list[Finding]:
    """Everything that the rules find, in their order; only how records are not sound, if so."""
    return _found(SOUND, case) or _found(RULES, case)


def _found(rules: Iterable[Rule], case: Case) -> list[Finding]:
    return [finding for rule in rules for finding in rule.judge(case)]


def errors(findings: Iterable[Finding]) -> list[Finding]:
    """Those that keep an entry out."""
    return [finding for finding in findings if finding.severity == "error"]
