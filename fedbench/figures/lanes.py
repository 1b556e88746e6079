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
    """One bar with its texts.

    Args:
        label: Text on the left.
        value: Where the bar ends.
        text: Text behind the bar.
        ends: Ends of the interval around the value; None without one.
        worst: Whether the bar has the colour of the worst case.
    """

    label: str
    value: float
    text: str
    ends: tuple[float, float] | None = None
    worst: bool = False


@dataclass(frozen=True)
class Group:
    """Bars below one name, and where they lie.

    Args:
        name: Name of the group.
        lanes: Bars, from top to bottom.
        top: Height of the name; bars lie 1, 2, ... below it.
    """

    name: str
    lanes: Sequence[Lane]
    top: float

    def y(self, i: int) -> float:
        """Return the height of bar ``i``."""
        return self.top + 1 + i


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
    return groups[-1].y(len(groups[-1].lanes)) - 0.5 + AIR / 2


def write_groups(axes: Axes, groups: Sequence[Group]) -> None:
    """Set the vertical axis, and write the names of the groups and of their bars on its left."""
    axes.set_ylim(_bottom(groups), 0)
    axes.grid(False, axis="y")
    ticks = [(group.y(i), lane.label) for group in groups for i, lane in enumerate(group.lanes)]
    labels = ["\n".join(wrap(label, 2.6, 8.5, most=1)) for _, label in ticks]
    axes.set_yticks([y for y, _ in ticks], labels, fontsize=8.5, color=INK)
    for group in groups:
        axes.axhspan(group.top - 0.5, group.top + 0.5, color=SHADE, zorder=3.5)
        name = wrap(group.name, 8.0, 9, most=1)[0]
        place = axes.get_yaxis_transform()
        axes.text(0.005, group.top, name, transform=place, va="center", weight="bold", zorder=4)
    for label, lane in zip(
        axes.get_yticklabels(), (lane for group in groups for lane in group.lanes), strict=True
    ):
        label.set_color(WORST if lane.worst else INK)


def draw_bars(axes: Axes, groups: Sequence[Group], start: float = 0.0) -> None:
    """Draw the bars from ``start``, their intervals, and the texts behind them."""
    for group in groups:
        for i, lane in enumerate(group.lanes):
            y = group.y(i)
            colour = WORST if lane.worst else BAR
            axes.barh(y, lane.value - start, left=start, height=0.62, color=colour, zorder=2)
            if lane.ends:
                axes.hlines(y, *lane.ends, color=INK, linewidth=1.0, zorder=3)
            write_behind(axes, max(start, lane.value, *(lane.ends or ())), y, lane)
    axes.axvline(start, color=FAINT, linewidth=0.8, zorder=1)


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
