"""Accuracy in the worst case against bits: which systems no other beats in both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fedbench.figures.labels import place_labels
from fedbench.figures.layout import PLAIN, View, Words, page, wrap
from fedbench.figures.style import COLOURS, FAINT, INK, WORST, Mark, styled
from fedbench.figures.systems import SystemRows, ends, setting, sureness, systems, tens, tested
from fedbench.results.aggregate import pareto
from fedbench.tables import columns
from fedbench.tables.numbers import bits, percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fedbench.results.summary import Row

LABELS = {"total": ("bits", "bits up and down"), "uplink": ("uplink bits", "bits up")}
PRIVATE_EPSILON = 10.0  # largest epsilon, in nats, that the leaderboard lists as private
MAX_LABELLED_SYSTEMS = 12  # systems at most whose names stand beside their points
HEIGHT = 4.6  # inches of the panel


@dataclass(frozen=True)
class SystemPoint:
    """A system in the figure; accuracies in percent."""

    system: SystemRows
    bits: float  # per parameter, message and round: up and down, or up
    accuracy: float  # in the worst case, or clean if nobody attacks
    low: float  # end of its interval; `accuracy` if there is none
    high: float
    clean: float | None  # without attack, if that is another number
    epsilon: float | None = None  # nats, None without a guarantee

    @property
    def spot(self) -> tuple[float, float]:
        """Coordinates of the marker."""
        return self.bits, self.accuracy

    @property
    def key(self) -> Mark:
        """Look of the marker."""
        shape = shape_of(self.epsilon)
        return Mark("", WORST, shape) if self.system.worst else Mark("", INK, shape, hollow=True)


def shape_of(epsilon: float | None) -> str:
    """Return the marker of a guarantee: a circle for none, a diamond for a strong one, a square.

    >>> shape_of(None), shape_of(2.5), shape_of(39.0)
    ('o', 'D', 's')
    """
    if epsilon is None:
        return "o"
    return "D" if epsilon <= PRIVATE_EPSILON else "s"


def points(rows: Sequence[Row], view: View = PLAIN) -> list[SystemPoint]:
    """Return a point for each system, the best worst case first."""
    out = []
    for system in systems(rows):
        row = system.shown
        clean = system.clean
        low, high = ends(row) or (row.accuracy, row.accuracy)
        without = None if clean is None or clean is row else 100 * clean.accuracy
        sent = system.cost["uplink_bits"] or 0
        sent += system.cost["downlink_bits"] if view.bits == "total" else 0
        sent = max(sent, 1e-4)  # zero has no logarithm
        epsilon = system.cost["epsilon"]
        out.append(
            SystemPoint(
                system=system,
                bits=sent,
                accuracy=100 * row.accuracy,
                low=100 * low,
                high=100 * high,
                clean=without,
                epsilon=epsilon,
            )
        )
    return out


def front(spots: Sequence[tuple[float, float]]) -> list[int]:
    """Return the indices of the pairs of bits and accuracy that no other beats in both, by bits."""
    best = pareto([(-bits, accuracy) for bits, accuracy in spots])
    return sorted(best, key=lambda i: spots[i])


def unbeaten(shown: Sequence[SystemPoint]) -> list[int]:
    """Return the indices on the front, without systems that nobody attacked if others were."""
    compared = [i for i, point in enumerate(shown) if point.system.worst] or range(len(shown))
    return [compared[i] for i in front([shown[i].spot for i in compared])]


def shows(rows: Sequence[Row]) -> bool:
    """Return True if every record counts its bits, so that no secure sum hides them."""
    return bool(rows) and all(row["uplink_bits"] is not None for row in rows)


@styled
def compose(rows: Sequence[Row], view: View = PLAIN) -> Figure:
    """Draw a point per system with its name beside it, or with a number if names have no room."""
    shown = points(rows, view)
    best = unbeaten(shown)
    caption = (
        f"{tested(rows).capitalize()}, last round. Bits as they were sent: of a benign message up"
        f"{', and of what one client gets in a round' * (view.bits == 'total')}"
        f"{f'; {columns.POOLED}' * any(row.worst for row in rows)}. "
        f"{sureness(rows, 'Vertical bar')}"
    )
    words = Words(
        f"Accuracy{columns.in_worst_case(rows)} against {LABELS[view.bits][0]}",
        setting(rows),
        caption,
    )
    keys = _keys(shown, rows)
    if len(shown) <= MAX_LABELLED_SYSTEMS:
        sheet = page(words, keys, width=view.inches)
        _draw(sheet.panels[0], shown, best, LABELS[view.bits][1])
        sheet.fit(min(HEIGHT, 0.65 * view.inches))
        names = {i: "\n".join(wrap(p.system.name, 1.9, 8.5)) for i, p in enumerate(shown)}
        if _write(sheet.panels[0], names, shown, best):
            return sheet.figure
    listed = [f"{i + 1} {_listed(point)}" for i, point in enumerate(shown)]
    sheet = page(replace(words, caption="\n".join([caption, *listed])), keys, width=view.inches)
    _draw(sheet.panels[0], shown, best, LABELS[view.bits][1])
    sheet.fit(min(HEIGHT, 0.65 * view.inches))
    _write(sheet.panels[0], _numbers(sheet.panels[0], shown), shown, best)
    return sheet.figure


def _listed(point: SystemPoint) -> str:
    """Say below the figure what a number in it stands for."""
    text = point.system.name
    if worst := point.system.worst:
        text += f", {percent(worst.accuracy)} % under {worst.cell.attack}"
    if clean := point.system.clean:
        text += f", {percent(clean.accuracy)} % without attack"
    return f"{text}, {bits(point.bits)} bits"


def _keys(shown: Sequence[SystemPoint], rows: Sequence[Row]) -> list[Mark]:
    keys = []
    if any(point.system.worst for point in shown):
        keys.append(Mark(f"{columns.worst_case(rows)} over the attacks", WORST, "o"))
    if any(point.clean is not None or not point.system.worst for point in shown):
        keys.append(Mark("no attack", INK, "o", hollow=True))
    shapes = {point.key.marker for point in shown}
    if shapes != {"o"}:
        limit = f"{PRIVATE_EPSILON:g}"
        meanings = {"o": "no guarantee", "D": f"ε ≤ {limit}", "s": f"ε > {limit}"}
        keys += [Mark(text, FAINT, shape) for shape, text in meanings.items() if shape in shapes]
    return [*keys, Mark("Pareto front: nobody is better in both", COLOURS[0], line="-")]


def _draw(axes: Axes, shown: Sequence[SystemPoint], best: Sequence[int], across: str) -> None:
    sent = [point.bits for point in shown]
    low, high = tens(
        y / 100 for p in shown for y in (p.low, p.high, p.accuracy if p.clean is None else p.clean)
    )
    axes.set(xlim=(min(sent) / 1.7, max(sent) * 1.7), ylim=(low - 2, high + 2))
    axes.set(ylabel="accuracy, %", xlabel=f"{across}, per parameter (logarithmic)")
    log_bits(axes)
    draw_front(axes, [(shown[i].bits, shown[i].accuracy) for i in best])
    for point in shown:
        if point.clean is not None:
            axes.plot([point.bits] * 2, [point.accuracy, point.clean], color=FAINT, linewidth=0.8)
            axes.plot(point.bits, point.clean, **Mark("", INK, "o", hollow=True).look(), zorder=3)
        if point.low < point.high:
            colour = point.key.colour
            axes.vlines(point.bits, point.low, point.high, color=colour, alpha=0.4, linewidth=2.5)
        axes.plot(point.bits, point.accuracy, **point.key.look(), zorder=4)


def log_bits(axes: Axes) -> None:
    """Make the horizontal axis logarithmic, with ticks at powers of two."""
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    axes.minorticks_off()


def draw_front(axes: Axes, corners: Sequence[tuple[float, float]], **look: Any) -> None:
    """Draw the best accuracy within each budget of bits, as steps to the right end of the panel."""
    xs, ys = zip(*corners, (axes.get_xlim()[1], corners[-1][1]), strict=True)
    axes.step(xs, ys, where="post", **{"color": COLOURS[0], "zorder": 2.7, **look})


def steps(corners: Sequence[tuple[float, float]], end: float) -> list[Any]:
    """Return the segments of `draw_front`: a tread behind each corner, a riser up to the next."""
    out = []
    following = [*corners[1:], (end, corners[-1][1])] if corners else []
    for (x, y), (right, top) in zip(corners, following, strict=True):
        out += [((x, y), (right, y)), ((right, y), (right, top))]
    return out


def _write(
    axes: Axes, texts: dict[int, str], shown: Sequence[SystemPoint], best: Sequence[int]
) -> bool:
    """Write texts at some points; return False, and write none, if one of them has no room."""
    obstacles = steps([shown[i].spot for i in best], axes.get_xlim()[1])
    for point in shown:
        heights = [y for y in (point.low, point.high, point.clean) if y is not None]
        obstacles.append(((point.bits, min(heights)), (point.bits, max(heights))))
    looks = [{"fontsize": 8.5, "fontweight": "bold" if i in best else "normal"} for i in texts]
    spots = [shown[i].spot for i in texts]
    placed = place_labels(axes, spots, list(texts.values()), obstacles, looks)
    if None in placed:
        for text in filter(None, placed):
            text.remove()
    return None not in placed


def _numbers(axes: Axes, shown: Sequence[SystemPoint]) -> dict[int, str]:
    """Return the numbers of the list by point; points that lie on each other share one label."""
    groups: dict[tuple[int, int], list[int]] = {}
    for i, point in enumerate(shown):
        x, y = axes.transData.transform(point.spot) / axes.figure.dpi  # inches
        groups.setdefault((round(x / 0.06), round(y / 0.06)), []).append(i)
    return {
        group[0]: "\n".join(wrap(", ".join(str(i + 1) for i in group), 1.0, 8.5))
        for group in groups.values()
    }
