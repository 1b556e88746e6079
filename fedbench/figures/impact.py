"""Attack impact: the accuracy that each attack takes from each system."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedbench.figures.lanes import Lane, draw_bars, height, stacked, write_groups
from fedbench.figures.layout import Words, page
from fedbench.figures.style import BAR, WORST, Mark, styled
from fedbench.figures.systems import SystemRows, setting, sureness, systems
from fedbench.results.aggregate import interval
from fedbench.tables.numbers import percent

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fedbench.results.summary import Row


def bars(system: SystemRows) -> list[Lane]:
    """Return a bar per attack: percentage points lost, over the seeds also played without it."""
    lanes = []
    for row in system.attacked:
        if points := [100 * lost for lost in row.impacts()]:
            mean = statistics.fmean(points)
            bounds = interval(points)
            ends = bounds and (max(bounds[0], -100.0), min(bounds[1], 100.0))
            lanes.append(Lane(row.cell.attack, mean, percent(mean / 100), ends, row.worst))
    return lanes


def shows(rows: Sequence[Row]) -> bool:
    """Return True if any seed was played with and without attack."""
    return any(row.impacts() for row in rows)


@styled
def compose(rows: Sequence[Row]) -> Figure:
    """Draw a group of bars per system, a bar per attack; the best worst case on top."""
    by_system = {system.name: bars(system) for system in systems(rows)}
    groups = stacked({name: lanes for name, lanes in by_system.items() if lanes})
    drawn = [lane for group in groups for lane in group.lanes]
    looks = {False: Mark("an attack", BAR, "s"), True: Mark("the worst of its system", WORST, "s")}
    keys = [key for worst, key in looks.items() if any(lane.worst == worst for lane in drawn)]
    counts = [count for row in rows if (count := len(row.impacts()))]
    caption = "Clean minus attacked accuracy on the benign clients' pooled test data, last round. "
    words = Words("Attack impact", setting(rows), caption + sureness(rows, "Line", counts))
    sheet = page(words, keys)
    axes = sheet.panels[0]
    low, high = reach(drawn)
    air = 0.02 * (high - low) if low < 0 else 0.0
    axes.set(xlim=(low - air, high + 0.08 * (high - low)))
    axes.set_xlabel("accuracy lost, percentage points")
    write_groups(axes, groups)
    draw_bars(axes, groups)
    return sheet.fit(height(groups))


def reach(lanes: Sequence[Lane]) -> tuple[float, float]:
    """Return the range from zero, or from the lowest end, to the highest end."""
    ends = [x for lane in lanes for x in (0.0, lane.value, *(lane.ends or ()))]
    return min(ends), max(*ends, min(ends) + 1.0)
