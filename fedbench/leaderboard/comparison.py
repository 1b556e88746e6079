"""Two entries beside each other: the paired difference of their worst cases, bits and epsilon."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from fedbench.leaderboard.entry import Entry, Interval
from fedbench.leaderboard.rank import FEWEST
from fedbench.leaderboard.resampling import bca


@dataclass(frozen=True)
class Comparison:
    """Lead of an entry over another one: its worst case minus the other's, over paired seeds.

    The interval is of this pair alone; a rank corrects for all pairs of its table.
    """

    other: Entry
    lead: Interval  # accuracies in [-1, 1]

    @property
    def verdict(self) -> str:
        """Say whether the interval leaves the order open."""
        if self.lead.low > 0:
            return "better"
        return "worse" if self.lead.high < 0 else "open"


def comparisons(
    entry: Entry, others: Sequence[Entry], confidence: float = 0.95
) -> list[Comparison]:
    """Compare an entry with those of its race that share at least three seeds, in their order."""
    compared = []
    own = dict(zip(entry.scored_seeds, entry.score.worst.values, strict=True))
    for other in others:
        theirs = dict(zip(other.scored_seeds, other.score.worst.values, strict=True))
        lost = [own[seed] - theirs[seed] for seed in own if seed in theirs]
        if other is not entry and len(lost) >= FEWEST:
            low, high = bca(lost, confidence)
            lead = Interval(mean=statistics.fmean(lost), low=low, high=high, values=lost)
            compared.append(Comparison(other, lead))
    return compared
