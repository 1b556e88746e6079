"""Accuracy of each system, clean and under every attack, beside its bits and its epsilon."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedbench.figures.lanes import Lane, draw_bars, height, stacked, write_behind, write_groups
from fedbench.figures.layout import Words, page
from fedbench.figures.style import BAR, RULE, save, styled
from fedbench.figures.systems import systems
from fedbench.tables import columns
from fedbench.tables.numbers import bits, or_none, percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fedbench.results.summary import Row


def draw(rows: Sequence[Row], title: str, subtitle: str, path: Path) -> None:
    """Write a PNG: every system under every attack, the best worst case on top, and its bits."""
    save(compose(rows, title, subtitle), path)


@styled
def compose(rows: Sequence[Row], title: str, subtitle: str) -> Figure:
    """Draw a group of lanes per system; the panels beside it hold its bits and its epsilon."""
    shown = systems(rows)
    groups = stacked({system.name: [_lane(row) for row in system.rows] for system in shown})
    ratios = [6.5, 1.6] + [0.7] * any(row["epsilon"] is not None for row in rows)
    words = Words(title, subtitle, _caption(rows))
    sheet = page(words, columns=len(ratios), sharey=True, width_ratios=ratios)
    accuracy, sent, *spent = sheet.panels
    write_groups(accuracy, groups)
    draw_bars(accuracy, groups)
    texts = [(max(lane.ends or (lane.value,)), lane.text) for g in groups for lane in g.lanes]
    end = max(right / (1 - 0.06 - 0.011 * len(text)) for right, text in texts)
    accuracy.set(xlim=(0, max(100.0, end)), xticks=range(0, 101, 20))
    accuracy.set_title("accuracy, %", fontsize=9)
    for axes in sheet.panels[1:]:
        axes.tick_params(labelleft=False)
        axes.grid(False)
    tops = [group.top for group in groups]
    uplink_bars(sent, tops, [system.cost["uplink_bits"] for system in shown])
    for axes in spent:
        axes.set(xlim=(0, 1), xticks=[])
        axes.set_title("ε", fontsize=9)
        for top, system in zip(tops, shown, strict=True):
            axes.text(0, top, columns.epsilon(system.cost), va="center", clip_on=False)
    return sheet.fit(height(groups))


def _lane(row: Row) -> Lane:
    ends = (100 * (row.accuracy - row.accuracy_std), 100 * (row.accuracy + row.accuracy_std))
    label = "none (clean)" if row.cell.clean else row.cell.attack
    text = f"{percent(row.accuracy)} {columns.mark(row)}".rstrip()
    return Lane(label, 100 * row.accuracy, text, ends if row.accuracy_std else None, row.worst)


def uplink_bars(axes: Axes, tops: Sequence[float], sent: Sequence[float | None]) -> None:
    """Draw a bar per system: uplink bits, the mean over all its cells."""
    lengths = [number or 0.0 for number in sent]
    axes.barh(tops, lengths, height=0.6, color=BAR, zorder=2)
    for top, number, length in zip(tops, sent, lengths, strict=True):
        write_behind(axes, length, top, Lane("", length, or_none(number, bits)))
    axes.set(xlim=(0, max([*lengths, 1e-9]) * 1.55), xticks=[])
    axes.set_title("uplink bits\nper parameter", fontsize=9)
    axes.axvline(0, color=RULE, linewidth=0.8)


def _caption(rows: Sequence[Row]) -> str:
    seeds = max(len(row.records) for row in rows)
    spread = f"mean and sample standard deviation over {seeds} seeds" if seeds > 1 else "one seed"
    marked = columns.unfinished(rows) or f"{columns.WORST}: the lowest accuracy."
    return f"Benign clients' test data, last round; {spread}. {marked}"
