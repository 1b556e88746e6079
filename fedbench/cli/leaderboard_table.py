"""Rankings, findings and repetitions of a leaderboard: for a terminal, for pages, for programs."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table as RichTable

from fedbench.leaderboard.entry_rules import outdated
from fedbench.leaderboard.site.words import brief, epsilon, resolution, system
from fedbench.tables.export import as_csv as rows_as_csv
from fedbench.tables.export import literal, markdown
from fedbench.tables.numbers import NA, bits, or_none, percent, points
from fedbench.tables.table import Column, Line, Table
from fedbench.tables.terminal import cell, grid

if TYPE_CHECKING:
    from fedbench.leaderboard.check import CheckedFile
    from fedbench.leaderboard.entry import Entry, Interval, Score
    from fedbench.leaderboard.entry_rules import RuleFinding
    from fedbench.leaderboard.held_out import HeldOutResult
    from fedbench.leaderboard.rank import Ranking, Standing
    from fedbench.leaderboard.replays import ClaimedEntry, ReplayedCell, StagedCell
    from fedbench.leaderboard.spot_check import CheckedRound

FRONT = "◆"
GAP = "gap"
BEST = "best %"
HEADS = (
    *("rank", BEST, "entry", "worst case %", "attack", "area %", "clean %"),
    *("up", "down", "ε", FRONT, "status"),
)
NARROW = ("rank", "entry", "worst case %", "up", "ε", FRONT)
WIDE = 110  # characters from which on every column has room
MIN_ENTRY_WIDTH = 24  # characters that an entry has at least
NUMBERS = ("rank", BEST, "up", "down", "ε")
COLUMNS = (  # of a ranking that a program reads, also where it has no standing
    *("division", "track", "view", "bits", "private", "rank", "probability_best", "season"),
    *("told_apart", "pareto", "id", "name", "system"),
    *("worst", "low", "high", "attack", "area", "clean", "uplink_bits", "downlink_bits"),
    *("epsilon", "unit", "sees", "adjacency", "delta", "held_out", "gap", "gap_low", "gap_high"),
    *("rules", "newest_rules", "status", "outdated"),
)
UNSEEN = (
    "Nothing was played: numbers that were made up consistently, plug-ins that do something else "
    "than they say or recognise the seeds that everybody knows, and a season whose value was known "
    "before an entry was in it cannot be seen here; see fedbench leaderboard reproduce and the "
    "history of the files."
)
STYLES = {"error": "bold red", "warning": "yellow"}


@dataclass(frozen=True)
class RankingTable:
    """Ranking of a track of a board."""

    division: str
    track: str
    ranking: Ranking
    newest: int  # version of the rules
    held_out: Mapping[str, Sequence[HeldOutResult]]  # by id, the worst first

    @property
    def title(self) -> str:
        """Division, track, what private systems promise, and what is equal for all entries."""
        budget = self.ranking.bits
        equal = "equal rounds" if budget is None else f"within {bits(budget)} bits per parameter"
        promise = self.ranking.promise
        private = "" if promise is None else f", private systems ({promise})"
        season = f", season {self.ranking.season}" if self.ranking.season else ""
        return f"{self.division} division, {self.track}{season}{private}: {equal}"

    @property
    def resolution(self) -> str:
        """Say which differences the seeds show; empty for a single entry."""
        return resolution(self.ranking)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield grid(self.table(HEADS if options.max_width >= WIDE else NARROW), options)
        if self.resolution:
            yield cell(self.resolution, options)

    def table(self, headings: Sequence[str] = HEADS) -> Table:
        """Make the table with these columns; what has none of its own stands below the name.

        The gap is a column where any entry met a held-out attack.
        """
        narrow = headings is NARROW
        if any(standing.entry.id in self.held_out for standing in self.ranking.standings):
            after = headings.index("worst case %") + 1
            headings = [*headings[:after], GAP, *headings[after:]]
        columns = [
            Column(
                heading,
                "right" if heading in NUMBERS else "left",
                wraps=heading in ("entry", "attack"),
                width=MIN_ENTRY_WIDTH if heading == "entry" else None,
            )
            for heading in headings
        ]
        lines = []
        for standing in self.ranking.standings:
            texts = dict(zip((*HEADS, GAP), self._texts(standing), strict=True))
            if narrow:
                under = "" if standing.score is None else f"under {texts['attack']}; "
                texts["entry"] += f"\n{under}{texts['status']}"
            style = "dim" if standing.rank is None else "bold" if standing.pareto else ""
            lines.append(Line([texts[heading] for heading in headings], style=style))
        return Table(columns, lines, self.title)

    def _texts(self, standing: Standing) -> list[str]:
        entry = standing.entry
        score = standing.score
        old = f", rules {entry.rules} of {self.newest}" if entry.rules < self.newest else ""
        weaker = ", outdated" if outdated(cell.attack for cell in entry.cells) else ""
        numbers = [NA] * 7
        if score is not None:
            numbers = [spread(score.worst), short(entry, score.attack), percent(score.area)]
            numbers += [percent(score.clean.mean)]
            numbers += [bits(score.uplink_bits), bits(score.downlink_bits)]
            numbers += [epsilon(entry)]
        return [
            or_none(standing.rank, str),
            or_none(standing.best, lambda share: f"{100 * share:.0f}"),
            f"{entry.name} ({system(entry)})",
            *numbers,
            FRONT if standing.pareto else "",
            entry.status + weaker + old,
            " ".join(gap(result) for result in self.held_out.get(entry.id, [])[:1]) or NA,
        ]

    def rows(self) -> list[dict[str, Any]]:
        """Return every standing in full precision."""
        least = self.ranking.least_difference
        return [
            {
                "division": self.division,
                "track": self.track,
                "view": self.ranking.view,
                "bits": self.ranking.bits,
                "private": self.ranking.promise is not None,
                "rank": standing.rank,
                "probability_best": standing.best,
                "season": self.ranking.season,
                "told_apart": least if math.isfinite(least or 0) else None,
                "pareto": standing.pareto,
                "id": standing.entry.id,
                "name": standing.entry.name,
                "system": system(standing.entry),
                **_numbers(standing.score),
                **_covered(standing.entry),
                **_held_out(self.held_out.get(standing.entry.id, [])),
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
        "area": score and score.area,
        "clean": score and score.clean.mean,
        "uplink_bits": score and score.uplink_bits,
        "downlink_bits": score and score.downlink_bits,
        "epsilon": score and score.epsilon,
    }


def _covered(entry: Entry) -> dict[str, Any]:
    """Return what an entry's epsilon covers; two that differ in it do not compare."""
    names = ("unit", "sees", "adjacency", "delta")
    return {name: entry.price and getattr(entry.price, name) for name in names}


def _held_out(results: Sequence[HeldOutResult]) -> dict[str, Any]:
    """Return the generalisation gap under the worst held-out attack, if any was played."""
    worst = results[0] if results else None
    return {
        "held_out": worst and worst.attack,
        "gap": worst and worst.gap.mean,
        "gap_low": worst and worst.gap.low,
        "gap_high": worst and worst.gap.high,
    }


def gap(result: HeldOutResult) -> str:
    """Format a generalisation gap with its interval, in points."""
    return f"{points(result.gap.mean)} [{points(result.gap.low)}, {points(result.gap.high)}]"


def spread(interval: Interval) -> str:
    """Format mean and interval, in percent."""
    return f"{percent(interval.mean)} [{percent(interval.low)}, {percent(interval.high)}]"


def short(entry: Entry, attack: str) -> str:
    """Name an attack without default parameters."""
    return str(brief(entry.scenario.model_copy(update={"attack": attack})).attack)


LEGEND = {
    "rank": "1 + how many entries are surely better, by paired differences over the seeds",
    BEST: "share of resamples of the seeds in which it is the best of its table; too sure where "
    "several are close",
    "worst case": "mean and 95 % interval over seeds, under the attack that hurts most",
    GAP: "worst case minus accuracy under the worst held-out attack, in points: above 0, the "
    "ensemble flatters the entry",
    "area": "mean over all evaluations under that attack: the area under the curve",
    "up, down": "bits per parameter and message",
    "ε": "two compare only if unit, adversary, adjacency and δ agree (see --format json)",
    "outdated": "an attack has become stronger since: the entry waits to be played again",
    FRONT: "no other entry is as good in worst case, bits and ε, and better in one; surely above "
    "chance, and of the private ones ε ≤ 10",
    "equal bits": "worst case and clean are within the budget; up, down and ε, also for "
    f"{FRONT}, are of the whole run",
}


def as_json(places: Sequence[RankingTable]) -> str:
    """Write all tracks, numbers as numbers."""
    return json.dumps([row for place in places for row in place.rows()], indent=2)


def as_csv(places: Sequence[RankingTable]) -> str:
    """Write one table of all tracks; of none its heading."""
    return rows_as_csv([row for place in places for row in place.rows()], COLUMNS).decode()


def as_markdown(places: Sequence[RankingTable]) -> str:
    """Write a table for each track."""
    texts = []
    for place in places:
        texts.append(f"### {place.title}\n\n{markdown(place.table(), literal)}")
        if place.resolution:
            texts.append(f"{place.resolution}\n")
    return "\n".join(texts)


def checks(checked: Sequence[CheckedFile], options: ConsoleOptions) -> Group:
    """List files of a board and the findings about them, for a terminal."""
    parts: list[RenderableType] = []
    for file in checked:
        parts.append(cell(f"{verdict(file.findings)}  {file.path}", options, "bold"))
        parts += [findings(file.findings, options)] if file.findings else []
    wrong = sum(verdict(file.findings) == "refused" for file in checked)
    parts.append(cell(f"{len(checked)} checked, {wrong} refused", options))
    parts.append(cell(UNSEEN, options, "dim"))
    return Group(*parts)


def verdict(of: Iterable[RuleFinding]) -> str:
    """Return ``refused`` if any finding is an error, else ``good``."""
    return "refused" if any(finding.severity == "error" for finding in of) else "good"


def findings(of: Sequence[RuleFinding], options: ConsoleOptions) -> RichTable:
    """List the findings, a line each."""
    table = RichTable.grid(padding=(0, 1, 0, 0))
    for finding in of:
        style = STYLES[finding.severity]
        texts = (f"  {finding.severity}", finding.rule)
        table.add_row(*(cell(t, options, style) for t in texts), cell(finding.text, options))
    return table


def checked_json(checked: Sequence[CheckedFile]) -> str:
    """Write verdicts and findings for programs."""
    files = [
        {
            "path": file.path.as_posix(),
            "id": file.entry and file.entry.id,
            "verdict": verdict(file.findings),
            "findings": [asdict(finding) for finding in file.findings],
        }
        for file in checked
    ]
    good = all(file["verdict"] == "good" for file in files)
    return json.dumps({"good": good, "files": files}, indent=2)


def repetition(
    claim: ClaimedEntry,
    comparisons: Sequence[ReplayedCell],
    apart: Mapping[StagedCell, Sequence[str]],
    options: ConsoleOptions,
) -> RichTable:
    """Set cells as they are claimed beside the same cells played again, for a terminal.

    ``apart`` holds the numbers that differ by more than the rules allow, by cell.
    """
    columns = [
        Column(heading, "right" if heading in ("claimed", "again") else "left", wraps=True)
        for heading in ("attack", "what", "claimed", "again", "difference", "")
    ]
    lines = []
    for comparison in comparisons:
        part = comparison.part
        name = f"{short(claim.entry, part.attack)}, {part.stage}"
        for what, claimed, again in comparison.pairs(claim.rules.looks):
            if claimed is None and again is None:
                continue
            far = what in apart[part]
            difference = NA if claimed is None or again is None else f"{again - claimed:+.6g}"
            values = (or_none(x, "{:.6g}".format) for x in (claimed, again))
            texts = [name, what.replace("_", " "), *values, difference, "too far" if far else ""]
            lines.append(Line(texts, marked=far))
            name = ""
    return grid(Table(columns, lines), options)


def spot_checks(outcomes: Sequence[CheckedRound], options: ConsoleOptions) -> RichTable:
    """Show the rounds that were played again and what differs, for a terminal."""
    columns = [
        Column("attack", "left", wraps=True),
        Column("seed"),
        Column("round"),
        Column("", "left", wraps=True),
    ]
    lines = []
    for outcome in outcomes:
        scenario = outcome.drawn.record.scenario
        texts = [brief(scenario).attack, str(scenario.seed), str(outcome.drawn.step)]
        lines.append(Line([*texts, outcome.wrong or "agrees"], marked=bool(outcome.wrong)))
    return grid(Table(columns, lines), options)
