"""Contents of the board's page: its races, and each of them as a table and a drawing per view."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

from fedbench.leaderboard.board import Race
from fedbench.leaderboard.entry import Entry, Interval, Score
from fedbench.leaderboard.rank import (
    VIEWS,
    EpsilonMeaning,
    Ranking,
    Standing,
    comparable_groups,
    promise,
    ranking,
    season,
)
from fedbench.leaderboard.rules import Rules
from fedbench.leaderboard.site import words

ENTRIES: Final = "entries"  # the folder of their pages


@dataclass(frozen=True)
class BoardRow:
    """A row of a table; with a score, it is a point of a drawing, too."""

    standing: Standing
    entry: Entry
    score: Score | None  # in this view
    key: str  # name of the entry's file, unlike that of any other entry
    href: str  # address of its page, from that of the board
    rank: str  # with a sign if others have it too
    name: str  # as it is shown
    private: bool  # whether its epsilon is finite

    @classmethod
    def of(cls, standing: Standing, shared: bool) -> Self:
        """Return the row of an entry, whose rank may be ``shared`` with others."""
        entry = standing.entry
        key = entry.file_name.removesuffix(".json")
        rank = words.DASH if standing.rank is None else f"{'=' if shared else ''}{standing.rank}"
        name = str(words.plain(words.named(entry)))
        private = promise(entry) is not None
        href = f"{ENTRIES}/{key}.html"
        return cls(standing, entry, standing.score, key, href, rank, name, private)

    @property
    def worst(self) -> Interval:
        """Accuracy in the worst case, of a row with a score."""
        assert self.score is not None
        return self.score.worst

    def bits(self, counted: str) -> float:
        """Bits per parameter of a row with a score: ``total``, up and down, or ``up`` alone."""
        assert self.score is not None
        down = self.score.downlink_bits if counted == "total" else 0.0
        return self.score.uplink_bits + down


@dataclass(frozen=True)
class RankedView:
    """A ranking as a table and as a drawing."""

    ranking: Ranking

    @property
    def head(self) -> str:
        """Heading that says what is equal."""
        return self.ranking.view.replace("-", " ").capitalize()

    @property
    def rows(self) -> list[BoardRow]:
        """Rows, the best first."""
        ranks = [standing.rank for standing in self.ranking.standings]
        return [BoardRow.of(each, ranks.count(each.rank) > 1) for each in self.ranking.standings]


@dataclass(frozen=True)
class RaceSection:
    """Entries that are compared with each other, ranked in every view."""

    division: str
    track: str
    promise: EpsilonMeaning | None  # of every epsilon here; None: systems without a finite one
    season: str  # whose seeds they share; empty before the ranking stage
    facts: str  # sentence about what all entries have in common
    views: list[RankedView]

    @property
    def anchor(self) -> str:
        """Fragment of its address."""
        season = f"-{self.season}" if self.season else ""
        private = "" if self.promise is None else f"-private-{_kebab(str(self.promise))}"
        return f"{self.division}-{self.track}{season}{private}"

    @property
    def name(self) -> str:
        """Name of the track, its season, and what its private systems promise."""
        season = f", season {self.season}" if self.season else ""
        private = "" if self.promise is None else f", private ({self.promise})"
        return f"{self.track}{season}{private}"

    @property
    def private(self) -> bool:
        """Whether its systems have a finite epsilon."""
        return self.promise is not None

    @property
    def entries(self) -> list[Entry]:
        """Entries, the best first."""
        return [row.entry for row in self.views[0].rows]

    def places(self, entry: Entry) -> list[tuple[RankedView, BoardRow]]:
        """Return each view with the row of an entry in it."""
        return [(view, row) for view in self.views for row in view.rows if row.entry is entry]


def _kebab(text: str) -> str:
    return "-".join(re.findall(r"[a-z0-9.]+", text.lower()))


def sections(race: Race, entries: Sequence[Entry], newest: Rules) -> list[RaceSection]:
    """Return a race with all its views: first the systems without a finite epsilon, then others."""
    division, track = race
    fixed = newest.named(track) if division == "closed" else None
    facts = words.ANYTHING if fixed is None else words.task(newest.scenario(fixed))
    limits = newest.limits(track)
    return [
        RaceSection(
            division,
            track,
            promise(group[0]),
            season(group[0]),
            facts,
            [RankedView(ranking(group, view, limits=limits)) for view in VIEWS],
        )
        for group in comparable_groups(entries)
    ]
