"""Epsilon over the rounds as a picture: every bound, and the paper's own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedbench.figures.page import MARGIN, WIDTH, Page, Words, measure
from fedbench.figures.style import COLOURS, WORST, log_ticks, save, styled
from fedbench.tables.numbers import nats

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fedbench.privacy.participation import PrivacyCost
    from fedbench.privacy.planning import PrivacyPlan

Curve = Sequence[tuple[int, "PrivacyCost"]]
PAPER = "paper"
# Inches.
LEFT, HEAD, HEIGHT, UNDER = MARGIN + 0.55, 0.35, 3.5, 0.4
LINE = 0.16  # of a name


def draw(curve: Curve, name: str, plan: PrivacyPlan, sees: str, path: Path) -> None:
    """Write a PNG.

    Raises:
        ConfigError: the folder cannot be written.
    """
    save(compose(curve, name, plan, sees), path)


@styled
def compose(curve: Curve, name: str, plan: PrivacyPlan, sees: str) -> Figure:
    """A title, and a line for each bound with its name at its end; the least one is bold."""
    last = curve[-1][1]
    subtitle = (
        f"ε at δ = {plan.delta:g}, {last.adjacency}, before who sees {sees}; {plan.per_round} of "
        f"{plan.clients} clients a round, one takes part in {plan.times} of {plan.rounds}; "
        f"d = {plan.dim}"
    )
    title = f"What {name} costs".replace(",", ", ")
    page, top = Page.framed(HEAD + HEIGHT + UNDER, Words(title, subtitle, ""))
    ends = {f"{bound} {nats(epsilon)}": epsilon for bound, epsilon in last.bounds.items()}
    if last.paper is not None:
        ends[f"{PAPER} {nats(last.paper)}"] = last.paper
    names = 0.15 + max(measure(text, 9) for text in ends)
    axes = page.axes(LEFT, top + HEAD, WIDTH - MARGIN - names - LEFT, HEIGHT)
    rounds = [x for x, _ in curve]
    colours = []
    for i, bound in enumerate(last.bounds):
        values = [price.bounds[bound] for _, price in curve]
        wins = bound == last.winner
        colours.append(COLOURS[i % len(COLOURS)])
        axes.plot(rounds, values, color=colours[i], linewidth=2.6 if wins else 1.4, zorder=3 + wins)
    if last.paper is not None:
        claims = [price.paper or 0.0 for _, price in curve]
        axes.plot(rounds, claims, color=WORST, linewidth=1.4, linestyle="--", zorder=3)
        colours.append(WORST)
    _dress(axes, rounds)
    _label(axes, ends, colours)
    return page.figure


def _dress(axes: Axes, rounds: Sequence[int]) -> None:
    axes.set(xscale="log" if len(rounds) > 1 else "linear", yscale="log", xlabel="rounds")
    axes.margins(x=0)
    axes.set_title("ε")
    for axis in (axes.xaxis, axes.yaxis):
        log_ticks(axis)


def _label(axes: Axes, ends: dict[str, float], colours: Sequence[str]) -> None:
    """Names at the right ends, moved down where they would overlap."""
    low, high = axes.get_ylim()
    right = 1 + 0.1 / (axes.get_position().width * WIDTH)
    y = math.inf
    ordered = sorted(zip(ends, ends.values(), colours, strict=True), key=lambda end: -end[1])
    for text, value, colour in ordered:
        share = math.log(max(value, low) / low) / math.log(high / low)
        y = min(share, y - LINE / HEIGHT)
        axes.text(right, y, text, color=colour, va="center", transform=axes.transAxes)
