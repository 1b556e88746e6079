"""Contents of the board's page: its races, and each of them as a table and a drawing per view."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from fedbench.leaderboard.board import Race
from fedbench.leaderboard.entry import Entry, Interval, Score
from fedbench.leaderboard.rank import VIEWS, Ranking, Standing, ranking
from fedbench.leaderboard.rules import Rules
from fedbench.leaderboard.site import words
from fedbench.tables.numbers import bits

ENTRIES: Final = "entries"  # the folder of their pages
HEADS = {"equal-rounds": "Equal rounds", "equal-bits": "Equal bits"}


@dataclass(frozen=True)
class BoardRow:
    """A row of a table, and a point of a drawing."""

    standing: Standing
    shared: bool  # whether others have its rank too

    @property
    def entry(self) -> Entry:
        """Entry that the row shows."""
        return self.standing.entry

    @property
    def score(self) -> Score | None:
        """Score in this view."""
        return self.standing.score

    @property
    def key(self) -> str:
        """Name of its file, unlike that of any other entry."""
        return self.entry.file_name.removesuffix(".json")

    @property
    def href(self) -> str:
        """Address of its page, from that of the board."""
        return f"{ENTRIES}/{self.key}.html"

    @property
    def rank(self) -> str:
        """Rank as text, with a sign if others have it too."""
        place = self.standing.rank
        return words.DASH if place is None else f"{'=' if self.shared else ''}{place}"

    @property
    def name(self) -> str:
        """Name of the entry, as it is shown."""
        return str(words.plain(words.named(self.entry)))

    @property
    def worst(self) -> Interval:
        """Accuracy in the worst case, of a row with a score."""
        assert self.score is not None
        return self.score.worst

    @property
    def bits(self) -> float:
        """Bits up and down, per parameter, of a row with a score."""
        assert self.score is not None
        return self.score.uplink_bits + self.score.downlink_bits

    @property
    def private(self) -> bool:
        """Whether its epsilon is finite."""
        return self.entry.score.epsilon is not None

    @property
    def title(self) -> str:
        """Everything that its point shows, in one line."""
        front = "; on the Pareto front" if self.standing.pareto else ""
        return (
            f"{self.name}: {words.spread(self.worst)} in the worst case, "
            f"{bits(self.bits)} bits up + down, ε {words.epsilon(self.entry)}{front}"
        )


@dataclass(frozen=True)
class RankedView:
    """A ranking as a table and as a drawing."""

    ranking: Ranking

    @property
    def head(self) -> str:
        """Heading that says what is equal."""
        return HEADS[self.ranking.view]

    @property
    def rows(self) -> list[BoardRow]:
        """Rows, the best first."""
        ranks = [standing.rank for standing in self.ranking.standings]
        return [BoardRow(each, ranks.count(each.rank) > 1) for each in self.ranking.standings]

    @property
    def has_private_front(self) -> bool:
        """Whether any entry with a finite epsilon is on the front."""
        return any(row.standing.pareto and row.private for row in self.rows)


@dataclass(frozen=True)
class RaceSection:
    """Entries that are compared with each other, ranked in every view."""

    division: str
    track: str
    facts: str  # sentence about what all entries have in common
    views: list[RankedView]

    @property
    def anchor(self) -> str:
        """Fragment of its address."""
        return f"{self.division}-{self.track}"

    @property
    def entries(self) -> list[Entry]:
        """Entries, the best first."""
        return [row.entry for row in self.views[0].rows]

    def places(self, entry: Entry) -> list[tuple[RankedView, BoardRow]]:
        """Return each view with the row of an entry in it."""
        return [(view, row) for view in self.views for row in view.rows if row.entry is entry]


def section(race: Race, entries: Sequence[Entry], newest: Rules) -> RaceSection:
    """Return a race with all its views."""
    division, track = race
    fixed = newest.named(track) if division == "closed" else None
    facts = words.ANYTHING if fixed is None else words.task(newest.scenario(fixed))
    return RaceSection(division, track, facts, [RankedView(ranking(entries, v)) for v in VIEWS])
