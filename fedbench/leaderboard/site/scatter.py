"""Accuracy in the worst case over bits, as a drawing: where its parts lie, no markup."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from fedbench.leaderboard.site.labels import Box, Label, place

LEFT, RIGHT, TOP, BOTTOM = 40.0, 14.0, 14.0, 44.0  # margins around the plot
TICK = 60.0  # the least room of a number below the axis


@dataclass(frozen=True)
class System:
    """What is drawn of an entry.

    Args:
        key: Tells it from the others.
        href: Its page.
        name: For the label.
        title: Everything about it, in one line.
        bits: Up and down, per parameter.
        worst: Accuracy under the worst attack, in [0, 1].
        low: Of its interval.
        high: Of its interval.
        private: Is its epsilon finite?
        front: Is it on the Pareto front?
    """

    key: str
    href: str
    name: str
    title: str
    bits: float
    worst: float
    low: float
    high: float
    private: bool
    front: bool


@dataclass(frozen=True)
class Point:
    """A system and where it lies.

    Args:
        system: Which.
        x: Of its sign.
        y: Of its sign.
        low: Where its whisker begins.
        high: Where its whisker ends.
        label: Its name.
    """

    system: System
    x: float
    y: float
    low: float
    high: float
    label: Label


@dataclass(frozen=True)
class Plot:
    """The whole drawing.

    Args:
        width: Of the view box.
        height: Of the view box.
        frame: Where the axes are.
        xs: Ticks of the bits: where, and what.
        ys: Ticks of the accuracy, likewise.
        points: Those of the front last, so that they lie on top.
        front: Steps through the front, as an SVG path; empty if it has no step.
        private: The same of those with a finite epsilon.
    """

    width: float
    height: float
    frame: Box
    xs: list[tuple[float, str]]
    ys: list[tuple[float, str]]
    points: list[Point]
    front: str
    private: str


def plot(systems: Iterable[System], width: float, height: float, letters: int) -> Plot:
    """The drawing of those systems that lie on paper; names are cut after so many letters."""
    drawn = [one for one in systems if _drawable(one)]
    frame = Box(LEFT, TOP, width - RIGHT, height - BOTTOM)
    low, high = span([one.bits for one in drawn] or [1.0, 64.0])

    def x(bits: float) -> float:
        share = math.log(bits / low) / math.log(high / low)
        return frame.left + share * (frame.right - frame.left)

    def y(accuracy: float) -> float:
        return frame.bottom - min(max(accuracy, 0.0), 1.0) * (frame.bottom - frame.top)

    def corners(chosen: Iterable[System]) -> list[tuple[float, float]]:
        return [(x(one.bits), y(one.worst)) for one in _rising(chosen)]

    front = corners(one for one in drawn if one.front)
    private = corners(one for one in drawn if one.front and one.private)
    lines = [*treads(front, frame.right), *treads(private, frame.right)]
    first = sorted(drawn, key=lambda one: (not one.front, -one.worst, one.bits, one.key))
    marks = [(x(one.bits), y(one.worst), y(one.low), y(one.high)) for one in first]
    labels = place([one.name for one in first], marks, lines, frame, letters)
    points = [
        Point(one, *mark, label) for one, mark, label in zip(first, marks, labels, strict=True)
    ]
    return Plot(
        width=width,
        height=height,
        frame=frame,
        xs=[(x(tick), f"{tick:g}") for tick in ticks(low, high, int(width / TICK))],
        ys=[(y(tick / 100), str(tick)) for tick in range(0, 101, 20)],
        points=points[::-1],
        front=staircase(front, frame.right),
        private=staircase(private, frame.right),
    )


def span(bits: Sequence[float]) -> tuple[float, float]:
    """From where to where the axis goes: with room on both sides, and eightfold at least.

    >>> span([1, 32]), round(span([3])[1] / span([3])[0], 9)
    ((0.625, 51.2), 8.0)
    """
    low, high = min(bits) / 1.6, max(bits) * 1.6
    more = max(1.0, math.sqrt(8 * low / high))
    return low / more, high * more


def _drawable(one: System) -> bool:
    """A logarithm has no place for nothing, and what is far off would crowd the others."""
    return 1e-6 < one.bits < 1e6


def _rising(systems: Iterable[System]) -> list[System]:
    """From few bits to many, those that are better than all with fewer."""
    out: list[System] = []
    for one in sorted(systems, key=lambda one: (one.bits, -one.worst)):
        if not out or one.worst > out[-1].worst:
            out.append(one)
    return out


def staircase(corners: Sequence[tuple[float, float]], end: float) -> str:
    """What can be had for so many bits: a step at every corner, the last one up to the end.

    >>> staircase([(1, 9), (4, 3)], 7)
    'M1.0 9.0H4.0V3.0H7.0'
    """
    if not corners:
        return ""
    (x, y), *others = corners
    path = f"M{x:.1f} {y:.1f}" + "".join(f"H{x:.1f}V{y:.1f}" for x, y in others)
    return f"{path}H{end:.1f}"


def treads(corners: Sequence[tuple[float, float]], end: float) -> list[Box]:
    """Where the steps of a staircase are trodden on.

    >>> treads([(1, 9), (4, 3)], 7)
    [Box(left=1, top=8, right=4, bottom=10), Box(left=4, top=2, right=7, bottom=4)]
    """
    return [Box(x, y - 1, to, y + 1) for (x, y), (to, _) in pairwise([*corners, (end, 0)])]


def ticks(low: float, high: float, most: int) -> list[float]:
    """Powers of two between two positive numbers, at most so many, evenly.

    >>> ticks(0.7, 20, 6), ticks(0.7, 20, 3)
    ([1.0, 2.0, 4.0, 8.0, 16.0], [1.0, 4.0, 16.0])
    """
    first, last = math.ceil(math.log2(low)), math.floor(math.log2(high))
    step = math.ceil((last - first + 1) / most)
    return [2.0**power for power in range(first, last + 1, step)]
