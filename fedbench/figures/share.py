"""Accuracy over the share of malicious rows: a panel per system, a line per attack."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from fedbench.figures.layout import PLAIN, Page, View, Words, fit_multiples, multiples
from fedbench.figures.style import INK, Mark, attack_signs, styled
from fedbench.figures.systems import attacks, ends, setting, sureness, systems, tens, tested

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fedbench.experiment.measurements import Round
    from fedbench.experiment.record import Record
    from fedbench.results.summary import Row

TITLE = "Accuracy over the share of malicious rows"


@dataclass(frozen=True)
class AttackLine:
    """Line of a picture: one system under one attack."""

    system: str  # without the share
    attack: str


L = TypeVar("L", bound=AttackLine)


@dataclass(frozen=True)
class ShareLine(AttackLine):
    """One system under one attack, over the share of malicious rows."""

    points: list[tuple[float, Row]]  # share in [0, 1], by share

    @property
    def clean(self) -> bool:
        """True if nobody attacks, whoever owns the rows."""
        return self.attack == "none"


def owned(round: Round) -> float:
    """Return the share of the rows of a round that the adversary owns."""
    return round.malicious / len(round.clients)


def realised(record: Record) -> float:
    """Return the mean of `owned` over the rounds of a run that had any rows; 0 without any."""
    shares = [owned(r) for r in record.rounds if r.clients]
    return statistics.fmean(shares) if shares else 0.0


def share(row: Row) -> float:
    """Return the mean of `realised` over the seeds."""
    return statistics.fmean(map(realised, row.records))


def lines(rows: Sequence[Row]) -> list[ShareLine]:
    """Return a line per system and attack, systems in the order of their best worst case.

    Without malicious rows there is nothing to attack: the clean run is a point of every line.
    """
    scenarios = [row.cell.scenario for row in rows]
    assumed = {s.malicious if s.declared is None else s.declared for s in scenarios}
    drawn = {"malicious"} | ({"declared"} if len(assumed) == 1 else set())
    by_system: dict[str, dict[str, list[tuple[float, Row]]]] = {}
    for row in (row for system in systems(rows) for row in system.rows):
        varied = tuple(name for name in row.cell.varied if name not in drawn)
        name = dataclasses.replace(row.cell, varied=varied).system
        by_system.setdefault(name, {}).setdefault(row.cell.attack, []).append((share(row), row))
    out = []
    for name, by_attack in by_system.items():
        nobody = [point for point in by_attack.get("none", []) if point[0] == 0]
        for attack in (each for each in attacks(rows) if each in by_attack):
            points = by_attack[attack] + (nobody if attack != "none" else [])
            out.append(ShareLine(name, attack, sorted(points, key=lambda point: point[0])))
    return out


def shows(rows: Sequence[Row]) -> bool:
    """Return True if any line has two shares."""
    return any(len({x for x, _ in line.points}) > 1 for line in lines(rows))


@styled
def compose(rows: Sequence[Row], view: View = PLAIN) -> Figure:
    """Draw a panel per system, with a mark for each cell and a dot for each of its seeds."""
    drawn = lines(rows)
    caption = (
        f"{tested(rows).capitalize()}, last round. Across: mean over the rounds of the share of "
        "rows that the adversary owns, as drawn; attacks stand beside each other. Dot: one seed. "
        f"{sureness(rows, 'Vertical bar')}"
    )
    words = Words(TITLE, setting(rows), caption)
    marked = [x for line in drawn for point, row in line.points for x in (point, *_spread(row))]
    sheet = panels(words, ("malicious rows, %", "accuracy, %"), rows, drawn, marked, _draw, view)
    heights = [y for row in rows for y in (*row.accuracies(), *(ends(row) or ()))]
    sheet.panels[0].set(ylim=tens(heights))
    return fit_multiples(sheet)


def panels(
    words: Words,
    labels: tuple[str, str],
    rows: Sequence[Row],
    drawn: Sequence[L],
    shares: Sequence[float],
    draw: Callable[[Axes, L, Mark, float], None],
    view: View,
) -> Page:
    """Return a page with a panel per system, over shares of malicious rows in percent.

    ``labels`` are those of the two axes, and ``shares`` in [0, 1] all that are marked. ``draw`` is
    called with each line, its mark, and how far to stand aside of other attacks at one share.
    """
    names = list(dict.fromkeys(line.system for line in drawn))
    signs = attack_signs(attacks(rows)[1:])
    looks = {name: Mark(name, *sign, line="-") for name, sign in signs.items()}
    looks["none"] = Mark("none (clean)", INK, "o", line="--", hollow=True)
    keys = [looks[name] for name in dict.fromkeys(line.attack for line in drawn)]
    across, up = labels
    sheet = multiples(words, keys, [(name, "") for name in names], across, view.inches, ylabel=up)
    width = max(max(shares) - min(shares), 0.1)
    for axes, name in zip(sheet.panels, names, strict=False):
        here = [line for line in drawn if line.system == name]
        step = min(0.012, 0.05 / len(here)) * width
        for slot, line in enumerate(here):
            draw(axes, line, looks[line.attack], step * (slot - (len(here) - 1) / 2))
    air = 0.05 * width
    sheet.panels[0].set(xlim=(100 * (min(shares) - air), 100 * (max(shares) + air)))
    return sheet


def _spread(row: Row) -> list[float]:
    return [realised(record) for record in row.records]


def _draw(axes: Axes, line: ShareLine, key: Mark, aside: float) -> None:
    """Draw a line through the cells, the intervals of their means, and the seeds.

    All of it stands ``aside``, so that bars of several attacks at one share can be told apart. A
    clean run that begins the line of an attack has its bar in the clean line.
    """
    look: dict[str, Any] = {"color": key.colour, "zorder": 3}
    for x, row in line.points:
        if row.cell.clean and not line.clean:
            continue
        if bounds := ends(row):
            low, high = bounds
            axes.vlines(100 * (x + aside), 100 * low, 100 * high, alpha=0.4, **look)
        across = [100 * (x + aside) for x in _spread(row)]
        spots = [100 * y for y in row.accuracies()]
        axes.plot(across, spots, ".", markersize=5.0, alpha=0.6, clip_on=False, **look)
    shares = [100 * (x + aside) for x, _ in line.points]
    means = [100 * row.accuracy for _, row in line.points]
    axes.plot(shares, means, **key.look(), zorder=4, clip_on=False)
