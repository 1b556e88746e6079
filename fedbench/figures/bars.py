"""Figures of horizontal bars, grouped by system: attack impact, and accuracy under every attack."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fedbench.figures.layout import MARGIN, PLAIN, View, Words, page, shortened, wrap
from fedbench.figures.style import (
    BAR,
    FAINT,
    INK,
    RULE,
    SHADE,
    WORST,
    Mark,
    attack_signs,
    styled,
)
from fedbench.figures.systems import SystemRows, setting, sure_range, sureness, systems, tested
from fedbench.tables import columns
from fedbench.tables.numbers import bits, or_none, percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fedbench.results.summary import Row

LANE = 0.2  # inches of a lane
GROUP_GAP = 0.5  # between two groups, in lanes
MAX_BARS = 120  # bars of a figure, beyond which the shortest are left out
MIN_BARS = 3  # bars that each system keeps
LABELS = 2.6  # inches at most of the names on the left of bars, and that share of a narrow page:
NARROW_LABELS = 0.4


@dataclass(frozen=True)
class Lane:
    """One bar, the text on its left, and the text behind it."""

    label: str
    value: float
    text: str
    ends: tuple[float, float] | None = None  # of the interval around the value
    worst: bool = False  # whether its texts are in the colour of the worst case
    colour: str = BAR


@dataclass(frozen=True)
class Group:
    """Bars below one name, the first line of which is at height ``top``."""

    name: Sequence[str]  # in lines, each as high as a lane
    lanes: Sequence[Lane]
    top: float

    @property
    def placed(self) -> list[tuple[float, Lane]]:
        """Bars from top to bottom, each with its height."""
        return [(self.top + len(self.name) + i, lane) for i, lane in enumerate(self.lanes)]


def stacked(lanes: dict[str, list[Lane]], room: float) -> list[Group]:
    """Lay the groups below each other, whose names have ``room`` inches and wrap there."""
    groups = []
    top = 0.5
    for name, bars in lanes.items():
        lines = wrap(name, room, 1.2 * 9)  # bold letters are wider
        groups.append(Group(lines, bars, top))
        top += len(lines) + len(bars) + GROUP_GAP
    return groups


def height(groups: Sequence[Group]) -> float:
    """Return the inches that the groups take."""
    return LANE * _bottom(groups)


def _bottom(groups: Sequence[Group]) -> float:
    last = groups[-1]
    return last.top - 0.5 + len(last.name) + len(last.lanes) + GROUP_GAP / 2


def write_groups(axes: Axes, groups: Sequence[Group], labels_inches: float) -> None:
    """Set the vertical axis, and write names: of groups, and of bars on its left."""
    axes.set_ylim(_bottom(groups), 0)
    axes.grid(False, axis="y")
    placed = [pair for group in groups for pair in group.placed]
    labels = [shortened(lane.label, labels_inches, 8.5) for _, lane in placed]
    axes.set_yticks([y for y, _ in placed], labels, fontsize=8.5)
    for group in groups:
        start = group.top - 0.5
        axes.axhspan(start, start + len(group.name), color=SHADE, zorder=3.5)
        place = axes.get_yaxis_transform()
        for y, line in enumerate(group.name, 1):
            where = (0.005, start + y - 0.5)
            axes.text(*where, line, transform=place, va="center", weight="bold", zorder=4)
    for label, (_, lane) in zip(axes.get_yticklabels(), placed, strict=True):
        label.set_color(WORST if lane.worst else INK)


def draw_bars(axes: Axes, groups: Sequence[Group]) -> None:
    """Draw the bars from zero, their intervals, and the texts behind them."""
    for y, lane in (pair for group in groups for pair in group.placed):
        axes.barh(y, lane.value, height=0.62, color=lane.colour, zorder=2)
        if lane.ends:
            axes.hlines(y, *lane.ends, color=INK, linewidth=1.0, zorder=3)
        write_behind(axes, max(0.0, lane.value, *(lane.ends or ())), y, lane)
    axes.axvline(0, color=FAINT, linewidth=0.8, zorder=1)


def write_behind(axes: Axes, x: float, y: float, lane: Lane) -> None:
    """Write the text of a bar behind the place where it ends."""
    axes.annotate(
        lane.text,
        (x, y),
        xytext=(5, 0),
        textcoords="offset points",
        va="center_baseline",
        fontsize=8.5,
        color=WORST if lane.worst else FAINT,
        fontweight="bold" if lane.worst else "normal",
    )


def impacts(system: SystemRows) -> list[Lane]:
    """Return a bar per attack: percentage points lost, over the seeds also played without it."""
    lanes = []
    signs = attack_signs(row.cell.attack for row in system.attacked)
    for row in system.attacked:
        if points := [100 * lost for lost in row.impacts()]:
            mean = statistics.fmean(points)
            bounds = sure_range(points)
            ends = bounds and (max(bounds[0], -100.0), min(bounds[1], 100.0))
            colour, _ = signs[row.cell.attack]
            text = percent(mean / 100)
            lanes.append(Lane(row.cell.attack, mean, text, ends, row.worst, colour))
    return lanes


def shows(rows: Sequence[Row]) -> bool:
    """Return True if any seed was played with and without attack."""
    return any(row.impacts() for row in rows)


@styled
def compose(rows: Sequence[Row], view: View = PLAIN) -> Figure:
    """Draw a group of bars per system, a bar per attack; the best worst case on top."""
    by_system = {system.name: impacts(system) for system in systems(rows)}
    shown = {name: [x for x in lanes if view.shows(x.label)] for name, lanes in by_system.items()}
    shown = {name: lanes for name, lanes in shown.items() if lanes}
    most = max(MIN_BARS, MAX_BARS // max(len(shown), 1))
    cut = any(len(lanes) > most for lanes in shown.values())
    shown = {name: strongest(lanes, most) for name, lanes in shown.items()}
    drawn = [lane for lanes in shown.values() for lane in lanes]
    labels_inches = min(LABELS, NARROW_LABELS * view.inches)
    letters = max(len(lane.label) for lane in drawn)
    left = min(0.56 * 8.5 / 72 * letters, labels_inches)
    groups = stacked(shown, view.inches - 2 * MARGIN - left - 0.3)
    keys = [Mark("bold: the worst of its system", WORST)] if any(x.worst for x in drawn) else []
    counts = [count for row in rows if (count := len(row.impacts()))]
    caption = f"Clean minus attacked accuracy on the {tested(rows)}, last round. "
    words = Words("Attack impact", setting(rows), caption + sureness(rows, "Line", counts))
    if cut:
        words = replace(words, caption=f"{words.caption} The {most} strongest attacks of a system.")
    sheet = page(words, keys, width=view.inches)
    axes = sheet.panels[0]
    low, high = reach(drawn)
    air = 0.02 * (high - low) if low < 0 else 0.0
    axes.set(xlim=(low - air, high + 0.08 * (high - low)))
    axes.set_xlabel("accuracy lost, percentage points")
    write_groups(axes, groups, labels_inches)
    draw_bars(axes, groups)
    return sheet.fit(height(groups))


def strongest(lanes: Sequence[Lane], most: int) -> list[Lane]:
    """Return the longest bars, at most ``most``, in their order."""
    highest = sorted(lanes, key=lambda lane: -lane.value)[:most]
    return [lane for lane in lanes if lane in highest]


def reach(lanes: Sequence[Lane]) -> tuple[float, float]:
    """Return the range from zero, or from the lowest end, to the highest end."""
    ends = [x for lane in lanes for x in (0.0, lane.value, *(lane.ends or ()))]
    return min(ends), max(*ends, min(ends) + 1.0)


@styled
def survival(rows: Sequence[Row], title: str, subtitle: str) -> Figure:
    """Draw every system under every attack, the best worst case on top, with bits and epsilon."""
    shown = systems(rows)
    groups = stacked({each.name: [_lane(row) for row in each.rows] for each in shown}, room=5.0)
    ratios = [6.5, 1.6] + [0.7] * any(row["epsilon"] is not None for row in rows)
    words = Words(title, subtitle, _spread(rows))
    sheet = page(words, columns=len(ratios), sharey=True, width_ratios=ratios)
    accuracy, sent, *spent = sheet.panels
    write_groups(accuracy, groups, LABELS)
    draw_bars(accuracy, groups)
    texts = [(max(lane.ends or (lane.value,)), lane.text) for g in groups for lane in g.lanes]
    end = max(right / (1 - 0.06 - 0.011 * len(text)) for right, text in texts)
    accuracy.set(xlim=(0, max(100.0, end)), xticks=range(0, 101, 20))
    accuracy.set_title("accuracy, %", fontsize=9)
    for axes in sheet.panels[1:]:
        axes.tick_params(labelleft=False)
        axes.grid(False)
    tops = [group.top for group in groups]
    uplink_bars(sent, tops, [system.cost["uplink_bits"] for system in shown])
    for axes in spent:
        axes.set(xlim=(0, 1), xticks=[])
        axes.set_title("ε", fontsize=9)
        for top, system in zip(tops, shown, strict=True):
            axes.text(0, top, columns.epsilon(system.cost), va="center", clip_on=False)
    return sheet.fit(height(groups))


def _lane(row: Row) -> Lane:
    ends = (100 * (row.accuracy - row.accuracy_std), 100 * (row.accuracy + row.accuracy_std))
    label = "none (clean)" if row.cell.clean else row.cell.attack
    text = f"{percent(row.accuracy)} {columns.mark(row)}".rstrip()
    colour = BAR if row.cell.clean else attack_signs([row.cell.attack])[row.cell.attack][0]
    spread = ends if row.accuracy_std else None
    return Lane(label, 100 * row.accuracy, text, spread, row.worst, colour)


def uplink_bars(axes: Axes, tops: Sequence[float], sent: Sequence[float | None]) -> None:
    """Draw a bar per system: uplink bits, the mean over all its cells."""
    lengths = [number or 0.0 for number in sent]
    axes.barh(tops, lengths, height=0.6, color=BAR, zorder=2)
    for top, number, length in zip(tops, sent, lengths, strict=True):
        write_behind(axes, length, top, Lane("", length, or_none(number, bits)))
    axes.set(xlim=(0, max([*lengths, 1e-9]) * 1.55), xticks=[])
    axes.set_title("uplink bits\nper parameter", fontsize=9)
    axes.axvline(0, color=RULE, linewidth=0.8)


def _spread(rows: Sequence[Row]) -> str:
    seeds = max(len(row.records) for row in rows)
    spread = f"mean and sample standard deviation over {seeds} seeds" if seeds > 1 else "one seed"
    marked = columns.unfinished(rows) or f"{columns.WORST}: {columns.LOWEST}."
    pooled = f" Bits: {columns.POOLED}." if any(row.worst for row in rows) else ""
    return f"Benign clients' test data, last round; {spread}. {marked}{pooled}"
