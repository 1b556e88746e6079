"""Horizontal bars in lanes, grouped below the name of what they are about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedbench.figures.layout import wrap
from fedbench.figures.style import BAR, FAINT, INK, SHADE, WORST

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LANE, AIR = 0.2, 0.5  # inches of a lane; air between two groups, in lanes


@dataclass(frozen=True)
class Lane:
    """One bar, the text on its left, and the text behind it."""

    label: str
    value: float
    text: str
    ends: tuple[float, float] | None = None  # of the interval around the value
    worst: bool = False  # in the colour of the worst case


@dataclass(frozen=True)
class Group:
    """Bars below one name at height ``top``; they lie 1, 2, ... below it."""

    name: str
    lanes: Sequence[Lane]
    top: float

    @property
    def placed(self) -> list[tuple[float, Lane]]:
        """Bars from top to bottom, each with its height."""
        return [(self.top + 1 + i, lane) for i, lane in enumerate(self.lanes)]


def stacked(lanes: dict[str, list[Lane]]) -> list[Group]:
    """Lay the groups below each other."""
    groups = []
    top = 0.5
    for name, bars in lanes.items():
        groups.append(Group(name, bars, top))
        top += 1 + len(bars) + AIR
    return groups


def height(groups: Sequence[Group]) -> float:
    """Return the inches that the groups take."""
    return LANE * _bottom(groups)


def _bottom(groups: Sequence[Group]) -> float:
    return groups[-1].top + 0.5 + len(groups[-1].lanes) + AIR / 2


def write_groups(axes: Axes, groups: Sequence[Group]) -> None:
    """Set the vertical axis, and write the names of the groups and of their bars on its left."""
    axes.set_ylim(_bottom(groups), 0)
    axes.grid(False, axis="y")
    placed = [pair for group in groups for pair in group.placed]
    labels = ["\n".join(wrap(lane.label, 2.6, 8.5, most=1)) for _, lane in placed]
    axes.set_yticks([y for y, _ in placed], labels, fontsize=8.5)
    for group in groups:
        axes.axhspan(group.top - 0.5, group.top + 0.5, color=SHADE, zorder=3.5)
        name = wrap(group.name, 8.0, 9, most=1)[0]
        place = axes.get_yaxis_transform()
        axes.text(0.005, group.top, name, transform=place, va="center", weight="bold", zorder=4)
    for label, (_, lane) in zip(axes.get_yticklabels(), placed, strict=True):
        label.set_color(WORST if lane.worst else INK)


def draw_bars(axes: Axes, groups: Sequence[Group]) -> None:
    """Draw the bars from zero, their intervals, and the texts behind them."""
    for y, lane in (pair for group in groups for pair in group.placed):
        axes.barh(y, lane.value, height=0.62, color=WORST if lane.worst else BAR, zorder=2)
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
