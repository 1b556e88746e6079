"""Accuracy against bits: what a worst case costs, and who is beaten in both."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from fedbench.figures.listing import height_of, write_list
from fedbench.figures.page import MARGIN, WIDTH, Key, Page, Words, measure, wrap
from fedbench.figures.places import Box, Place, Spot, front, places, stairs
from fedbench.figures.style import COLOURS, FAINT, INK, WORST, log_ticks, styled
from fedbench.figures.systems import System, cut, setting, sureness, systems, tens
from fedbench.results.aggregate import interval
from fedbench.tables import columns

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fedbench.results.summary import Row

FEW = 12  # systems that may have their names beside their points
# Inches.
LEFT, UNDER = MARGIN + 0.5, 0.55  # room for the numbers of the axes
ACROSS, DOWN = WIDTH - MARGIN - LEFT, 4.6  # the panel
NAME, SIZE, LINE = 1.9, 8.5, 0.155  # of a name: width, points, a line
SAME, APART = 0.06, 0.06  # points that are nearer share their numbers; between two names


@dataclass(frozen=True)
class Mark:
    """A system in the picture; accuracies in percent.

    Args:
        system: Which.
        bits: Up and down, per parameter, message and round.
        y: In the worst case; clean if nobody attacks.
        ends: Of its interval; twice ``y`` if there is none.
        clean: Without attack, if that is another number.
    """

    system: System
    bits: float
    y: float
    ends: tuple[float, float]
    clean: float | None

    @property
    def look(self) -> Key:
        """Of its point."""
        return Key("", WORST, "o") if self.system.worst else Key("", INK, "o", hollow=True)


def marks(rows: Sequence[Row]) -> list[Mark]:
    """The best worst case first."""
    out = []
    for system in systems(rows):
        row, clean = system.shown, system.clean
        low, high = cut(interval(row.accuracies())) or (row.accuracy, row.accuracy)
        without = None if clean is None or clean is row else 100 * clean.accuracy
        price = system.price
        bits = max((price.uplink or 0) + price.downlink, 1e-4)  # nothing has no logarithm
        out.append(Mark(system, bits, 100 * row.accuracy, (100 * low, 100 * high), without))
    return out


def shows(rows: Sequence[Row]) -> bool:
    """Every record counts its bits, unless a secure sum hides them."""
    return bool(rows) and all(row.uplink is not None for row in rows)


@styled
def compose(rows: Sequence[Row]) -> Figure:
    """A point a system, its name beside it; if they are many a number, and a list of names."""
    found = marks(rows)
    best = front([(mark.bits, mark.y) for mark in found])
    frame = _Frame.around(found)
    labels = _names(found, best, frame)
    put = frame.places(labels, found, best) if len(found) <= FEW else [None]
    listed = found if None in put else []
    if listed:
        labels = _numbers(found, best, frame)
        put = frame.places(labels, found, best)
    body = DOWN + UNDER + height_of(listed)
    page, top = Page.framed(body, _words(rows), _keys(found, rows))
    _draw(page.axes(LEFT, top, ACROSS, DOWN), found, best, frame)
    for label, place in zip(labels, put, strict=True):
        if place:
            _write(page, top, place, label)
    write_list(page, top + DOWN + UNDER, listed, best)
    return page.figure


def _words(rows: Sequence[Row]) -> Words:
    worst = columns.in_worst_case(rows)
    caption = (
        "Benign clients' pooled test data, last round. Bits as they were sent: of a benign message "
        f"up, and of what one client gets in a round. {sureness(rows, 'Vertical bar')}"
    )
    return Words(f"Accuracy{worst} against bits", setting(rows), caption)


def _keys(found: Sequence[Mark], rows: Sequence[Row]) -> list[Key]:
    keys = []
    if any(mark.system.worst for mark in found):
        keys.append(Key(f"{columns.worst_case(rows)} over the attacks", WORST, "o"))
    if any(mark.clean is not None or not mark.system.worst for mark in found):
        keys.append(Key("no attack", INK, "o", hollow=True))
    return [*keys, Key("Pareto front: nobody is better in both", COLOURS[0], line="-")]


@dataclass(frozen=True)
class _Label:
    """What stands beside a point, in lines."""

    spot: Spot
    lines: list[str]
    bold: bool

    @property
    def size(self) -> tuple[float, float]:
        width = max(measure(line, SIZE, self.bold) for line in self.lines)
        return width + APART, LINE * len(self.lines)


@dataclass(frozen=True)
class _Frame:
    """What the panel shows: from which bits to which, from which percent to which."""

    bits: tuple[float, float]
    percent: tuple[float, float]

    @classmethod
    def around(cls, found: Sequence[Mark]) -> _Frame:
        bits = [mark.bits for mark in found]
        low, high = tens(y / 100 for mark in found for y in (*mark.ends, mark.clean or mark.y))
        return cls((min(bits) / 1.7, max(bits) * 1.7), (low - 2, high + 2))

    def spot(self, bits: float, percent: float) -> Spot:
        """Inches from the upper left corner of the panel."""
        (left, right), (low, high) = self.bits, self.percent
        across = math.log(bits / left) / math.log(right / left)
        return ACROSS * across, DOWN * (high - percent) / (high - low)

    def places(
        self, labels: Sequence[_Label], found: Sequence[Mark], best: Sequence[int]
    ) -> list[Place | None]:
        """Beside the points, the intervals and the front."""
        taken = []
        for mark in found:
            ys = [y for y in (*mark.ends, mark.clean) if y is not None]
            (x, top), (_, bottom) = self.spot(mark.bits, max(ys)), self.spot(mark.bits, min(ys))
            taken.append(Box(x - 0.05, top - 0.05, x + 0.05, bottom + 0.05))
        steps = stairs([self.spot(found[i].bits, found[i].y) for i in best], ACROSS)
        for (x, y), (right, end) in pairwise(steps):
            taken.append(Box(x - 0.02, min(y, end) - 0.02, right + 0.02, max(y, end) + 0.02))
        spots, sizes = [label.spot for label in labels], [label.size for label in labels]
        return places(spots, sizes, Box(0, 0, ACROSS, DOWN), taken)


def _names(found: Sequence[Mark], best: Sequence[int], frame: _Frame) -> list[_Label]:
    return [
        _Label(
            frame.spot(mark.bits, mark.y),
            wrap(mark.system.name.replace(",", ", "), NAME, SIZE, bold=i in best),
            i in best,
        )
        for i, mark in enumerate(found)
    ]


def _numbers(found: Sequence[Mark], best: Sequence[int], frame: _Frame) -> list[_Label]:
    """Of the list, from 1; those of points that lie on each other together."""
    groups: dict[Spot, list[int]] = {}
    for i, mark in enumerate(found):
        spot = frame.spot(mark.bits, mark.y)
        near = next((other for other in groups if math.dist(spot, other) < SAME), spot)
        groups.setdefault(near, []).append(i)
    return [
        _Label(spot, wrap(", ".join(str(i + 1) for i in group), 1.0, SIZE, True), group[0] in best)
        for spot, group in groups.items()
    ]


def _draw(axes: Axes, found: Sequence[Mark], best: Sequence[int], frame: _Frame) -> None:
    axes.set(xscale="log", xlim=frame.bits, ylim=frame.percent)
    axes.set(ylabel="accuracy, %", xlabel="bits up and down, per parameter (logarithmic)")
    log_ticks(axes.xaxis)
    steps = stairs([(found[i].bits, found[i].y) for i in best], frame.bits[1])
    axes.plot(*zip(*steps, strict=True), color=COLOURS[0], zorder=2.7)
    for mark in found:
        if mark.clean is not None:
            axes.plot([mark.bits] * 2, [mark.y, mark.clean], color=FAINT, linewidth=0.8, zorder=2.5)
            axes.plot(mark.bits, mark.clean, **Key("", INK, "o", hollow=True).look(), zorder=3)
        if mark.ends[0] < mark.ends[1]:
            axes.vlines(mark.bits, *mark.ends, color=mark.look.colour, alpha=0.4, linewidth=2.5)
        axes.plot(mark.bits, mark.y, **mark.look.look(), zorder=4)


def _write(page: Page, top: float, place: Place, label: _Label) -> None:
    """A name at its place, with a line to its point if it is far."""
    weight = "bold" if label.bold else "normal"
    for k, line in enumerate(label.lines):
        y = top + place.box.top + (k + 0.5) * LINE
        page.write(LEFT + place.box.left, y, line, fontsize=SIZE, fontweight=weight)
    if place.line:
        start, end = ((LEFT + x, top + y) for x, y in place.line)
        page.line(start, end)
