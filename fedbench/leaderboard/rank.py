"""Ranks of the entries of a track, how sure they are, and the Pareto front."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Literal

from fedbench.leaderboard.build import score
from fedbench.leaderboard.entry import AttackedCell, Entry, Interval, Score
from fedbench.leaderboard.resampling import chances, detectable, holm, probability
from fedbench.leaderboard.rules import Limits
from fedbench.results.aggregate import grouped, interval, pareto

View = Literal["equal-rounds", "equal-bits"]
VIEWS: tuple[View, ...] = ("equal-rounds", "equal-bits")
RANKED_STATUSES = ("replayed", "replicated")  # status of an entry that has a rank
MIN_SHARED_SEEDS = 3  # seeds that two entries must share to be compared


@dataclass(frozen=True)
class Standing:
    """An entry among those of its track, by its score at the end or within the budget.

    Only entries with both stages that somebody has played again have a rank, private ones up to the
    largest epsilon of the front, and none on a track that is not ranked, without a second such
    entry to compare with, or where the seeds are too few to tell any two of the table's systems
    apart. The rank is one more than there are entries that are surely better: with a higher mean,
    at a paired difference over the seeds that both have which stays significant after Holm's
    correction for all pairs.

    An entry is on the Pareto front if no other entry of the front's `Limits` is as good in accuracy
    and bits, and better in one of them; private systems also compare by epsilon. Bits and epsilon
    are of the whole run, also within a budget.
    """

    entry: Entry
    score: Score | None  # None if no look at the test data fits into the budget
    rank: int | None  # None without a score, a replay, a rival, or ranks
    best: float | None  # share of resamples in which it is the best of those with a rank
    pareto: bool


@dataclass(frozen=True)
class EpsilonMeaning:
    """Meaning of an epsilon: two of them compare only if they promise the same."""

    unit: str
    sees: str
    adjacency: str
    delta: float

    def __str__(self) -> str:
        return f"per {self.unit}, {self.adjacency}, {self.sees} seen, δ = {self.delta:g}"


@dataclass(frozen=True)
class Ranking:
    """The entries of a track by rank, then by mean; last those without a rank."""

    view: View
    bits: float | None  # budget per parameter of a client in every round; None: rounds are equal
    promise: EpsilonMeaning | None  # of every epsilon; None: systems without a finite one
    season: str  # whose seeds they share; empty before the ranking stage
    standings: list[Standing]
    least_difference: float | None  # of accuracies, that the seeds can show, see `resolution`

    def front(self) -> Ranking:
        """Return the ranking without dominated entries."""
        return replace(self, standings=[each for each in self.standings if each.pareto])


def promise(entry: Entry) -> EpsilonMeaning | None:
    """Return what the epsilon of an entry means; None without a finite one."""
    price = entry.price
    if entry.score.epsilon is None or price is None:
        return None
    return EpsilonMeaning(price.unit, price.sees, price.adjacency, price.delta)


def season(entry: Entry) -> str:
    """Return the season whose seeds an entry was ranked on; empty before its ranking stage."""
    return "" if entry.ranking is None else entry.ranking.season


def comparable_groups(entries: Sequence[Entry]) -> list[list[Entry]]:
    """Return groups of entries that compare: of one season and one `EpsilonMeaning`, or none.

    The latest season comes first, entries without a ranking stage last. Numbers in the names of
    seasons are compared as numbers, so 2026-11 is later than 2026-9.
    """
    groups = grouped(entries, lambda entry: (season(entry), promise(entry)))
    by_privacy = sorted(groups, key=lambda key: (key[1] is not None, str(key[1])))
    latest_first = sorted(by_privacy, key=lambda key: _age(key[0]), reverse=True)
    return [groups[key] for key in latest_first]


def _age(name: str) -> tuple[list[str | int], str]:
    """Return a key that sorts names of seasons, the latest last."""
    parts = re.split(r"([0-9]+)", name)  # texts and numbers in turn
    return [int(part) if i % 2 else part for i, part in enumerate(parts)], name


def ranking(
    entries: Sequence[Entry],
    view: View = "equal-rounds",
    bits: float | None = None,
    limits: Limits | None = None,
) -> Ranking:
    """Rank entries of one track and season, at least one of them, all of one promise or none.

    ``bits`` is the budget if bits are equal; by default all that the cheapest replayed entry needs,
    or the cheapest of all if none was replayed.
    """
    limits = limits or Limits()
    if view == "equal-rounds":
        bits = None
    elif bits is None:
        trusted = [entry for entry in entries if entry.status in RANKED_STATUSES]
        bits = min(map(total_bits, trusted or entries))
    scores = [entry.score if bits is None else score_within(entry, bits) for entry in entries]
    rivals = {
        i: own for i, own in enumerate(scores) if own is not None and _is_ranked(entries[i], limits)
    }
    values = {i: by_seed(entries[i], own) for i, own in rivals.items()}
    met = {i for pair in differences(values) for i in pair}
    if len(rivals) > 1:  # without common seeds there is nothing to compare
        rivals = {i: own for i, own in rivals.items() if i in met}
    better = surely_better(values, 1 - limits.confidence)
    least = resolution(values, 1 - limits.confidence)
    told_apart = least is not None and math.isfinite(least)
    best = _best({i: _table(entries[i], bits) for i in rivals if told_apart})
    front = _front(entries, rivals, limits)
    standings = [
        Standing(
            entry=entry,
            score=scores[i],
            rank=1 + sum(pair[1] == i for pair in better) if told_apart and i in rivals else None,
            best=best.get(i),
            pareto=i in front,
        )
        for i, entry in enumerate(entries)
    ]
    first = entries[0]
    ordered = sorted(standings, key=_order)
    return Ranking(view, bits, promise(first), season(first), ordered, least)


def _is_ranked(entry: Entry, limits: Limits) -> bool:
    """Tell if an entry has a rank: replayed, with both stages, and of a small epsilon."""
    complete = entry.division == "open" or entry.ranking is not None
    epsilon = entry.score.epsilon
    small = epsilon is None or epsilon <= limits.epsilon
    return limits.ranked and complete and small and entry.status in RANKED_STATUSES


def by_seed(entry: Entry, own: Score) -> dict[int, float]:
    """Return the accuracy of an entry in its worst case, by seed."""
    return dict(zip(entry.scored_seeds, own.worst.values, strict=True))


def differences(
    values: Mapping[int, Mapping[int, float]],
) -> dict[tuple[int, int], list[float]]:
    """Return the paired differences of every two entries that share enough seeds.

    ``values`` holds the accuracy of every entry by seed.
    """
    pairs = {}
    for i, j in combinations(values, 2):
        shared = [seed for seed in values[i] if seed in values[j]]
        if len(shared) >= MIN_SHARED_SEEDS:
            pairs[i, j] = [values[i][seed] - values[j][seed] for seed in shared]
    return pairs


def surely_better(values: Mapping[int, Mapping[int, float]], level: float) -> set[tuple[int, int]]:
    """Return the pairs of which the first is better than the second, all true at the ``level``."""
    pairs = differences(values)
    adjusted = holm({pair: probability(lost) for pair, lost in pairs.items()})
    sure = [pair for pair, p in adjusted.items() if p < level]
    return {pair if statistics.fmean(pairs[pair]) > 0 else pair[::-1] for pair in sure}


def resolution(values: Mapping[int, Mapping[int, float]], level: float) -> float | None:
    """Return the least difference that the seeds show in four of five cases; None for one entry.

    That is for a pair of entries whose differences have the median standard deviation of all pairs,
    at the first and hardest step of Holm's correction. It is infinite where there are so many pairs
    that no difference is sure.
    """
    pairs = list(differences(values).values())
    if not pairs:
        return None
    spread = statistics.median(statistics.stdev(lost) for lost in pairs)
    n = min(len(lost) for lost in pairs)
    return detectable(spread, n, level / len(pairs))


def _best(tables: Mapping[int, Mapping[int, Sequence[float]]]) -> dict[int, float]:
    """Return the probability of being best by entry; none if the seeds are not the same for all."""
    seeds = {frozenset(table) for table in tables.values()}
    if len(seeds) != 1 or len(next(iter(seeds))) < MIN_SHARED_SEEDS:
        return {}
    order = sorted(next(iter(seeds)))
    rows = [
        [list(row) for row in zip(*(t[seed] for seed in order), strict=True)]
        for t in tables.values()
    ]
    return dict(zip(tables, chances(rows), strict=True))


def _table(entry: Entry, bits: float | None) -> dict[int, list[float]]:
    """Return the accuracies of an entry under every attack, by seed."""
    read = [affordable(cell, bits) for cell in entry.scored[1:]]
    columns = [interval.values for interval in read if interval is not None]
    return dict(zip(entry.scored_seeds, map(list, zip(*columns, strict=True)), strict=True))


def _front(entries: Sequence[Entry], rivals: Mapping[int, Score], limits: Limits) -> set[int]:
    """Return the entries on the front: of those clearly above chance, and of a small epsilon."""
    eligible = [i for i, own in rivals.items() if limits.admit(_least(own), own.epsilon)]
    return {eligible[i] for i in pareto([_goods(rivals[i]) for i in eligible])}


def _least(own: Score) -> float:
    """Return the lower end of Student's interval of the worst case; that of `bca` is too high."""
    ends = interval(own.worst.values)
    return -math.inf if ends is None else ends[0]


def _order(standing: Standing) -> tuple[float, float, str]:
    mean = -math.inf if standing.score is None else standing.score.worst.mean
    return standing.rank or math.inf, -mean, standing.entry.id


def total_bits(entry: Entry) -> float:
    """Return the bits per parameter until the last evaluation, in the cell that needs most."""
    return max(cell.curve[-1].bits for cell in entry.scored)


def affordable(cell: AttackedCell, bits: float | None) -> Interval | None:
    """Return the accuracy of the last evaluation within so many bits; None without one."""
    if bits is None:
        return cell.accuracy
    return next((p.accuracy for p in reversed(cell.curve) if p.bits <= bits), None)


def score_within(entry: Entry, bits: float) -> Score | None:
    """Return the score of each cell's last evaluation within so many bits; None without one."""
    return score(entry.scored, entry.score.epsilon, lambda cell: affordable(cell, bits))


def _goods(own: Score) -> tuple[float, float, float]:
    """Return what a front compares; more is better, and without an epsilon it is equal for all."""
    return own.worst.mean, -(own.uplink_bits + own.downlink_bits), -(own.epsilon or 0.0)
