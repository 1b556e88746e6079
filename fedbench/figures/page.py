"""A page that is measured in inches, so that nothing overlaps however much there is to show."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from fedbench.core.errors import ConfigError
from fedbench.figures.style import FAINT, INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, MARGIN = 10.0, 0.25
TALLEST = 400.0  # what matplotlib can make a PNG of, at 160 dots an inch
TITLE, SUBTITLE, KEY, FOOT = 15.0, 10.0, 9.0, 8.0  # points
KEY_LINE, KEY_GAP = 0.155, 0.085  # inches of a line in a legend; between two rows of it
BREAKS = re.compile(
    r"(?:\+ )?[^\s,:;]*[,:;]*\s*"
)  # where a name or a sentence may go on in the next line


@dataclass(frozen=True)
class Words:
    """What is written around a picture.

    Args:
        title: What it shows.
        subtitle: What was run.
        caption: What its signs mean.
    """

    title: str
    subtitle: str
    caption: str


@dataclass(frozen=True)
class Key:
    """A sign, and what it means.

    Args:
        label: What it means.
        colour: Of all of it.
        marker: None if empty.
        line: Its style; none if empty.
        thick: Points of the line.
        hollow: Is the marker white inside?
    """

    label: str
    colour: str
    marker: str = ""
    line: str = ""
    thick: float = 1.6
    hollow: bool = False

    def look(self) -> dict[str, Any]:
        """For matplotlib."""
        return {
            "color": self.colour,
            "marker": self.marker,
            "markersize": 6.0,
            "markerfacecolor": "white" if self.hollow else self.colour,
            "linestyle": self.line,
            "linewidth": self.thick,
        }

    @property
    def sign(self) -> float:
        """Inches of the sign in a legend."""
        return 0.28 if self.line else 0.1

    def lines(self, room: float) -> list[str]:
        """Of what it means, where a legend has so many inches."""
        return wrap(self.label.replace(",", ", "), room - self.sign - 0.07, KEY)

    def width(self, room: float) -> float:
        """Inches in that legend, with the gap behind it."""
        longest = max(measure(line, KEY) for line in self.lines(room))
        return self.sign + 0.07 + longest + 0.25


@dataclass(frozen=True)
class Page:
    """A figure that is measured in inches from its upper left corner."""

    figure: Figure
    width: float
    height: float

    @classmethod
    def of(cls, width: float, height: float) -> Page:
        """An empty one.

        Raises:
            ConfigError: it is too tall.
        """
        from matplotlib.figure import Figure

        if not max(width, height) <= TALLEST:
            raise ConfigError(
                f"a picture must be at most {TALLEST:g} inches long, got {max(width, height):.0f}; "
                "plot fewer records"
            )
        return cls(Figure(figsize=(width, height)), width, height)

    @classmethod
    def framed(
        cls, body: float, words: Words, keys: Sequence[Key] = (), width: float = WIDTH
    ) -> tuple[Page, float]:
        """Words and legend around a body of that height; and where the body begins."""
        room = width - 2 * MARGIN
        titles = wrap(words.title, room, TITLE, bold=True)
        subtitles, captions = wrap(words.subtitle, room, SUBTITLE), wrap(words.caption, room, FOOT)
        under_titles = 0.32 + 0.29 * len(titles) + 0.2 * len(subtitles)
        legend = flow(keys, room)
        top = under_titles + sum(height for _, height in legend) + 0.1
        foot = 0.17 * len(captions) + 0.3
        page = cls.of(width, top + body + foot)
        for i, text in enumerate(titles):
            page.write(MARGIN, 0.32 + 0.29 * i, text, fontsize=TITLE, fontweight="bold")
        for i, text in enumerate(subtitles):
            y = 0.32 + 0.29 * len(titles) + 0.2 * i
            page.write(MARGIN, y, text, fontsize=SUBTITLE, color=FAINT)
        page.legend(legend, under_titles)
        for i, text in enumerate(captions):
            y = page.height - 0.18 - 0.17 * (len(captions) - 1 - i)
            page.write(MARGIN, y, text, fontsize=FOOT, color=FAINT)
        return page, top

    def axes(self, x: float, y: float, width: float, height: float, **look: Any) -> Axes:
        """A panel."""
        bottom = 1 - (y + height) / self.height
        box = (x / self.width, bottom, width / self.width, height / self.height)
        return self.figure.add_axes(box, **look)

    def lanes(self, x: float, y: float, width: float, height: float) -> Axes:
        """A panel whose vertical axis is in inches too, from its upper end."""
        axes = self.axes(x, y, width, height)
        axes.set(ylim=(height, 0), yticks=[])
        axes.grid(False)
        return axes

    def box(self, x: float, y: float, width: float, height: float, **look: Any) -> None:
        """A rectangle."""
        from matplotlib.patches import Rectangle

        corner = (x / self.width, 1 - (y + height) / self.height)
        sides = (width / self.width, height / self.height)
        self.figure.add_artist(Rectangle(corner, *sides, **look))

    def band(self, y: float, height: float, colour: str) -> None:
        """From the left edge to the right one, behind everything."""
        self.box(0, y, self.width, height, facecolor=colour, zorder=-1)

    def write(self, x: float, y: float, text: str, **style: Any) -> None:
        """Text, its vertical centre at ``y``."""
        look = {"va": "center", "color": INK} | style
        self.figure.text(x / self.width, 1 - y / self.height, text, **look)

    def line(self, start: tuple[float, float], end: tuple[float, float], **style: Any) -> None:
        """From one place to another."""
        from matplotlib.lines import Line2D

        x, y = zip(start, end, strict=True)
        shares = [one / self.width for one in x], [1 - one / self.height for one in y]
        look: dict[str, Any] = {"color": FAINT, "linewidth": 0.6} | style
        self.figure.add_artist(Line2D(*shares, transform=self.figure.transFigure, **look))

    def legend(self, rows: Sequence[tuple[Sequence[Key], float]], y: float) -> None:
        """Signs and what they mean, below ``y``; see `flow`."""
        room = self.width - 2 * MARGIN
        for row, height in rows:
            x, first = MARGIN, y + (KEY_GAP + KEY_LINE) / 2
            for key in row:
                for end in (x, x + key.sign):  # from the middle, where the marker is
                    place = (x + key.sign / 2, first)
                    self.line(place, (end, first), markevery=[0], **key.look())
                for k, line in enumerate(key.lines(room)):
                    self.write(x + key.sign + 0.07, first + k * KEY_LINE, line, fontsize=KEY)
                x += key.width(room)
            y += height


def flow(keys: Sequence[Key], room: float) -> list[tuple[list[Key], float]]:
    """The keys in rows, as many in each as it holds; and how high each row is."""
    rows: list[list[Key]] = []
    left = 0.0
    for key in keys:
        width = key.width(room)
        if not rows or width - 0.25 > left:
            rows.append([])
            left = room
        rows[-1].append(key)
        left -= width
    return [(row, KEY_GAP + KEY_LINE * max(len(key.lines(room)) for key in row)) for row in rows]


@lru_cache(maxsize=1 << 14)
def measure(text: str, size: float, bold: bool = False) -> float:
    """Inches that a line of text takes."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    font = FontProperties(size=size, weight="bold" if bold else "normal")
    width: float = text_to_path.get_text_width_height_descent(text, font, ismath=False)[0]
    return width / 72


def pieces(text: str) -> list[str]:
    """What stays in one line if it can.

    >>> pieces("dyn-opt:search=all, via=wire + mean")
    ['dyn-opt:', 'search=all, ', 'via=wire ', '+ mean', '']
    """
    return BREAKS.findall(text)


def wrap(text: str, width: float, size: float, bold: bool = False, most: int = 8) -> list[str]:
    """The text in lines of at most so many inches; broken where names can be, cut after ``most``.

    Args:
        text: Of one paragraph.
        width: In inches.
        size: In points.
        bold: Or normal.
        most: Lines.
    """

    def fits(line: str) -> bool:
        return measure(line.rstrip(), size, bold) <= 0.97 * width  # pixels round up

    lines: list[str] = []
    line = ""
    narrow = 0.2 * size / 72  # inches: no letter is narrower, so nobody measures a whole book
    for piece in pieces(text[: int(most * width / narrow)]):
        if line and not fits(line + piece):
            lines.append(line.rstrip())
            line = ""
        line += piece
        while not fits(line):  # a piece by itself is too long
            end = next(i for i in range(1, len(line) + 1) if not fits(line[: i + 1]))
            end = max(line.rfind(sign, 0, end) for sign in "-_=") + 1 or end
            lines.append(line[:end])
            line = line[end:]
    lines += [line.rstrip()] if line.strip() else []
    if len(lines) <= most:
        return lines
    last = lines[most - 1]
    while last and not fits(f"{last}…"):
        last = last[:-1]
    return [*lines[: most - 1], f"{last}…"]
