"""All rules about the records of an entry, and what they find."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Literal

from fedbench.experiment.scenario import Scenario
from fedbench.leaderboard import entry_rules, notices
from fedbench.leaderboard.build import Case

Severity = Literal["error", "warning"]


@dataclass(frozen=True)
class RuleFinding:
    """A rule that is broken, or a reason to doubt.

    Args:
        rule: Name of the rule.
        severity: An ``error`` keeps an entry out; a ``warning`` stands beside it.
        text: What the rule asks, and what we got.
    """

    rule: str
    severity: Severity
    text: str


@dataclass(frozen=True)
class EntryRule:
    """A rule about the records of an entry.

    Args:
        name: Name that people read.
        broken: Yields a text for every way in which a case breaks the rule.
        severity: Severity of its findings.
    """

    name: str
    broken: Callable[[Case], Iterable[str]]
    severity: Severity = "error"


# Preconditions of the other rules.
SOUND: tuple[EntryRule, ...] = (
    EntryRule("record", entry_rules.record),
    EntryRule("one system", entry_rules.one_system),
)
RULES: tuple[EntryRule, ...] = (
    EntryRule("code", partial(entry_rules.one_environment, "fedbench")),
    EntryRule("device", partial(entry_rules.one_environment, "device")),
    EntryRule("id", entry_rules.identity),
    EntryRule("name", entry_rules.name),
    EntryRule("track", entry_rules.track),
    EntryRule("data", entry_rules.data),
    EntryRule("seeds", entry_rules.seeds),
    EntryRule("paired", entry_rules.paired),
    EntryRule("ensemble", entry_rules.ensemble),
    EntryRule("attacked", entry_rules.attacked),
    *(
        EntryRule(f"fixed: {name}", partial(entry_rules.fixed, name))
        for name in Scenario.model_fields
    ),
    EntryRule("envelope", entry_rules.envelope),
    EntryRule("doubts", notices.doubts, "warning"),
    EntryRule("outdated", notices.weaker_attacks, "warning"),
    EntryRule("harmless", notices.harmless, "warning"),
    EntryRule("easy", notices.easy, "warning"),
    EntryRule("participation", notices.participation, "warning"),
    EntryRule("unpriced", notices.unpriced, "warning"),
)


def judge(case: Case) -> list[RuleFinding]:
    """Return the findings of all rules in their order; if records are not sound, only those."""
    return _findings(SOUND, case) or _findings(RULES, case)


def _findings(rules: Iterable[EntryRule], case: Case) -> list[RuleFinding]:
    return [
        RuleFinding(rule.name, rule.severity, text) for rule in rules for text in rule.broken(case)
    ]


def errors(findings: Iterable[RuleFinding]) -> list[RuleFinding]:
    """Return the findings that keep an entry out."""
    return [finding for finding in findings if finding.severity == "error"]
