"""Heat maps: the accuracy of every defense under every attack, one map per protocol."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedbench.figures.layout import LINE, MARGIN, PLAIN, View, Words, page, wrap
from fedbench.figures.style import FAINT, WORST, Mark, styled
from fedbench.figures.systems import attacks, cautions, setting, systems, tested, undefended
from fedbench.tables.columns import LOWEST
from fedbench.tables.numbers import NA, percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fedbench.results.summary import Row

TITLE = 9.5  # points of the name of a map
# Inches.
COLUMN, LANE = 0.46, 0.3
NAMES = 2.0  # room for the names of the defenses
MIN_FIGURE_INCHES = 7.6  # figure, whose legend has one row then
WORST_CASE = "worst case"  # head of the last column, apart from the others
MISSING = "#ededed"


@dataclass(frozen=True)
class Map:
    """Accuracies of one protocol, with its mechanism and varied fields."""

    name: str
    defenses: dict[str, dict[str, Row]]  # rows by attack, of each defense

    @property
    def attacks(self) -> list[str]:
        """Attacks that were tried on any of the defenses, in order of appearance."""
        return list(dict.fromkeys(attack for rows in self.defenses.values() for attack in rows))

    def strength(self, attack: str) -> tuple[bool, float]:
        """Order attacks: those that are the worst of a row first, then by what they leave."""
        cells = [rows[attack] for rows in self.defenses.values() if attack in rows]
        return not any(row.worst for row in cells), statistics.fmean(row.accuracy for row in cells)

    def at(self, defense: str, column: str) -> Row | None:
        """Return the row in a cell, under an attack or in the worst case; None without a record."""
        by_attack = self.defenses[defense]
        if column == WORST_CASE:
            return next((row for row in by_attack.values() if row.worst), None)
        return by_attack.get(column)


def maps(rows: Sequence[Row]) -> list[Map]:
    """Return a map per protocol; maps and defenses have the order of their best worst cases."""
    by_name: dict[str, Map] = {}
    for system in systems(rows):
        cell = system.rows[0].cell
        drawn = by_name.setdefault(undefended(cell), Map(undefended(cell), {}))
        drawn.defenses[cell.defense] = {row.cell.attack: row for row in system.rows}
    return list(by_name.values())


def shows(rows: Sequence[Row]) -> bool:
    """Return True if any row is of an attack."""
    return any(not row.cell.clean for row in rows)


@styled
def compose(rows: Sequence[Row], view: View = PLAIN) -> Figure:
    """Draw the maps below each other; the worst cell of a row is framed.

    A map has a column for each attack that was tried on its protocol. Where the width has no room
    for all of them, those stay that are the worst of a row, then those that leave the least.
    """
    drawn = maps(rows)
    order = attacks(rows)
    names = {
        defense: wrap(defense, NAMES, 8.5, most=2) for each in drawn for defense in each.defenses
    }
    letters = max(len(line) for lines in names.values() for line in lines)
    inches = 0.56 * 8.5 / 72 * letters + 2 * MARGIN + 0.3  # of everything beside the columns
    most = int((view.width - inches) / COLUMN - 1.25) if view.width else len(order)
    shown = [chosen(each, order, view, max(most, 2)) for each in drawn]
    heads = [[*names, WORST_CASE] for names in shown]
    caption = f"{tested(rows).capitalize()}, last round; mean over the seeds."
    pairs = list(zip(drawn, shown, strict=True))
    if any(
        name not in row for each, names in pairs for row in each.defenses.values() for name in names
    ):
        caption += f" {NA}: no record."
    if any(len(names) < len(each.attacks) for each, names in pairs):
        left = " that leave the least accuracy" * (not view.attacks)
        most = max(len(each.attacks) for each in drawn)
        caption += f" Of up to {most} columns those{left or ' that were chosen'}."
    words = Words("Accuracy of defenses under attacks", setting(rows), caption + cautions(rows))
    keys = [Mark(f"{share} %", face(share / 100), "s") for share in (0, 25, 50, 75, 100)]
    if any(row.worst for row in rows):
        keys.append(Mark(LOWEST, WORST, "s", hollow=True))
    across = max(map(len, heads))
    width = view.width or max(MIN_FIGURE_INCHES, COLUMN * across + NAMES + 1.0)
    room = max(width - inches, 1.0)
    aside = 0.06 * LANE * (across + 0.25) / room  # of a frame, as much as above and below it
    heights = [LANE * len(each.defenses) for each in drawn]
    sheet = page(words, keys, rows=len(drawn), width=width, height_ratios=heights)
    above: list[str] = []
    for axes, each, columns in zip(sheet.panels, drawn, heads, strict=True):
        title = wrap(each.name, room, 1.2 * TITLE)  # bold letters are wider
        axes.set_title("\n".join(title), fontsize=TITLE, y=1.0)
        _draw(axes, each, columns, names, across, aside)
        if columns != above:  # the names stand where they are others than in the map above
            _head(axes, columns, len(title))
        above = columns
    return sheet.fit(sum(heights))


def chosen(drawn: Map, order: Sequence[str], view: View, most: int) -> list[str]:
    """Return the columns of a map: the clean one, and so many attacks at most."""
    names = [name for name in order if name in drawn.attacks]
    attacked = [name for name in names if name != "none" and view.shows(name)]
    strongest = sorted(attacked, key=drawn.strength)[: most - ("none" in names)]
    return [name for name in names if name == "none" or name in strongest]


def _head(axes: Axes, heads: Sequence[str], lines: int) -> None:
    """Write the names of the columns above the name of the map, which has so many ``lines``."""
    columns = [_x(i, len(heads)) for i in range(len(heads))]
    texts = ["\n".join(wrap(spelled(head), 3.0, 8, most=2)) for head in heads]
    pad = 20 + LINE * TITLE * (lines - 1)
    axes.tick_params(axis="x", labeltop=True, pad=pad)
    axes.set_xticks(columns, texts, rotation=45, ha="left", rotation_mode="anchor", fontsize=8)


def spelled(attack: str) -> str:
    """Return the name of an attack as the head of a column."""
    return "none (clean)" if attack == "none" else attack


def _x(i: int, count: int) -> float:
    """Return the middle of a column; the last one stands apart."""
    return i + 0.5 + (0.25 if i == count - 1 else 0.0)


def _draw(
    axes: Axes,
    drawn: Map,
    heads: Sequence[str],
    names: dict[str, list[str]],
    across: int,
    aside: float,
) -> None:
    """Draw the tiles, as wide as ``across`` columns, and frames that stand ``aside`` of ends."""
    from matplotlib.patches import Rectangle

    axes.set(xlim=(0, across + 0.25), xticks=[], ylim=(len(drawn.defenses), 0))
    axes.grid(False)
    lanes = [y + 0.5 for y in range(len(drawn.defenses))]
    axes.set_yticks(lanes, ["\n".join(names[defense]) for defense in drawn.defenses])
    axes.tick_params(labelbottom=False, labeltop=False)
    for y, defense in enumerate(drawn.defenses):
        for i, head in enumerate(heads):
            row = drawn.at(defense, head)
            x = _x(i, len(heads))
            tile: dict[str, Any] = {"facecolor": MISSING, "hatch": "////"}
            look: dict[str, Any] = {"color": FAINT, "fontsize": 7}
            if row is not None:
                tile = {"facecolor": face(row.accuracy)}
                look = {"color": on(tile["facecolor"]), "fontsize": 8}
            axes.add_patch(Rectangle((x - 0.5, y), 1, 1, edgecolor="white", linewidth=1.0, **tile))
            text = percent(row.accuracy) if row else NA
            axes.text(x, y + 0.5, text, ha="center", va="center", **look)
            if row is not None and row.worst and head != WORST_CASE:
                frame: dict[str, Any] = {"fill": False, "zorder": 3}
                for edge, thick in (("white", 4.0), (WORST, 2.2)):
                    frame |= {"edgecolor": edge, "linewidth": thick}
                    corner = (x - 0.5 + aside, y + 0.06)
                    axes.add_patch(Rectangle(corner, 1 - 2 * aside, 0.88, **frame))


def face(share: float) -> str:
    """Return the colour of an accuracy: dark is low, bright is high, also for the colour-blind."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    return to_hex(colormaps["cividis"](share))


def on(colour: str) -> str:
    """Return white or black, by which has a contrast of at least 4.5 with the colour."""
    return "white" if luminance(colour) + 0.05 < math.sqrt(1.05 * 0.05) else "black"


def luminance(colour: str) -> float:
    """Return the relative luminance of the Web Content Accessibility Guidelines 2.1.

    >>> round(luminance("#ffffff"), 6), luminance("#000000")
    (1.0, 0.0)
    """
    from matplotlib.colors import to_rgb

    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
