"""Epsilon over the rounds as a picture: every bound, and the paper's own."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedbench.cli.chart import COLOURS, FAINT, INK, RULE, WORST
from fedbench.cli.columns import nats

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fedbench.privacy.accountants import Price
    from fedbench.privacy.planning import Plan

Curve = Sequence[tuple[int, "Price"]]
PAPER = "paper"


def draw(curve: Curve, name: str, plan: Plan, sees: str, path: Path) -> None:
    """Write a PNG.

    Raises:
        ConfigError: the folder cannot be written.
    """
    from fedbench.files import write_atomically

    buffer = io.BytesIO()
    compose(curve, name, plan, sees).savefig(buffer, format="png")
    write_atomically(path, buffer.getvalue())


def compose(curve: Curve, name: str, plan: Plan, sees: str) -> Figure:
    """A title, and a line for each bound with its name at its end; the least one is bold."""
    from matplotlib.figure import Figure

    last = curve[-1][1]
    page = Figure(figsize=(10, 5.2), dpi=160, facecolor="white")
    title = "\n".join(textwrap.wrap(f"What {name} costs".replace(",", ", "), 84)[:2])
    page.text(0.025, 0.985, title, fontsize=13, fontweight="bold", color=INK, va="top")
    subtitle = (
        f"ε at δ = {plan.delta:g}, {last.adjacency}, before who sees {sees}; {plan.per_round} of "
        f"{plan.clients} clients a round, one takes part in {plan.times} of {plan.rounds}; "
        f"d = {plan.dim}"
    )
    page.text(0.025, 0.875, subtitle, fontsize=9.5, color=FAINT)
    axes = page.add_axes((0.07, 0.11, 0.7, 0.68), facecolor="none")
    rounds = [x for x, _ in curve]
    ends: dict[str, tuple[float, str]] = {}
    for i, bound in enumerate(last.bounds):
        values = [price.bounds[bound] for _, price in curve]
        wins = bound == last.winner
        colour = COLOURS[i % len(COLOURS)]
        axes.plot(rounds, values, color=colour, linewidth=2.6 if wins else 1.4, zorder=3 + wins)
        ends[f"{bound} {nats(values[-1])}"] = (values[-1], colour)
    if last.paper is not None:
        claims = [price.paper or 0.0 for _, price in curve]
        axes.plot(rounds, claims, color=WORST, linewidth=1.4, linestyle="--", zorder=3)
        ends[f"{PAPER} {nats(last.paper)}"] = (last.paper, WORST)
    _dress(axes, rounds)
    _label(axes, ends)
    return page


def _dress(axes: Axes, rounds: Sequence[int]) -> None:
    axes.set(xscale="log" if len(rounds) > 1 else "linear", yscale="log")
    axes.set_xlabel("rounds", fontsize=10, color=INK)
    axes.set_title("ε", loc="left", fontsize=10, fontweight="bold", color=INK, pad=6)
    axes.grid(color=RULE, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, labelsize=8.5, labelcolor=FAINT, which="both")
    axes.spines[:].set_visible(False)
    for axis in (axes.xaxis, axes.yaxis):
        low, high = axis.get_view_interval()
        steps = (1, 2, 5) if high < 200 * low else (1,)
        every = max(1, round(math.log10(high / low) / 7))
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1, every)
        ticks = [step * 10.0**power for power in powers for step in steps]
        axis.set_ticks([x for x in ticks if low <= x <= high])
        axis.set_major_formatter(lambda x, _: f"{x:g}")
    axes.minorticks_off()


def _label(axes: Axes, ends: dict[str, tuple[float, str]]) -> None:
    """Names at the right ends, moved apart where they would overlap."""
    low, high = axes.get_ylim()
    height = 0.045  # of a line of text, in parts of the panel
    span = math.log(high / low)
    ordered = sorted(ends.items(), key=lambda item: item[1][0])
    places = [math.log(max(value, low) / low) / span for _, (value, _) in ordered]
    for i in range(1, len(places)):
        places[i] = max(places[i], places[i - 1] + height)
    for (text, (_, colour)), y in zip(ordered, places, strict=True):
        axes.text(1.02, y, text, transform=axes.transAxes, va="center", fontsize=9, color=colour)
