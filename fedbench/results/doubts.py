"""Doubts that the rows of a report raise: about their runs, and about what they say together.

Some are those of AutoAttack, carried over: Croce and Hein, "Reliable Evaluation of Adversarial
Robustness with an Ensemble of Diverse Parameter-free Attacks", ICML 2020, and the flags of its
public code (https://github.com/fra31/auto-attack, flags_doc.md), which warns where an attack
without gradients lowers the accuracy that those with gradients leave.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations, permutations
from operator import attrgetter
from typing import Any

from fedbench.api import TIERS, Attack, Knowledge
from fedbench.core import registry
from fedbench.core.errors import ConfigError
from fedbench.experiment.measurements import Round
from fedbench.results.aggregate import grouped
from fedbench.results.summary import Row, lowest_by_seed

MIN_GRADIENT_GAP = 0.05  # of accuracies, beside the spreads, for a doubt about gradients
MIN_CHOICE_GAIN = 0.01  # of an adversary that chooses for every run
# Words in the note `played` of an attack that chooses, for what follows the gradient of a loss.
ALONG_A_GRADIENT = ("gradient", "labels", "crossing", "climbed")


def doubts(rows: Sequence[Row]) -> list[str]:
    """Return every flag of a run once, with its cells, then the doubts that rows raise together."""
    by_flag: dict[str, list[str]] = {}
    for row in rows:
        for flag in row["flags"]:
            by_flag.setdefault(flag, []).append(str(row.cell))
    attacked = [str(row.cell) for row in rows if not row.cell.clean]
    flags = [
        f"{flag}: {'every attacked cell' if cells == attacked else '; '.join(cells)}"
        for flag, cells in by_flag.items()
    ]
    together = (helped, blind, weaker, masked, spent, divided, once)
    return [*flags, *(doubt for check in together for doubt in check(rows))]


def exceeds(row: Row, other: Row) -> bool:
    """Tell whether a row has more accuracy than another one, beyond both standard deviations."""
    return row.accuracy - other.accuracy > row.accuracy_std + other.accuracy_std


def helped(rows: Sequence[Row]) -> Iterator[str]:
    """Warn if a larger adversary with the same attack leaves more accuracy, beyond both spreads."""
    attacked = (row for row in rows if not row.cell.clean)
    alike = grouped(attacked, lambda row: row.cell.scenario.model_copy(update={"malicious": 0}))
    for group in alike.values():
        ordered = sorted(group, key=lambda row: row.cell.scenario.malicious)
        for weak, strong in combinations(ordered, 2):
            if exceeds(strong, weak):
                yield f"a stronger adversary helps: {strong.cell} is above {weak.cell}"


def blind(rows: Sequence[Row]) -> Iterator[str]:
    """Warn if an attack with less knowledge lowers accuracy more, beyond both spreads.

    It is compared with the best of those that know most.
    """
    attacked = (row for row in rows if not row.cell.clean)
    for system, group in grouped(attacked, lambda row: row.cell.system).items():
        tiers = grouped(group, tier_of)
        best = [min(tiers[tier], key=attrgetter("accuracy")) for tier in TIERS if tier in tiers]
        if len(best) < 2:
            continue
        less = min(best[:-1], key=attrgetter("accuracy"))
        if exceeds(best[-1], less):
            yield (
                f"an attack that sees less beats all that see more: {less.cell.attack} is below "
                f"{best[-1].cell.attack} against {system}"
            )


def tier_of(row: Row) -> str | None:
    """Return the tier of messages that a row's attack reads; None if it is not installed."""
    attack = installed(row)
    return None if attack is None else attack.needs().tier


def installed(row: Row) -> Attack | None:
    """Return a row's attack; None if it is not installed."""
    if registry.split(row.cell.attack)[0] not in registry.names("attack"):
        return None
    attack: Attack = registry.load("attack", row.cell.attack)
    return attack


def alike(rows: Sequence[Row], *without: str) -> list[list[Row]]:
    """Group rows by system and attack, whatever the values of the fields ``without``."""

    def key(row: Row) -> tuple[Any, ...]:
        attack = installed(row)
        name, _ = registry.split(row.cell.attack)
        params = {} if attack is None else registry.split(registry.describe(name, attack))[1]
        others = tuple((field, value) for field, value in params.items() if field not in without)
        return row.cell.system, name, others

    readable = [row for row in rows if row.attacked and installed(row) is not None]
    return list(grouped(readable, key).values())


def weaker(rows: Sequence[Row]) -> Iterator[str]:
    """Warn if the same attack lowers accuracy more with less knowledge, beyond both spreads."""

    def needs(row: Row) -> Knowledge:
        attack = installed(row)
        assert attack is not None
        return attack.needs()

    for group in alike(rows, "knows", "asks"):
        for more, less in permutations(group, 2):
            above = needs(more).covers(needs(less)) and not needs(less).covers(needs(more))
            if above and exceeds(more, less):
                yield (
                    f"a weaker tier beats a stronger one: {less.cell.attack} is below "
                    f"{more.cell.attack} against {less.cell.system}"
                )


def masked(rows: Sequence[Row]) -> Iterator[str]:
    """Warn if an attack without gradients does far more than the best one that has them.

    Far is beyond both spreads and by more than `MIN_GRADIENT_GAP`. Either the gradients mislead, or
    the attack that follows them is not strong enough: the system may be weaker than its worst case.
    """
    for system, group in attacked(rows).items():
        kinds = grouped(group, follows_gradient)
        if len(kinds) < 2:
            continue
        best, other = (min(kinds[along], key=attrgetter("accuracy")) for along in (True, False))
        gap = best.accuracy - other.accuracy
        if gap > MIN_GRADIENT_GAP and exceeds(best, other):
            yield (
                f"gradients may be masked: {other.cell.attack}, which follows none, is "
                f"{100 * gap:.1f} points below {best.cell.attack}, the best attack that does, "
                f"against {system}"
            )


def follows_gradient(row: Row) -> bool:
    """Tell whether an attack has gradients of a loss, and follows one in half of its rounds.

    An attack that chooses between directions says in the note ``played`` which one it was.
    """
    attack = installed(row)
    if attack is None or not attack.needs().data:
        return False
    played = [str(r.notes["played"]) for r in acted(row) if "played" in r.notes]
    along = [name for name in played if any(word in name for word in ALONG_A_GRADIENT)]
    return 2 * len(along) >= len(played)


def spent(rows: Sequence[Row]) -> Iterator[str]:
    """Warn if an attack's budget is too small, as far as one can tell.

    Of several budgets the largest does more than the next one, beyond both spreads. A single one
    ended in most rounds while the loss still grew, as the attack notes.
    """
    with_budget = [row for row in rows if hasattr(installed(row), "budget")]
    for group in alike(with_budget, "budget"):
        *smaller, largest = sorted(group, key=budget)
        against = f"against {largest.cell.system}; a larger one may do more"
        if smaller and exceeds(smaller[-1], largest):
            names = f"{largest.cell.attack} is below {smaller[-1].cell.attack}"
            yield f"more budget does more: {names} {against}"
        ended = [r.notes.get("ended") == "budget" for r in acted(largest)]
        if not smaller and 2 * sum(ended) > len(ended):
            why = "in most rounds the budget ended while the loss still grew"
            yield f"{why}: {largest.cell.attack} {against}"


def budget(row: Row) -> float:
    """Return the budget of an installed attack that has one."""
    attack: Any = installed(row)
    return float(attack.budget)


def acted(row: Row) -> list[Round]:
    """Return the rounds of all seeds in which malicious clients sent messages that counted."""
    rounds = (r for record in row.records for r in record.rounds)
    return [r for r in rounds if r.malicious and not r.skipped]


def attacked(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return the rows under attack, by system."""
    return grouped((row for row in rows if row.attacked), lambda row: row.cell.system)


def divided(rows: Sequence[Row]) -> Iterator[str]:
    """Warn if seeds differ in their worst attack, so that the lowest mean says too little.

    That is, if an adversary that chooses for every run does more by at least `MIN_CHOICE_GAIN`.
    """
    for system, group in attacked(rows).items():
        seeds = [seed for seed in group[0].by_seed if all(seed in row.by_seed for row in group)]
        lowest = lowest_by_seed(group)
        if lowest is None:
            continue
        means = [statistics.fmean(row.by_seed[seed] for seed in seeds) for row in group]
        if min(means) - lowest < MIN_CHOICE_GAIN:
            continue
        worst = Counter(min(group, key=lambda row: row.by_seed[seed]).cell.attack for seed in seeds)
        named = ", ".join(f"{attack} in {count}" for attack, count in worst.most_common())
        yield (
            f"the worst attack differs between seeds: {named} of {len(seeds)} against {system}; "
            f"the lowest of each seed are {100 * lowest:.1f} % on average, "
            f"the lowest mean is {100 * min(means):.1f} %"
        )


def once(rows: Sequence[Row]) -> Iterator[str]:
    """Warn if a rule that draws random numbers was run with one draw of them only."""
    single = [row.cell for row in rows if len(row.records) < 2]
    for name in sorted({cell.defense for cell in single if draws(cell.scenario.defense)}):
        yield f"a randomized defense was run once: {name}"


def draws(defense: str) -> bool:
    """Tell whether a rule is installed and draws random numbers."""
    try:
        return bool(registry.load("defense", defense).traits().randomized)
    except ConfigError:  # a rule of somebody's own
        return False
