"""Picture of the suite: a bar for each comparison, how many times as fast ours is."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from paired import Machine, Ratio, short

from fedbench.figures.style import BANDS, BAR, FAINT, INK, WORST, log_ticks, styled

LANE = 0.24  # inches


@styled
def compose(here: Machine, ratios: Sequence[Ratio]) -> Figure:
    """Return a figure with a band for each group; bars below their target are marked."""
    figure = Figure(figsize=(10, LANE * len(ratios) + 1.4), layout="constrained")
    axes = figure.subplots()
    for y, ratio in enumerate(ratios):
        colour = WORST if ratio.met is False else BAR
        axes.barh(y, ratio.faster - 1, left=1, height=0.6, color=colour, zorder=2)
        axes.hlines(y, min(ratio.turns), max(ratio.turns), color=INK, linewidth=1, zorder=3)
        if ratio.target is not None:
            axes.vlines(ratio.target, y - 0.4, y + 0.4, color=INK, linewidth=1.6, zorder=4)
        at = (max(1.0, ratio.target or 0.0, *ratio.turns), y)
        note = axes.annotate(short(ratio.faster), at, (5, 0), textcoords="offset points")
        note.set(va="center", fontsize=8, color=WORST if ratio.met is False else FAINT)
    groups = [ratio.group for ratio in ratios]
    for i, group in enumerate(dict.fromkeys(groups)):
        first = groups.index(group)
        axes.axhspan(first - 0.5, first + groups.count(group) - 0.5, color=BANDS[i % 2], zorder=0)
    names = [f"{ratio.group}: {ratio.what} / {ratio.against}" for ratio in ratios]
    axes.set_yticks(range(len(ratios)), names, fontsize=8)
    axes.set(xscale="log", ylim=(len(ratios) - 0.5, -0.5), xlabel="times as fast")
    turns = [x for ratio in ratios for x in (*ratio.turns, ratio.target or 1.0)]
    axes.set_xlim(min(0.5, *turns) / 1.2, max(2.0, *turns) * 1.5)
    log_ticks(axes.xaxis)
    axes.axvline(1, color=FAINT, linewidth=0.8, zorder=1)
    where = here.device if here.device != "cpu" else f"{here.threads} of {here.cores} cores"
    figure.suptitle("Ours against the obvious way, in turns", fontweight="bold")
    axes.set_title(f"{here.processor}, {where}, torch {here.torch}", fontsize=9, color=FAINT)
    keys = [
        Patch(color=BAR, label="times as fast: median of the turns, and their range"),
        Patch(color=WORST, label="below its target"),
        Line2D([], [], color=INK, marker="|", linestyle="", label="its target"),
    ]
    figure.legend(handles=keys, loc="outside lower center", ncols=3, fontsize=8)
    return figure
