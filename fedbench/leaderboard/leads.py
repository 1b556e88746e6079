"""Leads of an entry over others: paired differences of their worst cases."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from fedbench.leaderboard.entry import Entry, Interval
from fedbench.leaderboard.rank import by_seed, differences
from fedbench.results.aggregate import interval


@dataclass(frozen=True)
class Lead:
    """Lead of an entry over another one: its worst case minus the other's, over paired seeds.

    The interval is Student's, of this pair alone; a rank corrects for all pairs of its table.
    """

    other: Entry
    worst: Interval  # differences of accuracies, in [-1, 1]

    @property
    def verdict(self) -> str:
        """Say whether the interval leaves the order open."""
        if self.worst.low > 0:
            return "better"
        return "worse" if self.worst.high < 0 else "open"


def leads(entry: Entry, others: Sequence[Entry]) -> list[Lead]:
    """Return the leads of an entry over those that share enough seeds with it, in their order."""
    all_leads = []
    for other in others:
        if other is entry:
            continue
        pair = {i: by_seed(each, each.score) for i, each in enumerate((entry, other))}
        all_leads += [Lead(other, _mean(lost)) for lost in differences(pair).values()]
    return all_leads


def _mean(lost: Sequence[float]) -> Interval:
    """Return the mean of differences and its interval, which ends at -1 and 1."""
    ends = interval(lost)
    assert ends is not None  # at least two seeds are shared
    low = max(ends[0], -1.0)
    high = min(ends[1], 1.0)
    return Interval(mean=statistics.fmean(lost), low=low, high=high, values=list(lost))
