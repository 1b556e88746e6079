"""Heat maps: the accuracy of every defense under every attack, a map a protocol."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedbench.figures.page import MARGIN, WIDTH, Key, Page, Words, measure, pieces, wrap
from fedbench.figures.style import FAINT, WORST, styled
from fedbench.figures.systems import attacks, cautions, setting, systems, unruled
from fedbench.tables.numbers import NONE, percent

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fedbench.results.summary import Row

# Inches.
ACROSS, WIDEST, DOWN = 0.82, 1.3, 0.34  # a cell: how narrow, how wide for a name, and its height
RULE, GAP, UNDER = 1.7, 0.35, 0.3  # the widest name of a defense; between two maps; below one
SIZE, LINE = 8.5, 0.15  # of a name: points, and a line
NARROWEST = 7.0  # page
SCALE = (0, 25, 50, 75, 100)  # percent in the legend
WORST_CASE = "worst case"  # the last column, apart from the others
APART = 0.12


@dataclass(frozen=True)
class Map:
    """One protocol: what its defenses are worth.

    Args:
        name: Protocol, mechanism and varied fields.
        rules: The defenses, each with its rows by attack.
    """

    name: str
    rules: dict[str, dict[str, Row]]

    def at(self, rule: str, column: str) -> Row | None:
        """What stands in a cell: under an attack, or in the worst case."""
        inside = self.rules[rule]
        if column == WORST_CASE:
            return next((row for row in inside.values() if row.worst), None)
        return inside.get(column)


def maps(rows: Sequence[Row]) -> list[Map]:
    """In the order of the best worst cases; so the defenses of each."""
    found: dict[str, Map] = {}
    for system in systems(rows):
        cell = system.rows[0].cell
        one = found.setdefault(unruled(cell), Map(unruled(cell), {}))
        one.rules[cell.defense] = {row.cell.attack: row for row in system.rows}
    return list(found.values())


def shows(rows: Sequence[Row]) -> bool:
    """Somebody attacks."""
    return any(not row.cell.clean for row in rows)


@dataclass(frozen=True)
class _Layout:
    """Where things are in a map; all maps have the same columns.

    Args:
        attacks: Of the columns, with their names in lines.
        across: Inches of a column.
        names: Inches of the widest name of a defense.
    """

    attacks: dict[str, list[str]]
    across: float
    names: float

    @classmethod
    def of(cls, rows: Sequence[Row], found: Sequence[Map]) -> _Layout:
        heads = {name: name.replace(",", ", ") for name in attacks(rows)} | {"none": "none (clean)"}
        heads |= {WORST_CASE: WORST_CASE}
        lines = [line for one in found for rule in one.rules for line in rule_lines(rule)]
        words = [piece.strip() for head in heads.values() for piece in pieces(head)]
        across = min(max(ACROSS, *(measure(word, 8) + 0.12 for word in words)), WIDEST)
        return cls(
            {a: wrap(head, across - 0.06, 8) for a, head in heads.items()},
            across,
            max(measure(line, SIZE) for line in lines) + 0.1,
        )

    @property
    def width(self) -> float:
        return self.names + self.across * len(self.attacks) + APART

    def left(self, i: int) -> float:
        """Of a column, from the left of the map."""
        apart = APART if i == len(self.attacks) - 1 else 0.0
        return self.names + i * self.across + apart

    @property
    def head(self) -> float:
        return LINE * max(map(len, self.attacks.values())) + 0.05

    def title(self, one: Map) -> list[str]:
        return wrap(one.name.replace(",", ", "), self.width, 9.5, bold=True)

    def titles(self, strip: Sequence[Map]) -> float:
        """Of maps that stand abreast."""
        return 0.18 * max(len(self.title(one)) for one in strip)

    def height(self, strip: Sequence[Map]) -> float:
        cells = max(sum(rule_height(rule) for rule in one.rules) for one in strip)
        return self.titles(strip) + self.head + cells + UNDER


def rule_lines(rule: str) -> list[str]:
    """The name of a defense."""
    return wrap(rule.replace(",", ", "), RULE, SIZE)


def rule_height(rule: str) -> float:
    """Of its cells."""
    return max(DOWN, LINE * len(rule_lines(rule)) + 0.06)


@styled
def compose(rows: Sequence[Row]) -> Figure:
    """As many maps abreast as the page holds; in each the worst cell of a row is framed."""
    found = maps(rows)
    layout = _Layout.of(rows, found)
    abreast = max(1, int((WIDTH - 2 * MARGIN + GAP) / (layout.width + GAP)))
    abreast = min(abreast, len(found))
    strips = [found[i : i + abreast] for i in range(0, len(found), abreast)]
    heights = [layout.height(strip) for strip in strips]
    width = max(NARROWEST, abreast * (layout.width + GAP) - GAP + 2 * MARGIN)
    caption = "Benign clients' pooled test data, last round; mean over the seeds."
    if any(len(row) < len(layout.attacks) - 1 for one in found for row in one.rules.values()):
        caption += f" {NONE}: no record."
    words = Words("Accuracy of defenses under attacks", setting(rows), caption + cautions(rows))
    keys = [Key(f"{share} %", face(share / 100), "s") for share in SCALE]
    if any(row.worst for row in rows):
        keys.append(Key("the worst of its row", WORST, "s", hollow=True))
    page, top = Page.framed(sum(heights) + 0.1, words, keys, width)
    for number, strip in enumerate(strips):
        for i, one in enumerate(strip):
            x = MARGIN + i * (layout.width + GAP)
            y = top + 0.1 + sum(heights[:number]) + layout.titles(strip)
            _draw(page, x, y, one, layout)
    return page.figure


def _draw(page: Page, x: float, y: float, one: Map, layout: _Layout) -> None:
    """The names of the map above ``y``, the rest below."""
    for k, line in enumerate(reversed(layout.title(one))):
        page.write(x, y - 0.18 * (k + 0.5), line, fontsize=9.5, fontweight="bold")
    y += layout.head
    for i, lines in enumerate(layout.attacks.values()):
        for k, line in enumerate(lines):
            middle = y - 0.05 - LINE * (len(lines) - k - 0.5)
            look = {"fontsize": 8, "ha": "center", "color": FAINT}
            page.write(x + layout.left(i) + layout.across / 2, middle, line, **look)
    frames = []
    for rule, cells in one.rules.items():
        height, names = rule_height(rule), rule_lines(rule)
        for k, line in enumerate(names):
            middle = y + height / 2 + LINE * (k - (len(names) - 1) / 2)
            page.write(x, middle, line, fontsize=SIZE)
        for i, attack in enumerate(layout.attacks):
            place = (x + layout.left(i), y, layout.across, height)
            _cell(page, place, one.at(rule, attack))
            if attack in cells and cells[attack].worst:
                frames.append(place)
        y += height
    for x, y, width, height in frames:  # above the neighbours
        inside = (x + 0.02, y + 0.02, width - 0.04, height - 0.04)
        page.box(*inside, facecolor="none", edgecolor="white", linewidth=4.0)
        page.box(*inside, facecolor="none", edgecolor=WORST, linewidth=2.2)


def _cell(page: Page, place: tuple[float, float, float, float], row: Row | None) -> None:
    x, y, width, height = place
    middle = (x + width / 2, y + height / 2)
    edge: dict[str, Any] = {"edgecolor": "white", "linewidth": 1.0}
    if row is None:
        page.box(*place, facecolor="#ededed", hatch="////", **edge)
        paper = {"facecolor": "#ededed", "edgecolor": "none", "pad": 1.5}
        page.write(*middle, NONE, ha="center", color=FAINT, fontsize=8, bbox=paper)
        return
    colour = face(row.accuracy)
    page.box(*place, facecolor=colour, **edge)
    page.write(*middle, percent(row.accuracy), ha="center", color=on(colour))


def face(share: float) -> str:
    """The colour of an accuracy: dark is low, bright is high; told apart by the colour-blind."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    return to_hex(colormaps["cividis"](share))


def on(colour: str) -> str:
    """White or black, whatever is easier to read there: a contrast of 4.5 at least."""
    return "white" if luminance(colour) + 0.05 < math.sqrt(1.05 * 0.05) else "black"


def luminance(colour: str) -> float:
    """Relative, of the Web Content Accessibility Guidelines 2.1.

    >>> round(luminance("#ffffff"), 6), luminance("#000000")
    (1.0, 0.0)
    """
    from matplotlib.colors import to_rgb

    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
