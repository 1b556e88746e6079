"""Accuracy over the rounds: a panel a system, a line an attack."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fedbench.figures.page import Key, Words
from fedbench.figures.panels import multiples
from fedbench.figures.style import INK, WORST, sign, styled
from fedbench.figures.systems import System, attacks, cut, setting, sureness, systems, tens
from fedbench.results.aggregate import Interval, interval
from fedbench.tables.numbers import percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fedbench.results.summary import Row

SIGNS, STRONG = 6, 2.2  # markers on a line; points of a line that matters


@dataclass(frozen=True)
class Point:
    """The accuracy after a round.

    Args:
        round: From 1.
        mean: Over the seeds, in [0, 1].
        interval: Of the mean, cut to what an accuracy can be; None for one seed.
    """

    round: int
    mean: float
    interval: Interval | None


def curve(row: Row) -> list[Point]:
    """Where every seed was looked at."""
    measured = [
        {r.step: r.accuracy for r in record.rounds if r.accuracy is not None}
        for record in row.records
    ]
    points = []
    for step in sorted(set(measured[0]).intersection(*measured[1:])):
        values = [seed[step] for seed in measured]
        points.append(Point(step + 1, statistics.fmean(values), cut(interval(values))))
    return points


def shows(rows: Sequence[Row]) -> bool:
    """Two looks at the test data make a line."""
    return any(len(curve(row)) > 1 for row in rows)


@styled
def compose(rows: Sequence[Row]) -> Figure:
    """Title, legend, a panel a system; the best worst case first."""
    found, keys = systems(rows), _keys(rows)
    curves = {id(row): curve(row) for row in rows}
    caption = "Benign clients' pooled test data. " + sureness(rows, "Bands (no attack, the worst)")
    played = {row.cell.attack for row in rows}
    legend = [key for attack, key in keys.items() if attack in played]
    if any(row.worst for row in rows):
        legend.append(Key("the worst of its panel", WORST, line="-", thick=STRONG))
    words = Words("Accuracy over the rounds", setting(rows), caption)
    figure, panels = multiples([(one.name, _note(one)) for one in found], words, legend)
    xlim, ylim = _limits(rows, curves)
    for panel, system in zip(panels, found, strict=True):
        for row in system.rows:
            _draw(panel.axes, row, curves[id(row)], keys[row.cell.attack])
        panel.axes.set(xlim=xlim, ylim=ylim)
        panel.axes.tick_params(labelleft=panel.leftmost, labelbottom=panel.lowest)
        if panel.leftmost:
            panel.axes.set_ylabel("accuracy, %")
        if panel.lowest:
            panel.axes.set_xlabel("round")
        panel.axes.locator_params(axis="x", integer=True)
    return figure


def _keys(rows: Sequence[Row]) -> dict[str, Key]:
    """The look of the clean run and of every attack."""
    keys = {name: Key(name, *sign(i), line="-") for i, name in enumerate(attacks(rows)[1:])}
    return {"none": Key("none (clean)", INK, "o", line="-", thick=STRONG)} | keys


def _note(system: System) -> str:
    worst = system.worst
    return (
        f"worst {percent(worst.accuracy)} %: {worst.cell.attack.replace(',', ', ')}"
        if worst
        else ""
    )


def _draw(axes: Axes, row: Row, points: Sequence[Point], key: Key) -> None:
    """A line; with a band if it is the clean one or the worst one: more could not be told apart."""
    strong = row.worst or row.cell.clean
    if row.worst:
        key = replace(key, colour=WORST, thick=STRONG)
    axes.plot(
        [point.round for point in points],
        [100 * point.mean for point in points],
        **key.look(),
        markevery=max(1, math.ceil(len(points) / SIGNS)),
        zorder=4 if strong else 3,
        clip_on=False,
    )
    if strong and all(point.interval for point in points):
        low, high = ([100 * (p.interval or (0, 0))[end] for p in points] for end in (0, 1))
        axes.fill_between([p.round for p in points], low, high, color=key.colour, alpha=0.15)


def _limits(
    rows: Sequence[Row], curves: dict[int, list[Point]]
) -> tuple[tuple[float, float], tuple[float, float]]:
    """A little more than the rounds; tens of percent around all that is drawn."""
    points = [point for found in curves.values() for point in found]
    first, last = min(p.round for p in points), max(p.round for p in points)
    ends = [point.mean for point in points]
    for row in rows:
        for point in curves[id(row)] if row.worst or row.cell.clean else ():
            ends += point.interval or ()
    air = max(0.02 * (last - first), 0.02)
    return (first - air, last + air), tens(ends)
