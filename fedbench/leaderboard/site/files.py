"""A board as data: what the table of the page says, as CSV and JSON beside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from fedbench.leaderboard.site.views import BoardRow, RaceSection, RankedView
from fedbench.tables.export import as_csv, as_json

NAMES = ("leaderboard.csv", "leaderboard.json")


def data_files(races: Sequence[RaceSection]) -> dict[str, str]:
    """Return the files by name, with a line or an object for each entry in each view; or none.

    Accuracies are in [0, 1], bits per parameter. A rank is that among the entries of its table: of
    one season and one ``promise``, which is empty without a finite epsilon.
    """
    rows = [_row(race, view, row) for race in races for view in race.views for row in view.rows]
    if not rows:
        return {}
    texts = (as_csv(rows), as_json(rows, list(rows[0])))
    return dict(zip(NAMES, (text.decode() for text in texts), strict=True))


def _row(race: RaceSection, view: RankedView, row: BoardRow) -> dict[str, Any]:
    entry = row.entry
    scored = row.score
    return {
        **{"division": race.division, "track": race.track, "season": race.season},
        **{"promise": "" if race.promise is None else str(race.promise)},
        **{"private": race.private, "view": view.ranking.view},
        **{"rank": row.standing.rank, "best": row.standing.best, "pareto": row.standing.pareto},
        **{"id": entry.id, "name": entry.name, "authors": entry.authors, "link": entry.link},
        **{"protocol": entry.protocol, "mechanism": entry.mechanism, "defense": entry.defense},
        **dict(_accuracies(scored)),
        "uplink_bits": (scored or entry.score).uplink_bits,
        "downlink_bits": (scored or entry.score).downlink_bits,
        "epsilon": entry.score.epsilon,
        **{"status": entry.status, "rules": entry.rules, "code": entry.code},
        **{"device": entry.device, "page": row.href},
    }


def _accuracies(scored: Any) -> Iterator[tuple[str, Any]]:
    """Yield the numbers of a score; None where an entry was never looked at within the budget."""
    yield "attack", scored and scored.attack
    for name in ("worst", "clean"):
        interval = scored and getattr(scored, name)
        yield name, interval and interval.mean
        yield f"{name}_low", interval and interval.low
        yield f"{name}_high", interval and interval.high
    yield "area", scored and scored.area
