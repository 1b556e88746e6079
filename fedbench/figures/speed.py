"""How many times as fast as the other way: a bar a comparison."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedbench.bench.paired import short
from fedbench.figures.page import MARGIN, WIDTH, Key, Page, Words, measure
from fedbench.figures.style import BANDS, BAR, FAINT, INK, WORST, log_ticks, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fedbench.bench.paired import Ratio
    from fedbench.bench.speed import Report

# Inches.
LANE, GAP, UNDER, NUMBER = 0.24, 0.16, 0.5, 0.6
SIZE, SMALL = 9.5, 8.5  # points


@styled
def compose(report: Report) -> Figure:
    """A band a group; what misses its target is marked."""
    here = report.machine
    groups = list(dict.fromkeys(ratio.group for ratio in report.ratios))
    names = {ratio: f"{ratio.what} / {ratio.against}" for ratio in report.ratios}
    body = sum(LANE * len(_of(report, group)) + GAP for group in groups)
    keys = [
        Key("times as fast", BAR, "s"),
        Key("its target", INK, "|"),
        Key("below its target", WORST, "s"),
    ]
    where = here.device if here.device != "cpu" else f"{here.threads} of {here.cores} cores"
    words = Words(
        "Ours against the obvious way",
        f"{here.processor}, {where}, torch {here.torch}",
        "Both ways took turns in one process; bar: median of the turns, line: their range.",
    )
    page, top = Page.framed(0.1 + body + UNDER, words, keys)
    middle = MARGIN + 0.2 + max(measure(group, SIZE) for group in groups)
    left = middle + 0.15 + max(measure(name, SMALL) for name in names.values())
    axes = page.lanes(left, top + 0.1, WIDTH - MARGIN - left, body)
    turns = [x for ratio in report.ratios for x in (*ratio.turns, ratio.target or 1.0)]
    axes.set_xscale("log")
    axes.set_xlim(min(0.5, *turns) / 1.2, max(2.0, *turns) * 3)
    log_ticks(axes.xaxis)
    axes.set_xlabel("times as fast")
    axes.grid(True, axis="x")
    axes.axvline(1, color=FAINT, linewidth=0.8, zorder=1)
    y = 0.0
    for i, group in enumerate(groups):
        listed = _of(report, group)
        height = LANE * len(listed) + GAP
        page.band(top + 0.1 + y, height, BANDS[i % 2])
        page.write(MARGIN, top + 0.1 + y + GAP / 2 + LANE / 2, group, fontsize=SIZE)
        for k, ratio in enumerate(listed):
            at = y + GAP / 2 + LANE * (k + 0.5)
            colour = WORST if ratio.met is False else BAR
            page.write(middle, top + 0.1 + at, names[ratio], fontsize=SMALL)
            axes.barh(at, ratio.faster - 1, left=1, height=0.6 * LANE, color=colour, zorder=2)
            axes.hlines(at, min(ratio.turns), max(ratio.turns), color=INK, linewidth=1, zorder=3)
            if ratio.target is not None:
                ends = (at - 0.4 * LANE, at + 0.4 * LANE)
                axes.vlines(ratio.target, *ends, color=INK, linewidth=1.6, zorder=4)
            axes.annotate(
                short(ratio.faster),
                (max(1.0, ratio.target or 0.0, *ratio.turns), at),
                xytext=(5, 0),
                textcoords="offset points",
                va="center_baseline",
                fontsize=SMALL,
                color=colour if ratio.met is False else FAINT,
            )
        y += height
    return page.figure


def _of(report: Report, group: str) -> list[Ratio]:
    return [ratio for ratio in report.ratios if ratio.group == group]
