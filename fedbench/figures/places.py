"""Where names stand beside points so that nothing overlaps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

NEAR = 0.11  # inches from a point to a name that needs no line to it
RINGS = (0.3, 0.5, 0.75, 1.0, 1.35, 1.75, 2.2)  # the next places to try, with a line
TURNS, TRIES = 16, 4  # directions of each; orders that are tried
SIDES = ((1, 0), (-1, 0), (0, -1), (0, 1), (1, -1), (1, 1), (-1, -1), (-1, 1))  # near ones

Spot = tuple[float, float]


@dataclass(frozen=True)
class Box:
    """A rectangle, in inches; ``bottom`` is the larger number where ``y`` goes down."""

    left: float
    top: float
    right: float
    bottom: float

    def overlaps(self, other: Box) -> bool:
        """Touching is not overlapping."""
        return (
            self.left < other.right
            and other.left < self.right
            and self.top < other.bottom
            and other.top < self.bottom
        )

    def holds(self, other: Box) -> bool:
        """The other one is inside."""
        return (
            self.left <= other.left
            and other.right <= self.right
            and self.top <= other.top
            and other.bottom <= self.bottom
        )

    def crossed(self, start: Spot, end: Spot) -> bool:
        """Does a line from one spot to the other go through? By the method of Liang and Barsky."""
        dx, dy = end[0] - start[0], end[1] - start[1]
        first, last = 0.0, 1.0
        for step, room in (
            (-dx, start[0] - self.left),
            (dx, self.right - start[0]),
            (-dy, start[1] - self.top),
            (dy, self.bottom - start[1]),
        ):
            if step == 0:
                if room <= 0:
                    return False
            elif step < 0:
                first = max(first, room / step)
            else:
                last = min(last, room / step)
        return first < last

    def nearest(self, spot: Spot) -> Spot:
        """Its point nearest to the spot."""
        return (
            min(max(spot[0], self.left), self.right),
            min(max(spot[1], self.top), self.bottom),
        )


@dataclass(frozen=True)
class Place:
    """Where a name stands.

    Args:
        box: Of the text.
        line: From the point to the text; None if it stands beside its point.
    """

    box: Box
    line: tuple[Spot, Spot] | None


def places(
    spots: Sequence[Spot],
    sizes: Sequence[tuple[float, float]],
    area: Box,
    taken: Iterable[Box] = (),
) -> list[Place | None]:
    """A place for the name of every spot; None where there is none.

    Args:
        spots: The points.
        sizes: Width and height of each name, in inches.
        area: What all names stand in.
        taken: What they may not cover, beside the points.
    """
    obstacles = [*taken, *(_around(spot, NEAR * 0.8, NEAR * 0.8) for spot in spots)]
    order = sorted(range(len(spots)), key=lambda i: (_neighbours(spots, i), i))
    for _ in range(TRIES):
        found = _in_order(order, spots, sizes, area, obstacles)
        if len(found) == len(spots):
            break
        order.sort(key=lambda i: i in found)  # who found no place may choose first
    return [found.get(i) for i in range(len(spots))]


def _in_order(
    order: Sequence[int],
    spots: Sequence[Spot],
    sizes: Sequence[tuple[float, float]],
    area: Box,
    obstacles: Sequence[Box],
) -> dict[int, Place]:
    """One after the other takes the first place that is free."""
    found: dict[int, Place] = {}
    for i in order:
        others = list(found.values())
        boxes = [*obstacles, *(place.box for place in others)]
        lines = [place.line for place in others if place.line]
        for place in _tries(spots[i], *sizes[i]):
            if not area.holds(place.box) or any(place.box.overlaps(box) for box in boxes):
                continue
            if any(place.box.crossed(*line) for line in lines):
                continue
            if place.line and any(other.box.crossed(*place.line) for other in others):
                continue
            found[i] = place
            break
    return found


def _neighbours(spots: Sequence[Spot], i: int) -> int:
    """The crowded ones choose last: they need a line anyway."""
    return sum(math.dist(spots[i], other) < RINGS[-1] / 2 for other in spots)


def _around(spot: Spot, width: float, height: float) -> Box:
    x, y = spot
    return Box(x - width / 2, y - height / 2, x + width / 2, y + height / 2)


def _tries(spot: Spot, width: float, height: float) -> Iterator[Place]:
    """Right, left, above, below; then around, farther and farther."""
    x, y = spot
    for right, down in SIDES:
        middle = (x + right * (NEAR + width / 2), y + down * (NEAR * 0.8 + height / 2))
        yield Place(_around(middle, width, height), None)
    for radius in RINGS:
        for turn in range(TURNS):
            angle = 2 * math.pi * turn / TURNS
            dx, dy = math.cos(angle), math.sin(angle)
            middle = (x + dx * (radius + width / 2), y + dy * (radius + height / 2))
            box = _around(middle, width, height)
            yield Place(box, (spot, box.nearest(spot)))


def front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Indices of the points that no other one beats, by the first number.

    Less of the first and more of the second is better; of equal points each is there.

    >>> front([(2.0, 0.9), (1.0, 0.5), (3.0, 0.9), (1.0, 0.4), (2.0, 0.9)])
    [1, 0, 4]
    """
    out: list[int] = []
    for i in sorted(range(len(points)), key=lambda i: (points[i][0], -points[i][1])):
        if not out or points[i][1] > points[out[-1]][1] or points[i] == points[out[-1]]:
            out.append(i)
    return out


def stairs(corners: Sequence[Spot], end: float) -> list[Spot]:
    """The line that goes from each corner to the right, then up to the next one; to ``end``."""
    out = [spot for (x, y), (after, _) in pairwise(corners) for spot in ((x, y), (after, y))]
    return [*out, corners[-1], (end, corners[-1][1])]
