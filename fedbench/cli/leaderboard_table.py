"""Who is before whom: for a terminal, for a page in Markdown, for programs."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table

from fedbench.cli.export import FORMULA
from fedbench.leaderboard.outdated import outdated
from fedbench.tables.columns import NONE, bits, known, nats, percent
from fedbench.tables.table import cell, legible, listed

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

    from fedbench.leaderboard.entry import Entry, Interval, Score
    from fedbench.leaderboard.rank import Ranking, Standing

FRONT = "◆"
HEADS = ("rank", "entry", "worst case %", "attack", "clean %", "up", "down", "ε", FRONT, "status")
NARROW = ("rank", "entry", "worst case %", "up", "ε", FRONT)
WIDE = 110  # characters from which on every column has room
NAMES = 24  # characters that an entry has at least
NUMBERS = ("rank", "up", "down", "ε")
_MARKS = str.maketrans({FRONT: "*"})
_MARKDOWN = re.compile(r"([\\`*_\[\]|<>!#~&])")


@dataclass(frozen=True)
class Place:
    """A ranking, and where it is.

    Args:
        division: Of the board.
        track: Of the division.
        ranking: Of its entries.
        newest: Version of the rules.
    """

    division: str
    track: str
    ranking: Ranking
    newest: int

    @property
    def title(self) -> str:
        """What is equal."""
        budget = self.ranking.bits
        equal = "equal rounds" if budget is None else f"within {bits(budget)} bits per parameter"
        return f"{self.division} division, {self.track}: {equal}"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = Table(
            title=cell(self.title, options, "bold"),
            title_justify="left",
            box=box.HORIZONTALS,
            padding=(0, 1, 0, 0),
            pad_edge=False,
            show_edge=False,
        )
        heads = HEADS if options.max_width >= WIDE else NARROW
        for head in heads:
            table.add_column(
                _legible(head, options),
                justify="right" if head in NUMBERS else "left",
                min_width=NAMES if head == "entry" else None,
                no_wrap=head not in ("entry", "attack"),
            )
        for one in self.ranking.standings:
            style = "dim" if one.rank is None else "bold" if one.pareto else ""
            texts = dict(zip(HEADS, self.texts(one), strict=True))
            if heads is NARROW:  # what has no column of its own stands below the name
                under = "" if one.score is None else f"under {texts['attack']}; "
                texts["entry"] += f"\n{under}{texts['status']}"
            table.add_row(*(cell(_legible(texts[h], options), options, style) for h in heads))
        yield table

    def texts(self, one: Standing) -> list[str]:
        """A line of the table."""
        return [
            known(one.rank, str),
            f"{one.entry.name} ({system(one.entry)})",
            *_scored(one),
            FRONT if one.pareto else "",
            self._status(one.entry),
        ]

    def _status(self, entry: Entry) -> str:
        old = f", rules {entry.rules} of {self.newest}" if entry.rules < self.newest else ""
        weaker = ", outdated" if outdated(cell.attack for cell in entry.cells) else ""
        return entry.status + weaker + old

    def rows(self) -> list[dict[str, Any]]:
        """Everything, in full precision."""
        return [
            {
                "division": self.division,
                "track": self.track,
                "view": self.ranking.view,
                "bits": self.ranking.bits,
                "rank": one.rank,
                "pareto": one.pareto,
                "id": one.entry.id,
                "name": one.entry.name,
                "system": system(one.entry),
                **_numbers(one.score),
                **_covered(one.entry),
                "rules": one.entry.rules,
                "newest_rules": self.newest,
                "status": one.entry.status,
                "outdated": outdated(cell.attack for cell in one.entry.cells),
            }
            for one in self.ranking.standings
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
    """What its epsilon covers; two that differ in it do not compare."""
    names = ("unit", "sees", "adjacency", "delta")
    return {name: entry.price and getattr(entry.price, name) for name in names}


def _scored(one: Standing) -> list[str]:
    if one.score is None:
        return [NONE] * 6
    found = one.score
    return [
        spread(found.worst),
        short(one.entry, found.attack),
        percent(found.clean.mean),
        bits(found.uplink_bits),
        bits(found.downlink_bits),
        known(found.epsilon, nats),
    ]


def spread(found: Interval) -> str:
    """Mean and interval, in percent."""
    return f"{percent(found.mean)} [{percent(found.low)}, {percent(found.high)}]"


def system(entry: Entry) -> str:
    """Protocol, mechanism and rule without what is by default."""
    from fedbench.results.gather import Played, shortened

    return Played(shortened(entry.scenario), vote=entry.votes).system


def short(entry: Entry, attack: str) -> str:
    """An attack without what is by default."""
    from fedbench.results.gather import shortened

    return shortened(entry.scenario.model_copy(update={"attack": attack})).attack


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


def legend(options: ConsoleOptions) -> Table:
    """What the columns mean."""
    return listed(
        [(_legible(k, options), _legible(v, options)) for k, v in LEGEND.items()], options
    )


def _legible(text: str, options: ConsoleOptions) -> str:
    return legible(text.translate(_MARKS) if options.ascii_only else text, options)


def as_json(places: Sequence[Place]) -> str:
    """Numbers as numbers."""
    return json.dumps([row for place in places for row in place.rows()], indent=2)


def as_csv(places: Sequence[Place]) -> str:
    """One table of all tracks."""
    rows = [row for place in places for row in place.rows()]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _plain(value) for name, value in row.items()} for row in rows)
    return text.getvalue()


def _plain(value: Any) -> Any:
    """No formula, whatever a name holds."""
    formula = isinstance(value, str) and value.startswith(FORMULA)
    return f"'{value}" if formula else value


def as_markdown(places: Sequence[Place]) -> str:
    """A table a track."""
    out = []
    for place in places:
        aligned = ["--:" if head in NUMBERS else ":--" for head in HEADS]
        body = [place.texts(one) for one in place.ranking.standings]
        lines = [list(HEADS), aligned, *([_escaped(text) for text in row] for row in body)]
        table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
        out.append(f"### {place.title}\n\n{table}")
    return "\n".join(out)


def _escaped(text: str) -> str:
    """For Markdown: no markup, whatever a name holds."""
    return _MARKDOWN.sub(r"\\\1", text)
