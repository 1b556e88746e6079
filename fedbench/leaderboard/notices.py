"""Reasons to doubt an entry that keeps the rules: they stand beside it."""

from __future__ import annotations

from collections.abc import Iterator

from fedbench.leaderboard.build import Case
from fedbench.leaderboard.outdated import outdated
from fedbench.leaderboard.score import is_clean, mean

EASY = 0.95  # clean accuracy above which a data set hardly tells systems apart


def doubts(case: Case) -> Iterator[str]:
    """What the runs themselves doubt."""
    found: dict[str, dict[str, None]] = {}
    for one in case.records:
        for flag in one.flags:
            found.setdefault(flag, {})[case.called(one.scenario.attack)] = None
    for flag, attacks in found.items():
        yield f"{flag}: {'; '.join(attacks)}"


def weaker_attacks(case: Case) -> Iterator[str]:
    """Runs whose attacks were searched by code that is known to find weaker ones."""
    if reason := outdated(record.scenario.attack for record in case.records):
        yield f"{reason}; play it again"


def harmless(case: Case) -> Iterator[str]:
    """An ensemble of which no attack costs anything says little."""
    attacks = [mean(runs) for attack, runs in case.cells.items() if not is_clean(attack)]
    if case.clean and attacks and min(attacks) >= mean(case.clean):
        yield f"no attack lowers the clean accuracy of {mean(case.clean):.3f}"


def easy(case: Case) -> Iterator[str]:
    """A task that everybody solves says little about robustness (many papers have only MNIST)."""
    if case.clean and mean(case.clean) > EASY:
        yield f"clean accuracy above {EASY:g}: an easy task hides differences; add a harder one"


def participation(case: Case) -> Iterator[str]:
    """Cohorts of everybody are a special case."""
    if any(r.scenario.per_round == r.scenario.clients for r in case.records):
        yield "every client takes part in every round"


def unpriced(case: Case) -> Iterator[str]:
    """A mechanism without a finite price counts as none."""
    unknown = [r for r in case.records if r.privacy is not None and r.privacy.epsilon is None]
    if unknown:
        yield "no finite epsilon is known: it is ranked as if it promised nothing"
