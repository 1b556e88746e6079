"""Names beside the points of a drawing, none on another."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

RADIUS = 6.0  # of a point's sign
LETTER, LINE = 7.2, 16.0  # of a label: the width of a letter, its height
WIDE = "MWmw@%"

Anchor = Literal["start", "middle", "end"]


@dataclass(frozen=True)
class Box:
    """A rectangle, from its upper left corner to its lower right one."""

    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: Box) -> bool:
        """True if they overlap."""
        return (
            self.left < other.right
            and other.left < self.right
            and self.top < other.bottom
            and other.top < self.bottom
        )

    def inside(self, other: Box) -> bool:
        """True if it lies in the other one."""
        return (
            self.left >= other.left
            and self.right <= other.right
            and self.top >= other.top
            and self.bottom <= other.bottom
        )


@dataclass(frozen=True)
class Label:
    """A name beside a point.

    Args:
        text: Cut where it is long.
        x: Of its anchor.
        y: Of its base line.
        anchor: Which part of it lies at ``x``.
        shown: There is room for it; if not, it is seen when its point is pointed at.
    """

    text: str
    x: float
    y: float
    anchor: Anchor
    shown: bool


def place(
    names: Sequence[str],
    marks: Sequence[tuple[float, float, float, float]],
    lines: Iterable[Box],
    frame: Box,
    letters: int,
) -> list[Label]:
    """A label for each mark ``(x, y, low, high)``, the first ones first, none on anything drawn."""
    taken = [*lines]
    taken += [Box(x - RADIUS, y - RADIUS, x + RADIUS, y + RADIUS) for x, y, _, _ in marks]
    taken += [Box(x - 1, high, x + 1, low) for x, _, low, high in marks]
    labels = []
    for name, (x, y, low, high) in zip(names, marks, strict=True):
        text = cut(name, letters)
        for spot in _spots(x, y, low, high):
            box = _box(text, *spot)
            if box.inside(frame) and not any(box.meets(other) for other in taken):
                taken.append(box)
                labels.append(Label(text, *spot, shown=True))
                break
        else:
            anchor: Anchor = "start" if x < (frame.left + frame.right) / 2 else "end"
            aside = RADIUS + 5 if anchor == "start" else -RADIUS - 5
            labels.append(Label(text, x + aside, y - RADIUS - 3, anchor, shown=False))
    return labels


def _spots(x: float, y: float, low: float, high: float) -> Iterable[tuple[float, float, Anchor]]:
    """Where a label may stand, the best place first."""
    aside = RADIUS + 5
    for rise in (4.0, -7.0, 15.0):
        yield x + aside, y + rise, "start"
        yield x - aside, y + rise, "end"
    yield x, high - 7, "middle"
    yield x, low + LINE, "middle"
    yield x, y - RADIUS - 5, "middle"
    yield x, y + RADIUS + LINE - 2, "middle"


def _box(text: str, x: float, y: float, anchor: Anchor) -> Box:
    width = sum(map(_letter, text))
    left = x - {"start": 0.0, "middle": width / 2, "end": width}[anchor]
    return Box(left - 2, y - LINE + 4, left + width + 2, y + 4)


def _letter(letter: str) -> float:
    """How wide it is at most, in units of the view box."""
    if unicodedata.combining(letter):
        return 0.0
    if unicodedata.east_asian_width(letter) in "FW" or ord(letter) > 0xFFFF:
        return 2.2 * LETTER
    return 1.6 * LETTER if letter in WIDE else 1.25 * LETTER if letter.isupper() else LETTER


def cut(name: str, letters: int) -> str:
    """In one line of so many letters.

    >>> cut("a long name", 8)
    'a long…'
    """
    flat = " ".join(name.split())
    return flat if len(flat) <= letters else flat[: letters - 1].rstrip() + "…"
