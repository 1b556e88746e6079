"""Attack impact: the accuracy that each attack takes from each system."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedbench.figures.page import MARGIN, WIDTH, Key, Page, Words, measure, wrap
from fedbench.figures.style import BANDS, BAR, FAINT, INK, WORST, styled
from fedbench.figures.systems import System, setting, sureness, systems
from fedbench.results.aggregate import Interval, interval
from fedbench.tables.numbers import percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fedbench.results.summary import Row

# Inches.
LANE, GAP, LINE = 0.22, 0.2, 0.155  # of a bar; between two systems; of a line of a name
NAME, ATTACK = 2.4, 2.2  # the widest of a system, and of an attack
UNDER, NUMBER = 0.5, 0.5  # below the bars; right of one
SIZE, SMALL = 9.5, 8.5  # points


@dataclass(frozen=True)
class Bar:
    """What an attack takes, in percentage points.

    Args:
        row: Of the attack.
        mean: Over the seeds that were also played without attack.
        ends: Of its interval, cut to what is possible; None for one seed.
    """

    row: Row
    mean: float
    ends: Interval | None

    @property
    def reach(self) -> tuple[float, float]:
        """From where to where something is drawn."""
        low, high = self.ends or (self.mean, self.mean)
        return min(0.0, self.mean, low), max(0.0, self.mean, high)


def bars(system: System) -> list[Bar]:
    """One an attack."""
    out = []
    for row in system.attacked:
        if points := [100 * lost for lost in row.impacts()]:
            found = interval(points)
            ends = None if found is None else (max(found[0], -100.0), min(found[1], 100.0))
            out.append(Bar(row, statistics.fmean(points), ends))
    return out


def shows(rows: Sequence[Row]) -> bool:
    """A seed was played with and without attack."""
    return any(row.impacts() for row in rows)


@styled
def compose(rows: Sequence[Row]) -> Figure:
    """A band a system, in it a bar an attack; the best worst case on top."""
    found = {system.name: bars(system) for system in systems(rows)}
    found = {name: listed for name, listed in found.items() if listed}
    drawn = [bar for listed in found.values() for bar in listed]
    names = {name: wrap(name.replace(",", ", "), NAME, SIZE) for name in found}
    attacks = {bar.row.cell.attack: _attack(bar) for bar in drawn}
    heights = {
        name: max(sum(_lane(bar) for bar in listed), LINE * len(names[name])) + GAP
        for name, listed in found.items()
    }
    body = sum(heights.values())
    looks = {False: Key("an attack", BAR, "s"), True: Key("the worst of its system", WORST, "s")}
    keys = [key for worst, key in looks.items() if any(bar.row.worst == worst for bar in drawn)]
    counts = [len(bar.row.impacts()) for bar in drawn]
    caption = "Clean minus attacked accuracy on the benign clients' pooled test data, last round. "
    words = Words("Attack impact", setting(rows), caption + sureness(rows, "Line", counts))
    page, top = Page.framed(0.1 + body + UNDER, words, keys)
    middle = MARGIN + 0.2 + max(measure(line, SIZE) for lines in names.values() for line in lines)
    left = middle + 0.15 + max(measure(line, SMALL) for lines in attacks.values() for line in lines)
    axes = page.lanes(left, top + 0.1, WIDTH - MARGIN - left, body)
    _scale(axes, drawn, WIDTH - MARGIN - left)
    y = 0.0
    for i, (name, listed) in enumerate(found.items()):
        page.band(top + 0.1 + y, heights[name], BANDS[i % 2])
        center = y + heights[name] / 2
        for k, line in enumerate(names[name]):
            lift = LINE * (k - (len(names[name]) - 1) / 2)
            page.write(MARGIN, top + 0.1 + center + lift, line, fontsize=SIZE)
        lane = center - sum(_lane(bar) for bar in listed) / 2
        for bar in listed:
            _draw(axes, bar, lane + _lane(bar) / 2)
            lines = _attack(bar)
            for k, line in enumerate(lines):
                lift = LINE * (k - (len(lines) - 1) / 2)
                at = top + 0.1 + lane + _lane(bar) / 2 + lift
                page.write(middle, at, line, fontsize=SMALL, color=WORST if bar.row.worst else INK)
            lane += _lane(bar)
        y += heights[name]
    return page.figure


def _attack(bar: Bar) -> list[str]:
    return wrap(bar.row.cell.attack.replace(",", ", "), ATTACK, SMALL)


def _lane(bar: Bar) -> float:
    return max(LANE, LINE * len(_attack(bar)) + 0.06)


def _scale(axes: Axes, drawn: Sequence[Bar], width: float) -> None:
    """From zero, or from the lowest end, to the highest one and the number behind it."""
    low, high = min(bar.reach[0] for bar in drawn), max(bar.reach[1] for bar in drawn)
    high = max(high, low + 1.0)
    air = 0.02 * (high - low) if low < 0 else 0.0
    axes.set_xlim(low - air, high + (high - low) * NUMBER / (width - NUMBER))
    axes.set_xlabel("accuracy lost, percentage points")
    axes.grid(True, axis="x")
    axes.axvline(0, color=FAINT, linewidth=0.8, zorder=1)


def _draw(axes: Axes, bar: Bar, y: float) -> None:
    colour = WORST if bar.row.worst else BAR
    axes.barh(y, bar.mean, height=0.6 * LANE, color=colour, zorder=2)
    if bar.ends:
        axes.hlines(y, *bar.ends, color=INK, linewidth=1.0, zorder=3)
    axes.annotate(
        percent(bar.mean / 100),
        (bar.reach[1], y),
        xytext=(5, 0),
        textcoords="offset points",
        va="center_baseline",
        fontsize=SMALL,
        color=colour if bar.row.worst else FAINT,
        fontweight="bold" if bar.row.worst else "normal",
    )
