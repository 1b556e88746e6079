"""Ranks of the entries of a track, and their Pareto front."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from fedbench.leaderboard.entry import AttackedCell, Entry, Interval, Score
from fedbench.leaderboard.score import score
from fedbench.results.pareto import pareto

View = Literal["equal-rounds", "equal-bits"]
VIEWS: tuple[View, ...] = ("equal-rounds", "equal-bits")


@dataclass(frozen=True)
class Standing:
    """An entry among those of its track.

    Args:
        entry: The entry.
        score: At the end, or within the budget; None if no look at the test data fits into that.
        rank: One more than there are entries whose interval lies wholly above its own. None without
            a score, and for a contested entry, which is nobody's rival.
        pareto: Is no other entry as good in accuracy, bits and epsilon, and better in one of them?
            Bits and epsilon are of the whole run, also within a budget.
    """

    entry: Entry
    score: Score | None
    rank: int | None
    pareto: bool


@dataclass(frozen=True)
class Ranking:
    """The entries of a track, the best first.

    Args:
        view: After equally many rounds, or after equally many bits.
        bits: The budget, per parameter, of a client that takes part in every round; None if rounds
            are equal.
        standings: By rank, then by mean; last those without a rank.
    """

    view: View
    bits: float | None
    standings: list[Standing]

    def front(self) -> Ranking:
        """Return the ranking without the entries that another one dominates."""
        return replace(self, standings=[each for each in self.standings if each.pareto])


def ranking(
    entries: Sequence[Entry], view: View = "equal-rounds", bits: float | None = None
) -> Ranking:
    """Rank the entries of one track.

    Args:
        entries: All of them.
        view: Whether rounds or bits are equal.
        bits: The budget if bits are equal; by default all that the cheapest entry needs.
    """
    if view == "equal-rounds":
        bits = None
    elif bits is None:
        bits = min((total(e) for e in entries if e.status != "contested"), default=0.0)
    scores = [entry.score if bits is None else within(entry, bits) for entry in entries]
    rivals = [
        (entry, own)
        for entry, own in zip(entries, scores, strict=True)
        if own is not None and entry.status != "contested"
    ]
    best = pareto([_goods(own) for _, own in rivals], lambda i, j: _compare(rivals[i], rivals[j]))
    front = [rivals[i][0] for i in best]
    standings = []
    for entry, own in zip(entries, scores, strict=True):
        place = None
        if own is not None and entry.status != "contested":
            place = rank(own, [other for _, other in rivals])
        standings.append(Standing(entry, own, place, any(entry is other for other in front)))
    return Ranking(view, bits, sorted(standings, key=_order))


def _order(standing: Standing) -> tuple[float, float, str]:
    mean = -math.inf if standing.score is None else standing.score.worst.mean
    place = math.inf if standing.rank is None else standing.rank
    return place, -mean, standing.entry.id


def total(entry: Entry) -> float:
    """Return the bits per parameter until the last look, in the cell that needs most."""
    return max(cell.curve[-1].bits for cell in entry.cells)


def within(entry: Entry, bits: float) -> Score | None:
    """Return the score of the last look of each cell within so many bits; None without one."""
    return score(entry.cells, entry.score.epsilon, partial(_affordable, bits))


def _affordable(bits: float, cell: AttackedCell) -> Interval | None:
    looks = [point.accuracy for point in cell.curve if point.bits <= bits]
    return looks[-1] if looks else None


def rank(own: Score, rivals: Sequence[Score]) -> int:
    """Return one more than there are rivals whose interval lies wholly above."""
    return 1 + sum(other.worst.low > own.worst.high for other in rivals)


def _goods(own: Score) -> tuple[float, float, float]:
    """Return what a front compares; more is better, and no finite epsilon promises nothing."""
    epsilon = math.inf if own.epsilon is None else own.epsilon
    return own.worst.mean, -(own.uplink_bits + own.downlink_bits), -epsilon


def _compare(left: tuple[Entry, Score], right: tuple[Entry, Score]) -> bool:
    """Tell whether two entries compare: finite epsilons must promise the same."""
    finite = left[1].epsilon is not None and right[1].epsilon is not None
    return not finite or _promise(left[0]) == _promise(right[0])


def _promise(entry: Entry) -> tuple[str, str, str, float] | None:
    price = entry.price
    return None if price is None else (price.unit, price.sees, price.adjacency, price.delta)
