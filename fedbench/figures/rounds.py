"""Accuracy over the rounds: a panel per system, a line per attack."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fedbench.figures.layout import PLAIN, View, Words, fit_multiples, multiples
from fedbench.figures.style import FAINT, INK, Mark, attack_signs, styled
from fedbench.figures.systems import (
    SystemRows,
    attacks,
    cut_interval,
    setting,
    sureness,
    systems,
    tens,
    tested,
)
from fedbench.results.aggregate import Interval
from fedbench.tables import columns
from fedbench.tables.numbers import percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fedbench.results.summary import Row

SIGNS = 6  # markers on a line
THICK_LINE = 2.2  # width of a line that matters, in points


@dataclass(frozen=True)
class RoundAccuracy:
    """Accuracy after a round, over the seeds."""

    round: int  # from 1
    mean: float
    interval: Interval | None  # of the mean, cut to [0, 1]; None for one seed


def curve(row: Row) -> list[RoundAccuracy]:
    """Return the accuracy after every round in which every seed was evaluated."""
    seeds = [{r.step: r.accuracy for r in x.rounds if r.accuracy is not None} for x in row.records]
    points = []
    for step in sorted(set(seeds[0]).intersection(*seeds[1:])):
        values = [seed[step] for seed in seeds]
        points.append(RoundAccuracy(step + 1, statistics.fmean(values), cut_interval(values)))
    return points


def shows(rows: Sequence[Row]) -> bool:
    """Return True if any row was evaluated twice, which makes a line."""
    return any(len(curve(row)) > 1 for row in rows)


@styled
def compose(rows: Sequence[Row], view: View = PLAIN) -> Figure:
    """Draw a panel per system, the best worst case first."""
    shown = systems(rows)
    keys = _keys(rows)
    curves = {id(row): curve(row) for row in rows}
    sure = sureness(rows, "Bands (no attack, the worst)")
    caption = f"{tested(rows).capitalize()}. {sure}"
    played = {row.cell.attack for row in rows}
    legend = [key for attack, key in keys.items() if attack in played]
    if any(row.worst for row in rows):
        legend.append(Mark(f"thick: {columns.LOWEST}", FAINT, line="-", thick=THICK_LINE))
    words = Words("Accuracy over the rounds", setting(rows), caption)
    sheet = multiples(
        words, legend, [(each.name, _note(each)) for each in shown], "round", view.inches
    )
    for axes, system in zip(sheet.panels, shown, strict=False):
        for row in system.rows:
            _draw(axes, row, curves[id(row)], keys[row.cell.attack])
    xlim, ylim = _limits(rows, curves)
    sheet.panels[0].set(xlim=xlim, ylim=ylim)
    sheet.panels[0].locator_params(axis="x", integer=True)
    return fit_multiples(sheet)


def _keys(rows: Sequence[Row]) -> dict[str, Mark]:
    """Return the look of the clean run and of every attack."""
    signs = attack_signs(attacks(rows)[1:])
    keys = {name: Mark(name, *sign, line="-") for name, sign in signs.items()}
    return {"none": Mark("none (clean)", INK, "o", line="-", thick=THICK_LINE)} | keys


def _note(system: SystemRows) -> str:
    worst = system.worst
    return f"worst {percent(worst.accuracy)} %: {worst.cell.attack}" if worst else ""


def _draw(axes: Axes, row: Row, points: Sequence[RoundAccuracy], key: Mark) -> None:
    """Draw a line; only the clean one and the worst one have a band, since more would overlap."""
    strong = row.worst or row.cell.clean
    if row.worst:
        key = replace(key, thick=THICK_LINE)
    rounds = [point.round for point in points]
    axes.plot(
        rounds,
        [100 * point.mean for point in points],
        **key.look(),
        markevery=max(1, math.ceil(len(points) / SIGNS)),
        zorder=4 if strong else 3,
        clip_on=False,
    )
    bands = [point.interval for point in points if point.interval]
    if strong and len(bands) == len(points):
        low, high = ([100 * band[end] for band in bands] for end in (0, 1))
        axes.fill_between(rounds, low, high, color=key.colour, alpha=0.15)


def _limits(
    rows: Sequence[Row], curves: dict[int, list[RoundAccuracy]]
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return limits: a little more than the rounds, and tens of percent around what is drawn."""
    points = [point for each in curves.values() for point in each]
    rounds = [point.round for point in points]
    ends = [point.mean for point in points]
    for row in rows:
        for point in curves[id(row)] if row.worst or row.cell.clean else ():
            ends += point.interval or ()
    air = max(0.02 * (max(rounds) - min(rounds)), 0.02)
    return (min(rounds) - air, max(rounds) + air), tens(ends)
