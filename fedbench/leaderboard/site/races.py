"""What stands on the page of a board: races, and each as a table and a drawing a view."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from fedbench.core.errors import ConfigError
from fedbench.leaderboard.board import STEM
from fedbench.leaderboard.board import Race as Key
from fedbench.leaderboard.entry import Entry, Score
from fedbench.leaderboard.rank import VIEWS, Ranking, Standing, ranking
from fedbench.leaderboard.rules import Rules
from fedbench.leaderboard.site import scatter, words

ENTRIES: Final = "entries"  # the folder of their pages
HEADS = {"equal-rounds": "Equal rounds", "equal-bits": "Equal bits"}


def stem(entry: Entry) -> str:
    """The name of its file without the ending.

    Raises:
        ConfigError: a file of that name would lie elsewhere.
    """
    name = entry.file_name.removesuffix(".json")
    if not STEM.fullmatch(name):
        raise ConfigError(
            f"the protocol of entry {entry.id} must be named by a-z, 0-9 and hyphens, got "
            f"{entry.protocol!r}; run fedbench leaderboard check"
        )
    return name


@dataclass(frozen=True)
class Line:
    """A row of a table, a point of a drawing.

    Args:
        standing: Of the entry.
        shared: Do others have its rank too?
    """

    standing: Standing
    shared: bool

    @property
    def entry(self) -> Entry:
        """Which."""
        return self.standing.entry

    @property
    def score(self) -> Score | None:
        """Of this view."""
        return self.standing.score

    @property
    def key(self) -> str:
        """What tells it from the others."""
        return stem(self.entry)

    @property
    def href(self) -> str:
        """Its page, from that of the board."""
        return f"{ENTRIES}/{self.key}.html"

    @property
    def rank(self) -> str:
        """For people."""
        return words.rank(self.standing.rank, self.shared)

    def drawn(self, score: Score) -> scatter.System:
        """What its point shows."""
        bits = score.uplink_bits + score.downlink_bits
        name = words.named(self.entry)
        front = "; on the Pareto front" if self.standing.pareto else ""
        return scatter.System(
            key=self.key,
            href=self.href,
            name=name,
            title=f"{name}: {words.spread(score.worst)} in the worst case, "
            f"{words.bits(bits)} bits up + down, ε {words.epsilon(self.entry)}{front}",
            bits=bits,
            worst=score.worst.mean,
            low=score.worst.low,
            high=score.worst.high,
            private=score.epsilon is not None,
            front=self.standing.pareto,
        )


@dataclass(frozen=True)
class View:
    """A ranking as a table and as a drawing."""

    ranking: Ranking

    @property
    def head(self) -> str:
        """What is equal."""
        return HEADS[self.ranking.view]

    @property
    def lines(self) -> list[Line]:
        """The best first."""
        ranks = [standing.rank for standing in self.ranking.standings]
        return [Line(one, ranks.count(one.rank) > 1) for one in self.ranking.standings]

    def plot(self, width: float, height: float, letters: int) -> scatter.Plot:
        """Those that have a score."""
        scored = [line.drawn(line.score) for line in self.lines if line.score is not None]
        return scatter.plot(scored, width, height, letters)


@dataclass(frozen=True)
class Race:
    """Entries that are compared with each other.

    Args:
        division: ``closed`` or ``open``.
        track: Its name.
        facts: What all have in common.
        views: Its rankings.
    """

    division: str
    track: str
    facts: str
    views: list[View]

    @property
    def anchor(self) -> str:
        """Of its section."""
        return f"{self.division}-{self.track}"

    @property
    def entries(self) -> list[Entry]:
        """All of them."""
        return [line.entry for line in self.views[0].lines]

    def places(self, entry: Entry) -> list[tuple[View, Line]]:
        """Where an entry stands in each view."""
        return [(v, line) for v in self.views for line in v.lines if line.entry is entry]


def race(key: Key, entries: Sequence[Entry], newest: Rules) -> Race:
    """All views of one."""
    division, track = key
    fixed = newest.named(track) if division == "closed" else None
    facts = words.ANYTHING if fixed is None else words.task(newest.scenario(fixed))
    return Race(division, track, facts, [View(ranking(entries, view)) for view in VIEWS])
