"""Ranks of the entries of a track, and their Pareto front."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from fedbench.leaderboard.build import score
from fedbench.leaderboard.entry import AttackedCell, Entry, Interval, Score
from fedbench.results.aggregate import pareto

View = Literal["equal-rounds", "equal-bits"]
VIEWS: tuple[View, ...] = ("equal-rounds", "equal-bits")


@dataclass(frozen=True)
class Standing:
    """An entry among those of its track, by its score at the end or within the budget.

    Its rank is one more than there are entries whose interval lies wholly above its own. It is on
    the Pareto front if no other entry is as good in accuracy, bits and epsilon, and better in one
    of them; bits and epsilon are of the whole run, also within a budget.
    """

    entry: Entry
    score: Score | None  # None if no look at the test data fits into the budget
    rank: int | None  # None without a score, and if contested, which makes it nobody's rival
    pareto: bool


@dataclass(frozen=True)
class Ranking:
    """The entries of a track by rank, then by mean; last those without a rank."""

    view: View
    bits: float | None  # budget per parameter of a client in every round; None: rounds are equal
    standings: list[Standing]

    def front(self) -> Ranking:
        """Return the ranking without the entries that another one dominates."""
        return replace(self, standings=[each for each in self.standings if each.pareto])


def ranking(
    entries: Sequence[Entry], view: View = "equal-rounds", bits: float | None = None
) -> Ranking:
    """Rank the entries of one track.

    ``bits`` is the budget if bits are equal; by default all that the cheapest entry needs.
    """
    if view == "equal-rounds":
        bits = None
    elif bits is None:
        bits = min((total(e) for e in entries if e.status != "contested"), default=0.0)
    scores = [entry.score if bits is None else within(entry, bits) for entry in entries]
    rivals = {
        i: own
        for i, own in enumerate(scores)
        if own is not None and entries[i].status != "contested"
    }
    places = list(rivals)
    goods = [_goods(own) for own in rivals.values()]
    best = pareto(goods, lambda i, j: _compare(entries[places[i]], entries[places[j]]))
    front = {places[i] for i in best}
    standings = []
    for i, (entry, own) in enumerate(zip(entries, scores, strict=True)):
        rank = None
        if i in rivals:
            rank = 1 + sum(other.worst.low > rivals[i].worst.high for other in rivals.values())
        standings.append(Standing(entry, own, rank, i in front))
    return Ranking(view, bits, sorted(standings, key=_order))


def _order(standing: Standing) -> tuple[float, float, str]:
    mean = -math.inf if standing.score is None else standing.score.worst.mean
    return standing.rank or math.inf, -mean, standing.entry.id


def total(entry: Entry) -> float:
    """Return the bits per parameter until the last look, in the cell that needs most."""
    return max(cell.curve[-1].bits for cell in entry.cells)


def within(entry: Entry, bits: float) -> Score | None:
    """Return the score of the last look of each cell within so many bits; None without one."""

    def affordable(cell: AttackedCell) -> Interval | None:
        return next((p.accuracy for p in reversed(cell.curve) if p.bits <= bits), None)

    return score(entry.cells, entry.score.epsilon, affordable)


def _goods(own: Score) -> tuple[float, float, float]:
    """Return what a front compares; more is better, and no finite epsilon promises nothing."""
    epsilon = math.inf if own.epsilon is None else own.epsilon
    return own.worst.mean, -(own.uplink_bits + own.downlink_bits), -epsilon


def _compare(left: Entry, right: Entry) -> bool:
    """Tell whether two entries compare: finite epsilons must promise the same."""
    promises = {
        price and (price.unit, price.sees, price.adjacency, price.delta)
        for price in (left.price, right.price)
    }
    return None in (left.score.epsilon, right.score.epsilon) or len(promises) == 1
