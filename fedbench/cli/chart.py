"""The results as a picture: who survives, and at what price."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbench.cli import columns, table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    from fedbench.sweep.summary import Row

# Okabe and Ito: told apart by the colour-blind. Vermilion is kept for the worst case.
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9")
INK, FAINT, RULE, WORST = "#1a1a1a", "#595959", "#d9d9d9", "#d55e00"
BANDS = ("#f4f4f2", "white")
MARKERS = "sD^vPXp"

# Inches, so that nothing overlaps however much there is to show.
WIDTH, MARGIN = 10.0, 0.25
LANE, GAP = 0.21, 0.22  # of one result; between two systems
BITS, EPSILON = 1.45, 0.6  # the panels on the right
LETTER = 0.078  # of the names, at 9.5 points; those are wrapped after so many:
LETTERS = 30


@dataclass(frozen=True)
class Group:
    """One system, and where it lies below the top of the panels.

    Args:
        name: In lines.
        rows: The clean one first.
        top: Inches.
        height: Inches.
    """

    name: list[str]
    rows: list[Row]
    top: float
    height: float

    @property
    def middle(self) -> float:
        """Where its name and its price stand."""
        return self.top + self.height / 2

    def lane(self, i: int) -> float:
        """Where row ``i`` lies."""
        return self.middle + (i - (len(self.rows) - 1) / 2) * LANE

    @property
    def worst(self) -> Row:
        """Its worst case; the clean run if nobody has attacked it."""
        return next((row for row in self.rows if row.worst), self.rows[0])


@dataclass(frozen=True)
class Page:
    """A figure that is measured in inches from its upper left corner."""

    figure: Figure
    height: float

    def axes(self, x: float, y: float, width: float, height: float) -> Axes:
        """A panel without frame, whose vertical axis is in inches too."""
        bottom = 1 - (y + height) / self.height
        box = (x / WIDTH, bottom, width / WIDTH, height / self.height)
        axes = self.figure.add_axes(box, facecolor="none", frameon=False)
        axes.set(ylim=(height, 0), yticks=[])
        axes.tick_params(length=0, labelsize=8.5, labelcolor=FAINT)
        return axes

    def write(self, x: float, y: float, text: str, **style: Any) -> None:
        """Text, its vertical centre at ``y``."""
        look = {"va": "center", "color": INK} | style
        self.figure.text(x / WIDTH, 1 - y / self.height, text, **look)


def draw(rows: list[Row], title: str, subtitle: str, path: Path) -> None:
    """Write a PNG: every system under every attack, the best worst case on top, and its bits.

    Raises:
        ConfigError: the folder cannot be written.
    """
    from fedbench.files import write_atomically

    buffer = io.BytesIO()
    compose(rows, title, subtitle).savefig(buffer, format="png")
    write_atomically(path, buffer.getvalue())


def compose(rows: Sequence[Row], title: str, subtitle: str) -> Figure:
    """From top to bottom: title, legend, one band a system, what the signs mean."""
    from matplotlib.figure import Figure

    systems, keys = groups(rows), legend(rows)
    priced = EPSILON if any(row.epsilon is not None for row in rows) else 0.0
    titles, subtitles = textwrap.wrap(title, 76), textwrap.wrap(subtitle, 118)
    abreast = int((WIDTH - 2 * MARGIN) / (0.5 + 0.075 * max(len(str(k.get_label())) for k in keys)))
    abreast = min(max(abreast, 1), len(keys))

    under_titles = 0.32 + 0.29 * len(titles) + 0.2 * len(subtitles)
    top = under_titles + 0.1 + 0.24 * math.ceil(len(keys) / abreast) + 0.45
    body = systems[-1].top + systems[-1].height
    page = Page(Figure(dpi=160, facecolor="white"), top + body + 0.65)
    page.figure.set_size_inches(WIDTH, page.height)

    for i, text in enumerate(titles):
        page.write(MARGIN, 0.32 + 0.29 * i, text, fontsize=15, fontweight="bold")
    for i, text in enumerate(subtitles):
        y = 0.32 + 0.29 * len(titles) + 0.2 * i
        page.write(MARGIN, y, text, fontsize=10, color=FAINT)
    page.figure.legend(
        handles=keys,
        loc="upper left",
        bbox_to_anchor=(MARGIN / WIDTH, 1 - under_titles / page.height),
        ncols=abreast,
        frameon=False,
        fontsize=9,
        borderpad=0,
        borderaxespad=0,
        handlelength=0.8,
        handletextpad=0.5,
        columnspacing=1.8,
    )
    left = MARGIN + 0.15 + LETTER * max(len(line) for group in systems for line in group.name)
    right = WIDTH - MARGIN - priced
    _name(page, systems, top)
    accuracies(page.axes(left, top, right - BITS - 0.2 - left, body), systems, keys)
    bits(page.axes(right - BITS, top, BITS, body), systems)
    heads = {left: "accuracy, %", right - BITS: "uplink bits\nper parameter"}
    if priced:
        heads[right + 0.1] = "ε"
        for group in systems:
            page.write(right + 0.1, top + group.middle, columns.epsilon(group.worst), fontsize=9)
    for x, head in heads.items():
        page.write(x, top - 0.2, head, fontsize=9, fontweight="bold")
    page.write(MARGIN, page.height - 0.18, _caption(rows), fontsize=8, color=FAINT)
    return page.figure


def groups(rows: Sequence[Row]) -> list[Group]:
    """The systems in the order of the table of worst cases."""
    found, out, top = table.systems(rows), [], 0.0
    for line in table.worst_cases(rows):
        name = textwrap.wrap(line.texts[0].replace(",", ", "), LETTERS, break_on_hyphens=False)
        members = found[line.texts[0]]
        height = max(LANE * len(members), 0.17 * len(name)) + GAP
        out.append(Group(name, members, top, height))
        top += height
    return out


def legend(rows: Sequence[Row]) -> list[Line2D]:
    """The sign of the clean run and of every attack."""
    from matplotlib.lines import Line2D

    attacks = dict.fromkeys(row.cell.attack for row in rows if not row.cell.clean)
    signs = [(attack, i) for i, attack in enumerate(attacks)]
    looks = [("none (clean)", INK, "o")]
    looks += [(a, COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)]) for a, i in signs]
    return [
        Line2D([], [], linestyle="none", label=name, color=colour, marker=marker, markersize=6.5)
        for name, colour, marker in looks
    ]


def accuracies(axes: Axes, systems: Sequence[Group], keys: Sequence[Line2D]) -> None:
    """A lane for each result: a sign at the mean, a bar of a standard deviation, the number."""
    signs = {str(key.get_label()): key for key in keys}
    panel = axes.get_position().width * WIDTH
    end = 100.0
    for number, group in enumerate(systems):
        paper = {"facecolor": BANDS[number % 2], "edgecolor": "none", "pad": 0.5}
        for i, row in enumerate(group.rows):
            key = signs["none (clean)" if row.cell.clean else row.cell.attack]
            mean, std, y = 100 * row.accuracy, 100 * row.accuracy_std, group.lane(i)
            colour = key.get_color()
            tail = WORST if row.worst else colour
            axes.plot([0, mean], [y, y], color=tail, alpha=0.35, linewidth=2.5, zorder=2)
            axes.errorbar(mean, y, xerr=std or None, color=colour, capsize=2.5, zorder=3)
            axes.plot(mean, y, color=colour, marker=key.get_marker(), markersize=6.5, zorder=4)
            axes.annotate(
                columns.percent(row.accuracy) + (f" {columns.WORST}" if row.worst else ""),
                (mean + std, y),
                xytext=(7, 0),
                textcoords="offset points",
                va="center_baseline",
                fontsize=8.5,
                color=WORST if row.worst else INK if row.cell.clean else FAINT,
                fontweight="bold" if row.worst or row.cell.clean else "normal",
                bbox=paper,
                zorder=1,
            )
            label = 1.05 if row.worst else 0.55  # inches
            end = max(end, (mean + std) * panel / (panel - label))
    axes.set(xlim=(0, end), xticks=range(0, 101, 20))
    axes.vlines(range(0, 101, 20), *axes.get_ylim(), color=RULE, linewidth=0.8, zorder=0)


def bits(axes: Axes, systems: Sequence[Group]) -> None:
    """A bar from zero and the number, of the worst case's run."""
    numbers = [group.worst.uplink for group in systems]
    middles = [group.middle for group in systems]
    axes.barh(middles, numbers, height=0.17, color="#8c9aa5", zorder=2)
    for number, y in zip(numbers, middles, strict=True):
        axes.annotate(
            columns.bits(number),
            (number, y),
            xytext=(4, 0),
            textcoords="offset points",
            va="center_baseline",
            fontsize=9,
            color=INK,
        )
    axes.set(xlim=(0, max([*numbers, 1e-9]) * BITS / (BITS - 0.55)), xticks=[])
    axes.axvline(0, color=RULE, linewidth=0.8)


def _name(page: Page, systems: Sequence[Group], top: float) -> None:
    """Names on the left, every second system on a grey band."""
    from matplotlib.patches import Rectangle

    for i, group in enumerate(systems):
        low, share = 1 - (top + group.top + group.height) / page.height, group.height / page.height
        band = Rectangle((0, low), 1, share, color=BANDS[i % 2], linewidth=0, zorder=-1)
        page.figure.add_artist(band)
        text = "\n".join(group.name)
        page.write(MARGIN, top + group.middle, text, fontsize=9.5, linespacing=1.3)


def _caption(rows: Sequence[Row]) -> str:
    seeds = max(len(row.records) for row in rows)
    spread = f"mean and sample standard deviation over {seeds} seeds" if seeds > 1 else "one seed"
    return f"Benign clients' test data, last round; {spread}. {columns.WORST}: the lowest accuracy."
