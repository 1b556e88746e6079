"""Warnings about a table: flags of its runs, and doubts that only several runs can raise."""

from collections.abc import Iterator, Sequence
from itertools import combinations
from operator import attrgetter

from fedbench.api import TIERS
from fedbench.core import registry
from fedbench.core.errors import ConfigError
from fedbench.results.aggregate import grouped
from fedbench.results.summary import Row


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
    return [*flags, *helped(rows), *blind(rows), *once(rows)]


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
    """Return the knowledge that a row's attack needs; None if the attack is not installed."""
    if registry.split(row.cell.attack)[0] not in registry.names("attack"):
        return None
    tier: str = registry.load("attack", row.cell.attack).needs().tier
    return tier


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
