"""The same pictures in characters: for a terminal at the other end of an ssh session."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table as RichTable
from rich.text import Text

from fedbench.figures.bits import marks
from fedbench.figures.epsilon import STRIPS, lines
from fedbench.figures.heatmap import WORST_CASE, Map, face, maps, on
from fedbench.figures.impact import bars
from fedbench.figures.page import pieces
from fedbench.figures.places import front
from fedbench.figures.rounds import curve
from fedbench.figures.systems import System, attacks, setting, systems
from fedbench.tables import columns
from fedbench.tables.columns import WORST, epsilon
from fedbench.tables.numbers import NONE, bits, percent
from fedbench.tables.table import Line, Table
from fedbench.tables.terminal import FIRST, cell, grid, legible

if TYPE_CHECKING:
    from fedbench.results.summary import Row

TITLES = {
    "rounds": "Accuracy over the rounds",
    "bits": "Accuracy against bits",
    "heatmap": "Accuracy of defenses under attacks",
    "impact": "Attack impact",
    "epsilon": "Accuracy against ε",
}
BLOCKS, DIGITS = "▁▂▃▄▅▆▇█", "0123456789"
LONGEST, SHORTEST = 40, 8  # characters of a bar
NARROWEST, WIDEST = 8, 19  # of a column of a heat map


def bar(share: float, width: int, plain: bool) -> str:
    """As long as the share says; the rest is a track.

    >>> bar(0.5, 8, False), bar(-0.1, 8, True)
    ('████░░░░', '........')
    """
    full, track = "#." if plain else "█░"
    filled = round(min(max(share, 0.0), 1.0) * width)
    return full * filled + track * (width - filled)


def scale(width: int) -> str:
    """What stands above a bar.

    >>> scale(12)
    '0    50  100'
    """
    left = (width - 2) // 2 - 1
    return "0" + " " * left + "50" + " " * (width - 6 - left) + "100"


def spark(shares: Sequence[float], width: int, plain: bool) -> str:
    """A sign a number, at most ``width`` of them; digits are tens of percent.

    >>> spark([0.0, 0.55, 1.0], 8, False), spark([0.0, 0.55, 1.0], 8, True)
    ('▁▅█', '059')
    """
    signs = DIGITS if plain else BLOCKS
    if len(shares) > width:  # the last one is always there
        shares = [shares[round(i * (len(shares) - 1) / (width - 1))] for i in range(width)]
    return "".join(signs[min(int(share * len(signs)), len(signs) - 1)] for share in shares)


@dataclass(frozen=True)
class Sketch:
    """One picture, as wide as the terminal.

    Args:
        kind: Of `TITLES`.
        rows: What it shows.
    """

    kind: str
    rows: Sequence[Row]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(legible(TITLES[self.kind], options), style="bold")
        yield Text(legible(setting(self.rows), options))
        if missing := columns.unfinished(self.rows):
            yield Text(legible(missing, options), style="bold red")
        yield ""
        draw = {
            "rounds": _rounds,
            "bits": _bits,
            "heatmap": _heatmap,
            "impact": _impact,
            "epsilon": _epsilon,
        }[self.kind]
        yield from draw(self.rows, options)


def _room(options: ConsoleOptions, taken: int) -> int:
    """Characters for a bar beside names and numbers."""
    return min(max(options.max_width - FIRST - taken, SHORTEST), LONGEST)


def _label(row: Row) -> str:
    return "none (clean)" if row.cell.clean else f"{row.cell.attack} {columns.mark(row)}".rstrip()


def _both(system: System) -> list[str]:
    """Clean, and in the worst case."""
    return [percent(row.accuracy) if row else NONE for row in (system.clean, system.worst)]


def _grouped(
    groups: dict[str, list[Line]], heads: Sequence[str], options: ConsoleOptions
) -> RichTable:
    """The name of every group, below it its lines."""
    body = []
    for name, inside in groups.items():
        body += [Line([name, *[""] * (len(heads) - 1)], title=True), *inside]
    return grid(Table.of(heads, body), options)


def _rounds(rows: Sequence[Row], options: ConsoleOptions) -> Iterator[RenderableType]:
    plain, width = options.ascii_only, _room(options, 10)
    groups: dict[str, list[Line]] = {}
    for system in systems(rows):
        inside = groups.setdefault(system.name, [])
        for row in system.rows:
            drawn = spark([point.mean for point in curve(row)], width, plain)
            inside.append(Line([_label(row), drawn, percent(row.accuracy)], row.worst))
    yield _grouped(groups, ("system\n  attack", "\nrounds", "last\n%"), options)
    said = "A digit is tens of percent" if plain else f"{BLOCKS[0]} is 0 %, {BLOCKS[-1]} is 100 %"
    yield Text(f"\n{said}; the last sign is the last round.")


def _impact(rows: Sequence[Row], options: ConsoleOptions) -> Iterator[RenderableType]:
    plain, width = options.ascii_only, _room(options, 10)
    groups: dict[str, list[Line]] = {}
    for system in systems(rows):
        for one in bars(system):
            drawn = bar(one.mean / 100, width, plain)
            line = Line([_label(one.row), drawn, percent(one.mean / 100)], one.row.worst)
            groups.setdefault(system.name, []).append(line)
    heads = ("system\n  attack", f"\n{scale(width)}", "points\nlost")
    yield _grouped(groups, heads, options)


def _bits(rows: Sequence[Row], options: ConsoleOptions) -> Iterator[RenderableType]:
    plain, width = options.ascii_only, _room(options, 28)
    found = sorted(marks(rows), key=lambda mark: (mark.bits, -mark.y))
    best = front([(mark.bits, mark.y) for mark in found])
    body = []
    for i, mark in enumerate(found):
        drawn, sign = bar(mark.y / 100, width, plain), "*" if i in best else ""
        texts = [mark.system.name, bits(mark.bits), *_both(mark.system), drawn, sign]
        body.append(Line(texts))
    heads = ("\nsystem", "\nbits", "clean\n%", "worst\n%", f"\n{scale(width)}", "")
    yield grid(Table.of(heads, body), options)
    yield Text("\nBits up and down, per parameter. *: nobody is better in both.")


def _epsilon(rows: Sequence[Row], options: ConsoleOptions) -> Iterator[RenderableType]:
    plain, width = options.ascii_only, _room(options, 18)
    groups: dict[str, list[Line]] = {}
    for line in lines(rows):
        inside = groups.setdefault(f"{line.panel} + {line.name}", [])
        known = [one for one in line.systems if one.price.epsilon is not None]
        listed = sorted(known, key=lambda one: one.price.epsilon or 0.0)
        said = [epsilon(one.price) for one in listed]
        listed += [one for one in line.systems if one not in known]
        said += [STRIPS[0]] * (len(listed) - len(said))
        if line.bare:
            listed, said = [*listed, line.bare], [*said, STRIPS[1]]
        for system, label in zip(listed, said, strict=True):
            drawn = bar(system.shown.accuracy, width, plain)
            inside.append(Line([label, *_both(system), drawn]))
    heads = ("system\n  ε", "clean\n%", "worst\n%", f"\n{scale(width)}")
    yield _grouped(groups, heads, options)


def _heatmap(rows: Sequence[Row], options: ConsoleOptions) -> Iterator[RenderableType]:
    found = maps(rows)
    tried = [*attacks(rows), WORST_CASE]
    longest = max(len(piece.strip()) for attack in tried for piece in pieces(attack))
    column = min(max(longest, NARROWEST), WIDEST)
    names = min(max(len(rule) for one in found for rule in one.rules), FIRST)
    abreast = max((options.max_width - names) // (column + 1), 1)
    for one in found:
        yield cell(one.name.replace(",", ", "), options, "bold")
        for first in range(0, len(tried), abreast):
            yield _map(one, tried[first : first + abreast], (names, column), options)
            yield ""
    yield Text(legible(f"{WORST.split()[0]}: the worst of its row, in percent", options))


def _map(
    one: Map, tried: Sequence[str], widths: tuple[int, int], options: ConsoleOptions
) -> RichTable:
    table = RichTable(box=None, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    table.add_column(width=widths[0], overflow="fold")
    for attack in tried:
        words = " ".join(piece.strip() for piece in pieces(attack))
        head = "none (clean)" if attack == "none" else words
        table.add_column(cell(head, options), justify="right", width=widths[1], overflow="fold")
    for rule in one.rules:
        shown = [
            _share(one.at(rule, attack), options, marked=attack != WORST_CASE) for attack in tried
        ]
        table.add_row(cell(rule.replace(",", ", "), options), *shown)
    return table


def _share(row: Row | None, options: ConsoleOptions, marked: bool) -> Text:
    if row is None:
        return Text(NONE, style="dim")
    text = percent(row.accuracy) + (f" {WORST.split()[0]}" if row.worst and marked else "")
    colour = face(row.accuracy)
    return Text(legible(f" {text} ", options), style=f"{on(colour)} on {colour}")
