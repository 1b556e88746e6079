"""The list of rules, and who is judged by them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Literal

from fedbench.experiment.scenario import Scenario
from fedbench.leaderboard import entry_rules, notices
from fedbench.leaderboard.build import Case

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
    Rule("record", entry_rules.record),
    Rule("one system", entry_rules.one_system),
)
RULES: tuple[Rule, ...] = (
    Rule("code", partial(entry_rules.one_environment, "fedbench")),
    Rule("device", partial(entry_rules.one_environment, "device")),
    Rule("id", entry_rules.identity),
    Rule("name", entry_rules.name),
    Rule("track", entry_rules.track),
    Rule("data", entry_rules.data),
    Rule("seeds", entry_rules.seeds),
    Rule("paired", entry_rules.paired),
    Rule("ensemble", entry_rules.ensemble),
    Rule("attacked", entry_rules.attacked),
    *(Rule(f"fixed: {name}", partial(entry_rules.fixed, name)) for name in Scenario.model_fields),
    Rule("envelope", entry_rules.envelope),
    Rule("doubts", notices.doubts, "warning"),
    Rule("outdated", notices.weaker_attacks, "warning"),
    Rule("harmless", notices.harmless, "warning"),
    Rule("easy", notices.easy, "warning"),
    Rule("participation", notices.participation, "warning"),
    Rule("unpriced", notices.unpriced, "warning"),
)


def judge(case: Case) -> list[Finding]:
    """Everything that the rules find, in their order; only how records are not sound, if so."""
    return _found(SOUND, case) or _found(RULES, case)


def _found(rules: Iterable[Rule], case: Case) -> list[Finding]:
    return [finding for rule in rules for finding in rule.judge(case)]


def errors(findings: Iterable[Finding]) -> list[Finding]:
    """Those that keep an entry out."""
    return [finding for finding in findings if finding.severity == "error"]
