"""A list of systems below a picture in which they are numbers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from fedbench.figures.page import Page, wrap
from fedbench.figures.style import BANDS, FAINT
from fedbench.tables import numbers as formats

if TYPE_CHECKING:
    from fedbench.figures.bits import Mark

# Inches.
LINE, AIR, HEAD = 0.155, 0.06, 0.25  # of a line, between two systems, of the heads
NUMBER, NAME, ATTACK = 0.5, (0.65, 4.6), (5.4, 2.1)  # an end; where it begins and how wide it is
NUMBERS = {"worst %": 8.2, "clean %": 8.95, "bits": 9.7}  # ends
SIZE = 8.5  # points


def height_of(found: Sequence[Mark]) -> float:
    """Inches of the list; nothing of an empty one."""
    return HEAD + sum(_height(mark) for mark in found) if found else 0.0


def write_list(page: Page, top: float, found: Sequence[Mark], best: Collection[int]) -> None:
    """Number, name, worst attack, accuracies and bits of every system; the best ones are bold."""
    if not found:
        return
    look: dict[str, Any] = {"fontsize": SIZE, "color": FAINT}
    page.write(NAME[0], top + 0.1, "system", **look)
    page.write(ATTACK[0], top + 0.1, "worst attack", **look)
    for head, x in NUMBERS.items():
        page.write(x, top + 0.1, head, ha="right", **look)
    y = top + HEAD
    for i, mark in enumerate(found):
        page.band(y, _height(mark), BANDS[i % 2])
        look = {"fontsize": SIZE, "fontweight": "bold" if i in best else "normal"}
        first = y + (AIR + LINE) / 2
        page.write(NUMBER, first, str(i + 1), ha="right", **look)
        for (x, _), lines in zip((NAME, ATTACK), _lines(mark), strict=True):
            for k, line in enumerate(lines):
                page.write(x, first + k * LINE, line, **look)
        for x, text in zip(NUMBERS.values(), _numbers(mark), strict=True):
            page.write(x, first, text, ha="right", **look)
        y += _height(mark)


def _lines(mark: Mark) -> tuple[list[str], list[str]]:
    worst = mark.system.worst
    name = wrap(mark.system.name.replace(",", ", "), NAME[1], SIZE, bold=True)
    return name, wrap(worst.cell.attack if worst else formats.NONE, ATTACK[1], SIZE, bold=True)


def _height(mark: Mark) -> float:
    return max(map(len, _lines(mark))) * LINE + AIR


def _numbers(mark: Mark) -> tuple[str, str, str]:
    both = (mark.system.worst, mark.system.clean)
    worst, clean = (formats.percent(row.accuracy) if row else formats.NONE for row in both)
    return worst, clean, formats.bits(mark.bits)
