"""Change of accuracy in a round over the round's share of malicious rows."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from fedbench.figures import share
from fedbench.figures.layout import PLAIN, View, Words, fit_multiples
from fedbench.figures.style import FAINT, Mark, styled
from fedbench.figures.systems import cautions, setting, tens, tested

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fedbench.experiment.record import Record
    from fedbench.results.summary import Row

TITLE = "Accuracy won or lost in a round over its malicious rows"


@dataclass(frozen=True)
class CohortLine(share.AttackLine):
    """One system under one attack, round by round, over all seeds and shares of malicious clients.

    A round is its share of malicious rows and its change of accuracy, see `changes`.
    """

    rounds: list[tuple[float, float]]

    @property
    def curve(self) -> list[tuple[float, float]]:
        """Mean change for every share that a round had, by share."""
        by_share: dict[float, list[float]] = {}
        for x, change in self.rounds:
            by_share.setdefault(x, []).append(change)
        return [(x, statistics.fmean(by_share[x])) for x in sorted(by_share)]

    def count(self, x: float) -> int:
        """Return the number of rounds with this share."""
        return sum(other == x for other, _ in self.rounds)


def changes(record: Record) -> list[tuple[float, float]]:
    """Return each round's share of malicious rows, and its change of accuracy, in [-1, 1].

    The change is from the look before the round to the one after it. So a round counts if it and
    the one before it were evaluated; the first never does, since nobody looks before it.
    """
    return [
        (share.owned(after), after.accuracy - before.accuracy)
        for before, after in pairwise(record.rounds)
        if after.clients and after.accuracy is not None and before.accuracy is not None
    ]


def lines(rows: Sequence[Row]) -> list[CohortLine]:
    """Return a line per system and attack, in the order of `fedbench.figures.share.lines`."""
    curves = []
    for line in share.lines(rows):
        own = [row for _, row in line.points if row.cell.attack == line.attack]
        rounds = [change for row in own for record in row.records for change in changes(record)]
        if rounds:
            curves.append(CohortLine(line.system, line.attack, rounds))
    return curves


def shows(rows: Sequence[Row]) -> bool:
    """Return True if any line has rounds of two shares."""
    return any(len(line.curve) > 1 for line in lines(rows))


@styled
def compose(rows: Sequence[Row], view: View = PLAIN) -> Figure:
    """Draw a panel per system, with a dot for each round and a mark for the mean of a share."""
    drawn = lines(rows)
    caption = (
        f"{tested(rows).capitalize()}. Across: share of the rows of a round that the adversary "
        "owns, as drawn; attacks stand beside each other. Up: accuracy after the round minus "
        "accuracy before it, in points. Dot: one round of one seed, from the second on. Mark: mean "
        "over the rounds with that share. Rounds depend on each other: one that follows a bad "
        f"round has more to regain.{cautions(rows)}"
    )
    words = Words(TITLE, setting(rows), caption)
    labels = ("malicious rows of the round, %", "change of accuracy, points")
    shares = [x for line in drawn for x, _ in line.rounds]
    sheet = share.panels(words, labels, rows, drawn, shares, _draw, view)
    for axes in sheet.panels:
        axes.axhline(0, color=FAINT, linewidth=0.8, zorder=1)
    ylim = tens(change for line in drawn for _, change in line.rounds)
    sheet.panels[0].set(ylim=ylim)
    return fit_multiples(sheet)


def _draw(axes: Axes, line: CohortLine, key: Mark, aside: float) -> None:
    """Draw the rounds as dots and the means as a line, all of it ``aside``."""
    look: dict[str, Any] = {"color": key.colour, "markersize": 4.0, "alpha": 0.35}
    across = [100 * (x + aside) for x, _ in line.rounds]
    axes.plot(across, [100 * y for _, y in line.rounds], ".", clip_on=False, zorder=3, **look)
    means = line.curve
    across = [100 * (x + aside) for x, _ in means]
    axes.plot(across, [100 * y for _, y in means], **key.look(), clip_on=False, zorder=4)
