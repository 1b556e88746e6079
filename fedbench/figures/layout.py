"""Title, legend and caption around panels that matplotlib's constrained layout arranges."""

from __future__ import annotations

import math
import re
import textwrap
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

from fedbench.core.errors import ConfigError, require
from fedbench.figures.style import FAINT, WORST, Mark

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Inches.
WIDTH = 10.0
NARROWEST, WIDEST = 3.0, 60.0  # figures
MARGIN = 0.25
MAX_FIGURE_INCHES = 400.0  # limit of matplotlib for a PNG of 160 dots an inch
PANEL = 2.4  # narrowest of several panels beside each other
LINE = 1.35  # height of a line of text, times its size


@dataclass(frozen=True, kw_only=True)
class View:
    """Choices of the reader of a figure.

    Args:
        width: Width of the figure in inches; None for 10, or what a heat map's columns take.
        attacks: Attacks of heat maps and impact charts, with or without parameters; by default
            all for which there is room, the strongest first.
        bits: Bits of a figure against bits: ``total``, up and down, or ``uplink``.
    """

    width: float | None = None
    attacks: tuple[str, ...] = ()
    bits: Literal["total", "uplink"] = "total"

    def __post_init__(self) -> None:
        fits = self.width is None or NARROWEST <= self.width <= WIDEST
        require("bits", self.bits, self.bits in ("total", "uplink"), "total or uplink")
        require("width", self.width, fits, f"{NARROWEST:g} to {WIDEST:g} inches")

    @property
    def inches(self) -> float:
        """Width of a figure that is as wide as all others."""
        return WIDTH if self.width is None else self.width

    def shows(self, attack: str) -> bool:
        """Tell whether an attack was chosen, or none was."""
        chosen = (attack, attack.partition(":")[0])
        return not self.attacks or any(name in self.attacks for name in chosen)


PLAIN = View()


@dataclass(frozen=True)
class Words:
    """Texts around the panels of a figure."""

    title: str  # what the figure shows
    subtitle: str  # what was run
    caption: str = ""  # what its signs mean, in paragraphs


@dataclass(frozen=True, eq=False)
class Page:
    """A figure whose head and foot have a fixed height, in inches; its panels share the rest."""

    figure: Figure
    panels: list[Axes]  # row by row
    columns: int  # panels in a row
    head: float
    foot: float

    def fit(self, inches: float) -> Figure:
        """Make the panels of the first column ``inches`` high; `ConfigError` if it is too tall."""
        first = self.panels[:: self.columns]
        extra = 3.0  # for titles, ticks and labels; corrected when they are measured
        measured = 0
        while measured < 4:
            height = self.head + inches + extra + self.foot
            if not height <= MAX_FIGURE_INCHES:
                raise ConfigError(
                    f"a figure must be at most {MAX_FIGURE_INCHES:g} inches tall, got "
                    f"{height:.0f}; plot fewer records, or choose a larger width"
                )
            self.figure.set_figheight(height)
            side = MARGIN / self.figure.get_figwidth()
            share = 1 - (self.head + self.foot) / height
            rect = (side, self.foot / height, 1 - 2 * side, share)
            self.figure.set_layout_engine("constrained", rect=rect, w_pad=0.08, h_pad=0.06)
            if not self._laid_out():  # the texts leave nothing for the panels
                extra *= 2
                continue
            measured += 1
            drawn = height * sum(axes.get_position().height for axes in first)
            if abs(inches - drawn) < 0.01:
                break
            extra += inches - drawn
        self.figure.set_layout_engine("none")
        return self.figure

    def _laid_out(self) -> bool:
        """Place everything; return False if that had no room, and all stays where it was."""
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "constrained_layout not applied", UserWarning)
            try:
                self.figure.draw_without_rendering()
            except UserWarning:
                return False
        return True


def page(
    words: Words,
    keys: Sequence[Mark] = (),
    rows: int = 1,
    columns: int = 1,
    width: float = WIDTH,
    **grid: Any,
) -> Page:
    """Return a figure with its texts, its legend and empty panels; call `Page.fit` at the end."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.transforms import ScaledTranslation

    figure = Figure(figsize=(width, 1.0))
    FigureCanvasAgg(figure)  # measures texts with one renderer, where a bare figure makes many
    corner = figure.dpi_scale_trans + ScaledTranslation(0, 1, cast(Any, figure.transFigure))
    room = width - 2 * MARGIN
    y = 0.2
    title: dict[str, Any] = {"fontsize": 15.0, "fontweight": "bold"}
    subtitle: dict[str, Any] = {"fontsize": 10.0, "color": FAINT}
    for text, look, wide in ((words.title, title, 1.2), (words.subtitle, subtitle, 1.0)):
        lines = wrap(text, room, wide * look["fontsize"])
        block = "\n".join(lines)
        figure.text(MARGIN, -y, block, va="top", transform=corner, linespacing=LINE, **look)
        y += len(lines) * LINE * look["fontsize"] / 72 + 0.04
    if keys:
        y += 0.08
        y += _legend(figure, keys, room, loc="upper left", bbox_to_anchor=(MARGIN, -y), at=corner)
    caption = [line for text in words.caption.splitlines() for line in wrap(text, room, 8.0)]
    note: dict[str, Any] = {"fontsize": 8, "color": FAINT, "linespacing": 1.4}
    bottom = figure.dpi_scale_trans
    figure.text(MARGIN, 0.15, "\n".join(caption), va="bottom", transform=bottom, **note)
    foot = 0.27 + len(caption) * 1.4 * 8 / 72
    panels = figure.subplots(rows, columns, squeeze=False, **grid)
    return Page(figure, list(panels.flat), columns, y + 0.08, foot)


def multiples(
    words: Words,
    keys: Sequence[Mark],
    names: Sequence[tuple[str, str]],
    xlabel: str,
    inches: float = WIDTH,
    ylabel: str = "accuracy, %",
) -> Page:
    """Return a page of equal panels that share their axes.

    ``names`` are the name of each panel and a note below it, in the colour of the worst case.
    """
    count = len(names)
    columns = 1 if count == 1 else 2 if count <= 4 else 3 if count <= 12 else 4
    columns = min(columns, max(1, int(inches / PANEL)))
    rows = math.ceil(count / columns)
    sheet = page(words, keys, rows, columns, inches, sharex=True, sharey=True)
    width = (inches - 2 * MARGIN - 0.6) / columns - 0.2
    for i, axes in enumerate(sheet.panels):
        if i >= count:
            axes.set_visible(False)
            continue
        name, note = names[i]
        below = wrap(note, width, 8.5)
        look: dict[str, Any] = {"color": WORST, "fontsize": 8.5, "in_layout": False}
        place: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "offset points"}
        axes.annotate("\n".join(below), (0, 1), (0, 5), **place, **look)
        title = "\n".join(wrap(name, width / 1.2, 9.5))
        axes.set_title(title, fontsize=9.5, pad=6 + 8.5 * LINE * len(below))
        if i % columns == 0:
            axes.set_ylabel(ylabel)
        if i + columns >= count:
            axes.set_xlabel(xlabel)
            axes.tick_params(labelbottom=True)
    return sheet


def fit_multiples(sheet: Page) -> Figure:
    """Give the panels a height that suits their number; see `Page.fit`."""
    height = {1: 4.0, 2: 2.6}.get(sheet.columns, 1.7)
    height = min(height, 0.65 * sheet.figure.get_figwidth() / sheet.columns)
    return sheet.fit(height * len(sheet.panels) / sheet.columns)


def _legend(figure: Figure, keys: Sequence[Mark], room: float, at: Any, **place: Any) -> float:
    """Draw the legend with as many columns as fit, and return its height in inches.

    A key without a marker and a line is about texts: its own is bold and in its colour.
    """
    from matplotlib.lines import Line2D

    labels = ["\n".join(wrap(key.label, room - 0.6, 9)) for key in keys]
    handles = [
        Line2D([], [], label=label, **key.look()) for label, key in zip(labels, keys, strict=True)
    ]
    for columns in range(len(keys), 0, -1):
        across = [handle for i in range(columns) for handle in handles[i::columns]]
        legend = figure.legend(handles=across, ncols=columns, bbox_transform=at, **place)
        box = legend.get_window_extent()
        if box.width <= room * figure.dpi or columns == 1:
            break
        legend.remove()
    of_texts = {
        label: key.colour
        for label, key in zip(labels, keys, strict=True)
        if not key.marker and not key.line
    }
    for text in legend.get_texts():
        if text.get_text() in of_texts:
            text.set(color=of_texts[text.get_text()], weight="bold")
    return float(box.height / figure.dpi)


def wrap(text: str, inches: float, size: float, most: int = 8) -> list[str]:
    """Return the text in at most ``most`` lines of about ``inches`` at ``size`` points.

    A name of a plug-in may be broken behind the commas between its parameters.

    >>> wrap("dyn-opt:search=all,via=wire + mean", 1.2, 9)
    ['dyn-opt:', 'search=all,', 'via=wire + mean']
    """
    letters = _letters(inches, size)
    spaced = re.sub(r",(?=\S)", ", ", text[: 2 * most * letters]).replace(":", ":\u200b ")
    lines = textwrap.wrap(spaced, letters, break_on_hyphens=False)
    if len(lines) > most:
        lines = [*lines[: most - 1], lines[most - 1][: letters - 1] + "…"]
    return [line.replace(":\u200b ", ":").replace("\u200b", "") for line in lines]


def shortened(text: str, inches: float, size: float) -> str:
    """Return the text in one line of about ``inches``, without its middle if that is too long.

    Names of one plug-in with several parameters differ at their ends.

    >>> shortened("index-concentration:share=0.1", 1.5, 9)
    'index-c…ion:share=0.1'
    """
    letters = _letters(inches, size)
    spaced = re.sub(r",(?=\S)", ", ", text)
    if len(spaced) <= letters:
        return spaced
    head = letters // 3
    return f"{spaced[:head]}…{spaced[head + 1 - letters :]}"


def _letters(inches: float, size: float) -> int:
    """Return how many letters of a size in points a line of some inches has room for."""
    return max(int(inches * 72 / (0.56 * size)), 4)
