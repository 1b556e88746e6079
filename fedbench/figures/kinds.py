"""Kinds of figures of ``fedbench plot``: as pictures, and as sketches in characters.

Sketches are for a terminal at the other end of an ssh session.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table as RichTable
from rich.text import Text

from fedbench.core.errors import ConfigError, few, require
from fedbench.figures import bars, bits, cohort, epsilon, heatmap, rounds, share
from fedbench.figures.heatmap import WORST_CASE
from fedbench.figures.layout import PLAIN, View
from fedbench.figures.systems import SystemRows, attacks, setting, systems
from fedbench.tables import columns, numbers
from fedbench.tables.numbers import NA, percent
from fedbench.tables.table import Line, Table
from fedbench.tables.terminal import FIRST_COLUMN, cell, grid, legible

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fedbench.results.summary import Row

BLOCKS = "▁▂▃▄▅▆▇█"
DIGITS = "0123456789"
LONGEST, SHORTEST = 40, 10  # characters of a bar
NARROWEST, WIDEST = 8, 19  # characters of a column of a heat map
COHORTS = "evaluations after two rounds in a row, and rounds with two shares of malicious rows"
ARROW = columns.WORST.split()[0]


def bar(share: float, width: int, plain: bool) -> str:
    """Return a bar of ``width`` characters, filled as far as the share says.

    >>> bar(0.5, 8, False), bar(-0.1, 8, True)
    ('████░░░░', '........')
    """
    full, track = "#." if plain else "█░"
    filled = round(min(max(share, 0.0), 1.0) * width)
    return full * filled + track * (width - filled)


def scale(width: int) -> str:
    """Return the numbers that stand above a bar.

    >>> scale(12)
    '0    50  100'
    """
    left = (width - 2) // 2 - 1
    return "0" + " " * left + "50" + " " * (width - 6 - left) + "100"


def spark(shares: Sequence[float], width: int, plain: bool) -> str:
    """Return a sign per share, at most ``width`` of them; digits are tens of percent.

    >>> spark([0.0, 0.55, 1.0], 8, False), spark([0.0, 0.55, 1.0], 8, True)
    ('▁▅█', '059')
    """
    signs = DIGITS if plain else BLOCKS
    if len(shares) > width:  # the last one is always there
        shares = [shares[round(i * (len(shares) - 1) / (width - 1))] for i in range(width)]
    return "".join(signs[min(int(share * len(signs)), len(signs) - 1)] for share in shares)


def _room(options: ConsoleOptions, taken: int) -> int:
    """Return the characters for a bar beside names and numbers."""
    return min(max(options.max_width - FIRST_COLUMN - taken, SHORTEST), LONGEST)


def _label(row: Row) -> str:
    return "none (clean)" if row.cell.clean else f"{row.cell.attack} {columns.mark(row)}".rstrip()


def _both(system: SystemRows) -> list[str]:
    """Return the accuracy without attack and in the worst case."""
    return [percent(row.accuracy) if row else NA for row in (system.clean, system.worst)]


def _grouped(
    groups: dict[str, list[Line]], heads: Sequence[str], options: ConsoleOptions
) -> RichTable:
    """Return a table with the name of every group above its lines."""
    body = []
    for name, members in groups.items():
        body += [Line([name, *[""] * (len(heads) - 1)], title=True), *members]
    return grid(Table.of(heads, body), options)


def _rounds(rows: Sequence[Row], options: ConsoleOptions, view: View) -> Iterator[RenderableType]:
    plain = options.ascii_only
    width = _room(options, 10)
    groups: dict[str, list[Line]] = {}
    for system in systems(rows):
        for row in system.rows:
            drawn = spark([point.mean for point in rounds.curve(row)], width, plain)
            line = Line([_label(row), drawn, percent(row.accuracy)], row.worst)
            groups.setdefault(system.name, []).append(line)
    yield _grouped(groups, ("system\n  attack", "\nrounds", "last\n%"), options)
    signs = "A digit is tens of percent" if plain else f"{BLOCKS[0]} is 0 %, {BLOCKS[-1]} is 100 %"
    yield Text(f"\n{signs}; the last sign is the last round.")


def _impact(rows: Sequence[Row], options: ConsoleOptions, view: View) -> Iterator[RenderableType]:
    width = _room(options, 10)
    groups: dict[str, list[Line]] = {}
    for system in systems(rows):
        for lane in filter(lambda lane: view.shows(lane.label), bars.impacts(system)):
            label = lane.label
            if lane.worst and system.worst:
                label += f" {columns.mark(system.worst)}"
            drawn = bar(lane.value / 100, width, options.ascii_only)
            groups.setdefault(system.name, []).append(Line([label, drawn, lane.text], lane.worst))
    yield _grouped(groups, ("system\n  attack", f"\n{scale(width)}", "points\nlost"), options)


def _bits(rows: Sequence[Row], options: ConsoleOptions, view: View) -> Iterator[RenderableType]:
    width = _room(options, 28)
    shown = sorted(bits.points(rows, view), key=lambda point: (point.bits, -point.accuracy))
    best = bits.unbeaten(shown)
    body = []
    for i, point in enumerate(shown):
        drawn = bar(point.accuracy / 100, width, options.ascii_only)
        texts = [point.system.name, numbers.bits(point.bits), *_both(point.system)]
        body.append(Line([*texts, drawn, "*" if i in best else ""]))
    heads = ("\nsystem", "\nbits", "clean\n%", "worst\n%", f"\n{scale(width)}", "")
    yield grid(Table.of(heads, body), options)
    yield Text(
        f"\n{bits.LABELS[view.bits][1].capitalize()}, per parameter. *: nobody is better in both."
    )


def _epsilon(rows: Sequence[Row], options: ConsoleOptions, view: View) -> Iterator[RenderableType]:
    width = _room(options, 18)
    groups: dict[str, list[Line]] = {}
    for line in epsilon.lines(rows):
        finite = [system for system in line.systems if system.cost["epsilon"] is not None]
        finite.sort(key=lambda system: system.cost["epsilon"] or 0.0)
        labelled = [(columns.epsilon(system.cost), system) for system in finite]
        labelled += [(epsilon.STRIPS[0], system) for system in line.systems if system not in finite]
        labelled += [(epsilon.STRIPS[1], line.bare)] if line.bare else []
        for label, system in labelled:
            drawn = bar(system.shown.accuracy, width, options.ascii_only)
            members = groups.setdefault(f"{line.panel} + {line.name}", [])
            members.append(Line([label, *_both(system), drawn]))
    heads = ("system\n  ε", "clean\n%", "worst\n%", f"\n{scale(width)}")
    yield _grouped(groups, heads, options)


def _shares(rows: Sequence[Row], options: ConsoleOptions, view: View) -> Iterator[RenderableType]:
    width = _room(options, 18)
    groups: dict[str, list[Line]] = {}
    for line in share.lines(rows):
        for x, row in line.points:
            drawn = bar(row.accuracy, width, options.ascii_only)
            label = "none (clean)" if line.clean else line.attack
            texts = [label, percent(x), drawn, percent(row.accuracy)]
            groups.setdefault(line.system, []).append(Line(texts))
    heads = ("system\n  attack", "rows\n%", f"\n{scale(width)}", "last\n%")
    yield _grouped(groups, heads, options)


def _cohorts(rows: Sequence[Row], options: ConsoleOptions, view: View) -> Iterator[RenderableType]:
    groups: dict[str, list[Line]] = {}
    for line in cohort.lines(rows):
        label = "none (clean)" if line.attack == "none" else line.attack
        for x, change in line.curve:
            texts = [label, percent(x), str(line.count(x)), f"{100 * change:+.1f}"]
            groups.setdefault(line.system, []).append(Line(texts))
    yield _grouped(groups, ("system\n  attack", "rows\n%", "\nrounds", "change\npoints"), options)


def _pieces(attack: str) -> list[str]:
    """Split the name of an attack where a line may end."""
    return re.findall(r"[^\s,:]+[,:]?", heatmap.spelled(attack))


def _heatmap(rows: Sequence[Row], options: ConsoleOptions, view: View) -> Iterator[RenderableType]:
    drawn = heatmap.maps(rows)
    order = attacks(rows)
    heads = [*order, WORST_CASE]
    longest = max(len(piece) for attack in heads for piece in _pieces(attack))
    column = min(max(longest, NARROWEST), WIDEST)
    names = min(max(len(defense) for each in drawn for defense in each.defenses), FIRST_COLUMN)
    abreast = max((options.max_width - names) // (column + 1), 1)
    for each in drawn:
        heads = [*heatmap.chosen(each, order, view, len(order)), WORST_CASE]
        yield cell(each.name.replace(",", ", "), options, "bold")
        for first in range(0, len(heads), abreast):
            yield _map(each, heads[first : first + abreast], names, column, options)
            yield ""
    yield Text(legible(f"{ARROW}: {columns.LOWEST}; in percent", options))


def _map(
    drawn: heatmap.Map, heads: Sequence[str], names: int, column: int, options: ConsoleOptions
) -> RichTable:
    table = RichTable(box=None, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    table.add_column(width=names, overflow="fold")
    for attack in heads:
        head = cell(" ".join(_pieces(attack)), options)
        table.add_column(head, justify="right", width=column, overflow="fold")
    for defense in drawn.defenses:
        shares = [_share(drawn.at(defense, head), options, head != WORST_CASE) for head in heads]
        table.add_row(cell(defense.replace(",", ", "), options), *shares)
    return table


def _share(row: Row | None, options: ConsoleOptions, marked: bool) -> Text:
    if row is None:
        return Text(NA, style="dim")
    text = percent(row.accuracy) + (f" {ARROW}" if row.worst and marked else "")
    colour = heatmap.face(row.accuracy)
    return Text(legible(f" {text} ", options), style=f"{heatmap.on(colour)} on {colour}")


@dataclass(frozen=True)
class Kind:
    """One kind of figure: whether some rows can be shown, and as what."""

    title: str
    lacks: str  # what rows lack of which nothing can be seen
    shows: Callable[[Sequence[Row]], bool]
    compose: Callable[..., Figure]  # of rows and, if not `PLAIN`, a `View`
    sketch: Callable[[Sequence[Row], ConsoleOptions, View], Iterator[RenderableType]]


_ROUNDS = (rounds.shows, rounds.compose, _rounds)
_BITS = (bits.shows, bits.compose, _bits)
_HEATMAP = (heatmap.shows, heatmap.compose, _heatmap)
_IMPACT = (bars.shows, bars.compose, _impact)
_SHARE = (share.shows, share.compose, _shares)
_COHORT = (cohort.shows, cohort.compose, _cohorts)
_EPSILON = (epsilon.shows, epsilon.compose, _epsilon)
KINDS = {
    "rounds": Kind(
        "Accuracy over the rounds", "evaluations after two rounds (--eval-every)", *_ROUNDS
    ),
    "bits": Kind("Accuracy against bits", "rows, all of whose bits are counted", *_BITS),
    "heatmap": Kind("Accuracy of defenses under attacks", "an attack", *_HEATMAP),
    "impact": Kind("Attack impact", "a seed with and without attack", *_IMPACT),
    "share": Kind(share.TITLE, "two shares of malicious rows", *_SHARE),
    "cohort": Kind(cohort.TITLE, COHORTS, *_COHORT),
    "epsilon": Kind("Accuracy against ε", "a finite epsilon", *_EPSILON),
}


def draw(name: str, rows: Sequence[Row], view: View = PLAIN) -> Figure:
    """Draw a figure of this kind; `ConfigError` if there is no such kind, or nothing to see."""
    require("kind", name, name in KINDS, f"one of {', '.join(KINDS)}")
    if not KINDS[name].shows(rows):
        raise ConfigError(f"kind {name!r} needs {KINDS[name].lacks} in the records, got none")
    require_attacks(rows, view)
    return KINDS[name].compose(rows, view)


def require_attacks(rows: Sequence[Row], view: View) -> None:
    """Raise `ConfigError` for an attack of a view that no row has."""
    played = attacks(rows)[1:]
    for name in view.attacks:
        was_played = any(name in (attack, attack.partition(":")[0]) for attack in played)
        require("attacks", name, was_played, f"one of {few(played, 20)}")


@dataclass(frozen=True)
class Sketch:
    """One figure in characters, as wide as the terminal; its kind is a key of `KINDS`."""

    kind: str
    rows: Sequence[Row]
    view: View = PLAIN

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        kind = KINDS[self.kind]
        yield Text(legible(kind.title, options), style="bold")
        yield Text(legible(setting(self.rows), options))
        if missing := columns.unfinished(self.rows):
            yield Text(legible(missing, options), style="bold red")
        yield ""
        yield from kind.sketch(self.rows, options, self.view)
