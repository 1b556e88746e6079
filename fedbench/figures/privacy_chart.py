"""Epsilon over the rounds: a line per bound, and the claim of the mechanism's paper."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedbench.figures.layout import Words, page
from fedbench.figures.style import COLOURS, WORST, log_ticks, styled
from fedbench.tables.numbers import nats

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fedbench.privacy.accountants import PrivacyCost
    from fedbench.privacy.planning import PrivacyPlan

Curve = Sequence[tuple[int, "PrivacyCost"]]
PAPER = "paper"
HEIGHT = 3.5  # inches of the panel
LINE = 0.16  # inches of a line of text


@styled
def compose(curve: Curve, name: str, plan: PrivacyPlan, sees: str) -> Figure:
    """Draw a line for each bound with its name at its end; the least one is thick."""
    last = curve[-1][1]
    subtitle = (
        f"ε at δ = {plan.delta:g}, {last.adjacency}, before who sees {sees}; {plan.per_round} of "
        f"{plan.clients} clients a round, one takes part in {plan.times} of {plan.rounds}; "
        f"d = {plan.dim}"
    )
    sheet = page(Words(f"What {name} costs", subtitle))
    axes = sheet.panels[0]
    rounds = [x for x, _ in curve]
    ends = []
    for i, (bound, epsilon) in enumerate(last.bounds.items()):
        wins = bound == last.winner
        colour = COLOURS[i % len(COLOURS)]
        values = [price.bounds[bound] for _, price in curve]
        axes.plot(rounds, values, color=colour, linewidth=2.6 if wins else 1.4, zorder=3 + wins)
        ends.append((epsilon, bound, colour))
    if last.paper is not None:
        claims = [price.paper or 0.0 for _, price in curve]
        axes.plot(rounds, claims, color=WORST, linewidth=1.4, linestyle="--", zorder=3)
        ends.append((last.paper, PAPER, WORST))
    axes.set(xscale="log" if len(rounds) > 1 else "linear", yscale="log", xlabel="rounds")
    axes.margins(x=0)
    axes.set_title("ε")
    for axis in (axes.xaxis, axes.yaxis):
        log_ticks(axis)
    _label(axes, ends)
    return sheet.fit(HEIGHT)


def _label(axes: Axes, ends: Sequence[tuple[float, str, str]]) -> None:
    """Write the names at the right ends, moved down where they would overlap."""
    low, high = axes.get_ylim()
    y = math.inf
    for value, name, colour in sorted(ends, key=lambda end: -end[0]):
        share = math.log(max(value, low) / low) / math.log(high / low)
        y = min(share, y - LINE / HEIGHT)
        text = f"{name} {nats(value)}"
        axes.text(1.01, y, text, color=colour, va="center", transform=axes.transAxes)
