"""Small multiples: equal panels with a name each, as many abreast as can be read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedbench.figures.page import MARGIN, WIDTH, Key, Page, Words, wrap
from fedbench.figures.style import WORST

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Inches.
SCALE = 0.5  # of the vertical axis: its numbers and what they are
GAP = 0.3  # between two panels
UNDER, BETWEEN = 0.55, 0.25  # below a row of panels: numbers and what they are; only air
NAME, NOTE, LINE = 9.5, 8.5, 0.17  # points of a name and of what stands below it; a line of either


@dataclass(frozen=True)
class Panel:
    """The place of one.

    Args:
        axes: Empty.
        leftmost: Is it the first of its row?
        lowest: Is nothing below it?
    """

    axes: Axes
    leftmost: bool
    lowest: bool


def multiples(
    names: Sequence[tuple[str, str]], words: Words, keys: Sequence[Key]
) -> tuple[Figure, list[Panel]]:
    """A page of panels that share their axes.

    Args:
        names: Of each, and what is said below it in the colour of the worst.
        words: Around them.
        keys: Of the legend.
    """
    columns = abreast(len(names))
    width = (WIDTH - 2 * MARGIN - SCALE - (columns - 1) * GAP) / columns
    height = {1: 4.0, 2: 2.6}.get(columns, 1.7)
    rows = math.ceil(len(names) / columns)
    heads = [
        (wrap(name.replace(",", ", "), width, NAME, bold=True), wrap(note, width, NOTE))
        for name, note in names
    ]
    lines = [
        max(len(name) + len(note) for name, note in heads[row * columns : (row + 1) * columns])
        for row in range(rows)
    ]
    unders = [UNDER if (row + 2) * columns > len(names) else BETWEEN for row in range(rows)]
    heights = [k * LINE + 0.1 + height + under for k, under in zip(lines, unders, strict=True)]
    page, top = Page.framed(0.1 + sum(heights), words, keys)
    panels = []
    for i, (name, note) in enumerate(heads):
        row, column = divmod(i, columns)
        x = MARGIN + SCALE + column * (width + GAP)
        y = top + 0.1 + sum(heights[:row]) + lines[row] * LINE
        first = y - LINE * (len(name) + len(note)) + LINE / 2
        for k, line in enumerate(name):
            page.write(x, first + k * LINE, line, fontsize=NAME, fontweight="bold")
        for k, line in enumerate(note, len(name)):
            page.write(x, first + k * LINE, line, fontsize=NOTE, color=WORST)
        axes = page.axes(x, y + 0.1, width, height)
        panels.append(Panel(axes, column == 0, i + columns >= len(names)))
    return page.figure, panels


def abreast(count: int) -> int:
    """Of so many panels."""
    return 1 if count == 1 else 2 if count <= 4 else 3 if count <= 12 else 4
