"""The results as a picture: who survives, and at what price."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedbench.figures.page import MARGIN, WIDTH, Key, Page, Words, measure, wrap
from fedbench.figures.style import BANDS, BAR, FAINT, INK, RULE, WORST, save, sign, styled
from fedbench.figures.systems import System, attacks, systems
from fedbench.tables import columns
from fedbench.tables import numbers as formats

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fedbench.results.summary import Row

# Inches.
LANE, GAP = 0.21, 0.22  # of one result; between two systems
BITS, EPSILON = 1.45, 0.6  # the panels on the right
NAME, LETTERS = 2.4, 9.5  # room for a name, and its points


@dataclass(frozen=True)
class Group:
    """One system, and where it lies below the top of the panels.

    Args:
        name: In lines.
        rows: The clean one first.
        price: Bits and epsilon over all cells.
        top: Inches.
        height: Inches.
    """

    name: list[str]
    rows: list[Row]
    price: Row
    top: float
    height: float

    @property
    def middle(self) -> float:
        """Where its name and its price stand."""
        return self.top + self.height / 2

    def lane(self, i: int) -> float:
        """Where row ``i`` lies."""
        return self.middle + (i - (len(self.rows) - 1) / 2) * LANE


def draw(rows: Sequence[Row], title: str, subtitle: str, path: Path) -> None:
    """Write a PNG: every system under every attack, the best worst case on top, and its bits.

    Raises:
        ConfigError: the folder cannot be written.
    """
    save(compose(rows, title, subtitle), path)


@styled
def compose(rows: Sequence[Row], title: str, subtitle: str) -> Figure:
    """From top to bottom: title, legend, one band a system, what the signs mean."""
    found, keys = groups(systems(rows)), legend(rows)
    priced = EPSILON if any(row.epsilon is not None for row in rows) else 0.0
    body = found[-1].top + found[-1].height
    page, top = Page.framed(
        0.45 + body + 0.3, Words(title, subtitle, _caption(rows)), list(keys.values())
    )
    top += 0.45
    left = MARGIN + 0.15 + max(measure(line, LETTERS) for group in found for line in group.name)
    right = WIDTH - MARGIN - priced
    for i, group in enumerate(found):
        page.band(top + group.top, group.height, BANDS[i % 2])
        name = "\n".join(group.name)
        page.write(MARGIN, top + group.middle, name, fontsize=LETTERS, linespacing=1.3)
    accuracies(page.lanes(left, top, right - BITS - 0.2 - left, body), found, keys)
    bits(page.lanes(right - BITS, top, BITS, body), found)
    heads = {left: "accuracy, %", right - BITS: "uplink bits\nper parameter"}
    if priced:
        heads[right + 0.1] = "ε"
        for group in found:
            page.write(right + 0.1, top + group.middle, columns.epsilon(group.price))
    for x, head in heads.items():
        page.write(x, top - 0.2, head, fontweight="bold")
    return page.figure


def groups(found: Sequence[System]) -> list[Group]:
    """A band for each system, one below the other."""
    out, top = [], 0.0
    for system in found:
        name = wrap(system.name.replace(",", ", "), NAME, LETTERS)
        height = max(LANE * len(system.rows), 0.17 * len(name)) + GAP
        out.append(Group(name, system.rows, system.price, top, height))
        top += height
    return out


def legend(rows: Sequence[Row]) -> dict[str, Key]:
    """The sign of the clean run and of every attack."""
    keys = {name: Key(name, *sign(i)) for i, name in enumerate(attacks(rows)[1:])}
    return {"none": Key("none (clean)", INK, "o")} | keys


def accuracies(axes: Axes, systems: Sequence[Group], keys: dict[str, Key]) -> None:
    """A lane for each result: a sign at the mean, a bar of a standard deviation, the number."""
    panel = axes.get_position().width * WIDTH
    end = 100.0
    for number, group in enumerate(systems):
        paper = {"facecolor": BANDS[number % 2], "edgecolor": "none", "pad": 0.5}
        for i, row in enumerate(group.rows):
            key = keys[row.cell.attack]
            mean, std, y = 100 * row.accuracy, 100 * row.accuracy_std, group.lane(i)
            tail = WORST if row.worst else key.colour
            axes.plot([0, mean], [y, y], color=tail, alpha=0.35, linewidth=2.5, zorder=2)
            axes.errorbar(mean, y, xerr=std or None, color=key.colour, zorder=3)
            axes.plot(mean, y, **key.look(), zorder=4)
            axes.annotate(
                f"{formats.percent(row.accuracy)} {columns.mark(row)}".rstrip(),
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
            label = (1.5 if row.missing else 1.05) if row.worst else 0.55  # inches
            end = max(end, (mean + std) * panel / (panel - label))
    axes.set(xlim=(0, end), xticks=range(0, 101, 20))
    axes.vlines(range(0, 101, 20), *axes.get_ylim(), color=RULE, linewidth=0.8, zorder=0)


def bits(axes: Axes, systems: Sequence[Group]) -> None:
    """A bar from zero and the number: uplink bits, the mean over all cells of a system."""
    numbers = [group.price.uplink for group in systems]
    middles = [group.middle for group in systems]
    lengths = [number or 0.0 for number in numbers]
    axes.barh(middles, lengths, height=0.17, color=BAR, zorder=2)
    for number, length, y in zip(numbers, lengths, middles, strict=True):
        axes.annotate(
            formats.or_none(number, formats.bits),
            (length, y),
            xytext=(4, 0),
            textcoords="offset points",
            va="center_baseline",
        )
    axes.set(xlim=(0, max([*lengths, 1e-9]) * BITS / (BITS - 0.55)), xticks=[])
    axes.axvline(0, color=RULE, linewidth=0.8)


def _caption(rows: Sequence[Row]) -> str:
    seeds = max(len(row.records) for row in rows)
    spread = f"mean and sample standard deviation over {seeds} seeds" if seeds > 1 else "one seed"
    marked = columns.unfinished(rows) or f"{columns.WORST}: the lowest accuracy."
    return f"Benign clients' test data, last round; {spread}. {marked}"
