"""Rankings of a leaderboard: for a terminal, for a page in Markdown, for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedbench.leaderboard.notices import outdated
from fedbench.leaderboard.site.words import brief, system
from fedbench.tables.export import as_csv as rows_as_csv
from fedbench.tables.markdown import literal, markdown
from fedbench.tables.numbers import NONE, bits, nats, or_none, percent
from fedbench.tables.table import Column, Line, Table
from fedbench.tables.terminal import grid, listed

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.table import Table as RichTable

    from fedbench.leaderboard.entry import Entry, Interval, Score
    from fedbench.leaderboard.rank import Ranking, Standing

FRONT = "◆"
HEADS = ("rank", "entry", "worst case %", "attack", "clean %", "up", "down", "ε", FRONT, "status")
NARROW = ("rank", "entry", "worst case %", "up", "ε", FRONT)
WIDE = 110  # characters from which on every column has room
NAMES = 24  # characters that an entry has at least
NUMBERS = ("rank", "up", "down", "ε")


@dataclass(frozen=True)
class RankingTable:
    """Ranking of a track of a board.

    Args:
        division: Division of the board.
        track: Track of the division.
        ranking: Ranking of its entries.
        newest: Newest version of the rules.
    """

    division: str
    track: str
    ranking: Ranking
    newest: int

    @property
    def title(self) -> str:
        """Division, track, and what is equal for all entries."""
        budget = self.ranking.bits
        equal = "equal rounds" if budget is None else f"within {bits(budget)} bits per parameter"
        return f"{self.division} division, {self.track}: {equal}"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield grid(self.table(HEADS if options.max_width >= WIDE else NARROW), options)

    def table(self, headings: Sequence[str] = HEADS) -> Table:
        """Make the table with these columns; what has none of its own stands below the name."""
        columns = [
            Column(
                heading,
                "right" if heading in NUMBERS else "left",
                wraps=heading in ("entry", "attack"),
                width=NAMES if heading == "entry" else None,
            )
            for heading in headings
        ]
        lines = []
        for standing in self.ranking.standings:
            texts = dict(zip(HEADS, self._texts(standing), strict=True))
            if headings is NARROW:
                under = "" if standing.score is None else f"under {texts['attack']}; "
                texts["entry"] += f"\n{under}{texts['status']}"
            style = "dim" if standing.rank is None else "bold" if standing.pareto else ""
            lines.append(Line([texts[heading] for heading in headings], style=style))
        return Table(columns, lines, self.title)

    def _texts(self, standing: Standing) -> list[str]:
        return [
            or_none(standing.rank, str),
            f"{standing.entry.name} ({system(standing.entry)})",
            *_scored(standing),
            FRONT if standing.pareto else "",
            self._status(standing.entry),
        ]

    def _status(self, entry: Entry) -> str:
        old = f", rules {entry.rules} of {self.newest}" if entry.rules < self.newest else ""
        weaker = ", outdated" if outdated(cell.attack for cell in entry.cells) else ""
        return entry.status + weaker + old

    def rows(self) -> list[dict[str, Any]]:
        """Return every standing in full precision."""
        return [
            {
                "division": self.division,
                "track": self.track,
                "view": self.ranking.view,
                "bits": self.ranking.bits,
                "rank": standing.rank,
                "pareto": standing.pareto,
                "id": standing.entry.id,
                "name": standing.entry.name,
                "system": system(standing.entry),
                **_numbers(standing.score),
                **_covered(standing.entry),
                "rules": standing.entry.rules,
                "newest_rules": self.newest,
                "status": standing.entry.status,
                "outdated": outdated(cell.attack for cell in standing.entry.cells),
            }
            for standing in self.ranking.standings
        ]


def _numbers(score: Score | None) -> dict[str, Any]:
    return {
        "worst": score and score.worst.mean,
        "low": score and score.worst.low,
        "high": score and score.worst.high,
        "attack": score and score.attack,
        "clean": score and score.clean.mean,
        "uplink_bits": score and score.uplink_bits,
        "downlink_bits": score and score.downlink_bits,
        "epsilon": score and score.epsilon,
    }


def _covered(entry: Entry) -> dict[str, Any]:
    """Return what an entry's epsilon covers; two that differ in it do not compare."""
    names = ("unit", "sees", "adjacency", "delta")
    return {name: entry.price and getattr(entry.price, name) for name in names}


def _scored(standing: Standing) -> list[str]:
    score = standing.score
    if score is None:
        return [NONE] * 6
    return [
        spread(score.worst),
        short(standing.entry, score.attack),
        percent(score.clean.mean),
        bits(score.uplink_bits),
        bits(score.downlink_bits),
        or_none(score.epsilon, nats),
    ]


def spread(interval: Interval) -> str:
    """Format mean and interval, in percent."""
    return f"{percent(interval.mean)} [{percent(interval.low)}, {percent(interval.high)}]"


def short(entry: Entry, attack: str) -> str:
    """Name an attack without default parameters."""
    return brief(entry.scenario.model_copy(update={"attack": attack})).attack


LEGEND = {
    "rank": "1 + how many entries are surely better: their interval lies wholly above",
    "worst case": "mean and 95 % interval over seeds, under the attack that hurts most",
    "up, down": "bits per parameter and message",
    "ε": "two compare only if unit, adversary, adjacency and δ agree (see --format json)",
    "outdated": "an attack has become stronger since: the entry waits to be played again",
    FRONT: "no other entry is as good in worst case, bits and ε, and better in one",
    "equal bits": "worst case and clean are within the budget; up, down and ε, also for "
    f"{FRONT}, are of the whole run",
}


def legend(options: ConsoleOptions) -> RichTable:
    """Return a list that explains the columns."""
    return listed(LEGEND.items(), options)


def as_json(places: Sequence[RankingTable]) -> str:
    """Write all tracks, numbers as numbers."""
    return json.dumps([row for place in places for row in place.rows()], indent=2)


def as_csv(places: Sequence[RankingTable]) -> str:
    """Write one table of all tracks."""
    return rows_as_csv([row for place in places for row in place.rows()]).decode()


def as_markdown(places: Sequence[RankingTable]) -> str:
    """Write a table for each track."""
    return "\n".join(f"### {place.title}\n\n{markdown(place.table(), literal)}" for place in places)
