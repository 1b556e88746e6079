"""Who is before whom, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from fedbench.leaderboard.entry import AttackedCell, Entry, Interval, Score
from fedbench.leaderboard.score import score

View = Literal["equal-rounds", "equal-bits"]
Promise = tuple[str, str, str, float]
VIEWS: tuple[View, ...] = ("equal-rounds", "equal-bits")


@dataclass(frozen=True)
class Standing:
    """An entry among those of its track.

    Args:
        entry: Which.
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
        """Without those that another entry dominates."""
        return replace(self, standings=[one for one in self.standings if one.pareto])


@dataclass(frozen=True)
class Rival:
    """What an entry is compared by.

    Args:
        score: Of a view.
        promise: What its epsilon covers; two finite ones that differ in that do not compare.
    """

    score: Score
    promise: Promise | None


def promise(entry: Entry) -> Promise | None:
    """Unit, who sees what, adjacency and delta; None without a mechanism."""
    price = entry.price
    return None if price is None else (price.unit, price.sees, price.adjacency, price.delta)


def ranking(
    entries: Sequence[Entry], view: View = "equal-rounds", bits: float | None = None
) -> Ranking:
    """The entries of one track.

    Args:
        entries: All of them.
        view: Whether rounds or bits are equal.
        bits: The budget if bits are equal; by default all that the cheapest entry needs.
    """
    rivals = [entry for entry in entries if entry.status != "contested"]
    if view == "equal-rounds":
        bits = None
    elif bits is None:
        bits = min(map(total, rivals), default=0.0)
    found = [(e, e.score if bits is None else within(e, bits)) for e in entries]
    known = [
        Rival(own, promise(entry))
        for entry, own in found
        if own is not None and entry.status != "contested"
    ]
    standings = [_standing(entry, own, known) for entry, own in found]
    return Ranking(view, bits, sorted(standings, key=_place))


def _standing(entry: Entry, own: Score | None, rivals: Sequence[Rival]) -> Standing:
    if own is None or entry.status == "contested":
        return Standing(entry, own, None, False)
    return Standing(entry, own, rank(own, rivals), is_front(Rival(own, promise(entry)), rivals))


def _place(one: Standing) -> tuple[float, float, str]:
    mean = -math.inf if one.score is None else one.score.worst.mean
    return math.inf if one.rank is None else one.rank, -mean, one.entry.id


def total(entry: Entry) -> float:
    """Bits per parameter until the last look, in the cell that needs most."""
    return max(cell.curve[-1].bits for cell in entry.cells)


def within(entry: Entry, bits: float) -> Score | None:
    """The score of the last look of each cell that so many bits allow; None without one."""
    return score(entry.cells, entry.score.epsilon, partial(_affordable, bits))


def _affordable(bits: float, cell: AttackedCell) -> Interval | None:
    looks = [point.accuracy for point in cell.curve if point.bits <= bits]
    return looks[-1] if looks else None


def rank(own: Score, rivals: Sequence[Rival]) -> int:
    """One more than there are rivals surely above; so overlap is not asked for in a chain."""
    return 1 + sum(other.score.worst.low > own.worst.high for other in rivals)


def is_front(own: Rival, rivals: Sequence[Rival]) -> bool:
    """No rival is as good in all three, and better in one."""
    return not any(_dominates(other, own) for other in rivals)


def _dominates(one: Rival, other: Rival) -> bool:
    finite = one.score.epsilon is not None and other.score.epsilon is not None
    if finite and one.promise != other.promise:
        return False
    mine, theirs = _goods(one.score), _goods(other.score)
    return mine != theirs and all(a >= b for a, b in zip(mine, theirs, strict=True))


def _goods(one: Score) -> tuple[float, float, float]:
    """More is better; without a finite epsilon nothing is promised."""
    epsilon = math.inf if one.epsilon is None else one.epsilon
    return one.worst.mean, -(one.uplink_bits + one.downlink_bits), -epsilon
