"""FedPM's Figure 5 as a picture: as printed, corrected, and exact."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbench.figures.style import COLOURS, FAINT, INK, WORST, save, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fedbench.privacy.figure5 import Figure5, Point

RED, BLUE, GREEN = WORST, COLOURS[0], COLOURS[2]  # as in the paper
PINK, ORANGE, SKY = COLOURS[3], COLOURS[1], COLOURS[4]
EPSILONS, ERRORS = (0.1, 60.0), (8e-4, 2.0)  # what is shown
X_TICKS, Y_TICKS = (0.1, 0.3, 1, 3, 10, 30), (0.001, 0.01, 0.1, 1)
ZOOM, ZOOM_TICKS = (0.0105, 0.0145), (0.012, 0.014)
ZOOM_BOX = (0.0, 0.14, 1.0, 0.15)  # of the panel, so that its epsilons lie below each other


@dataclass(frozen=True)
class Curve:
    """One line of the picture.

    Args:
        label: In the legend; ``{}`` is what the paper's minimum never exceeds.
        colour: The paper's, in our palette.
        epsilon: Who counts, a key of ``Point.epsilons``.
        error: Who estimates, a key of ``Point.errors``.
        width: In points; of curves that share a piece, the lower ones are wider.
        dashed: Claimed rather than true.
    """

    label: str
    colour: str
    epsilon: str
    error: str
    width: float = 2.4
    dashed: bool = False

    def look(self, fine: float = 1.0) -> dict[str, Any]:
        """For matplotlib; dashes are of one length, whatever the width."""
        width = self.width * fine
        dashes = (0, (7 / width, 3 / width)) if self.dashed else "-"
        return {"color": self.colour, "linewidth": width, "linestyle": dashes}


CAPPED = "min{{ε, {:.2f}}}"  # is a format
# Drawn in this order: what is true lies above what is claimed.
CURVES = {
    "as printed": (
        Curve("noise alone", RED, "claimed", "raw", 3.8, dashed=True),
        Curve(CAPPED, BLUE, "claimed-min", "raw", 2.2, dashed=True),
        Curve(f"{CAPPED}, printed correction", GREEN, "claimed-min", "printed", 1.4, dashed=True),
    ),
    "the same, true ε": (
        Curve("noise alone", RED, "gaussian", "raw", 3.8),
        Curve(CAPPED, BLUE, "honest-min", "raw", 2.2),
        Curve(f"{CAPPED}, right correction", GREEN, "honest-min", "inverted", 1.4),
    ),
    "exact ε of the bits": (
        Curve("share of ones", PINK, "exact", "raw"),
        Curve("right correction", ORANGE, "exact", "inverted"),
        Curve("affine bits, no bias", SKY, "exact", "affine"),
    ),
}
PANELS = {
    "uniform": "θ uniform on [0.2, 0.8]: the paper's setting",
    "skewed": "θ skewed: 15 % at 0.8, the rest at 0.2",
}


def draw(figure: Figure5, path: Path) -> None:
    """Write a PNG.

    Raises:
        ConfigError: the folder cannot be written.
    """
    save(compose(figure), path)


@styled
def compose(figure: Figure5) -> Figure:
    """Title and legend on top of two panels."""
    from matplotlib.figure import Figure

    page = Figure(figsize=(10, 6.6))
    title = "Privacy against error of a mean: FedPM's Figure 5, as printed and as it is"
    page.text(0.025, 0.957, title, fontsize=14.5, fontweight="bold", va="center")
    subtitle = (
        "Squared error, summed over 5 coordinates, of the mean of 100 clients' θ from one bit per "
        f"coordinate; δ = {figure.delta:g}, {figure.repetitions:,} repetitions."
    )
    page.text(0.025, 0.916, subtitle, fontsize=9.5, color=FAINT, va="center")
    legend(page, figure)
    for i, data in enumerate(PANELS):
        axes = page.add_axes((0.06 + 0.49 * i, 0.08, 0.435, 0.64))
        panel(axes, figure, data)
        axes.set(xscale="log", yscale="log", xlim=EPSILONS, ylim=ERRORS)
        axes.set_xticks(X_TICKS, [f"{x:g}" for x in X_TICKS])
        axes.set_yticks(Y_TICKS, [f"{y:g}" for y in Y_TICKS])
        axes.set_title(PANELS[data], pad=8)
        axes.set_xlabel("ε", fontsize=10)
        label(axes, figure, data)
        if data == "uniform":
            zoom(axes, figure)
    return page


def panel(axes: Axes, figure: Figure5, data: str, fine: float = 1.0) -> None:
    """All curves for one kind of data, and the two controls, on bare axes."""
    from fedbench.privacy.figure5 import invertible

    points = sorted([*figure.claims, *figure.equal, *figure.curve], key=lambda point: -point.sigma)
    for curve in (curve for curves in CURVES.values() for curve in curves):
        faint = [p for p in points if curve.error == "printed" and not invertible(p.sigma)]
        axes.plot(*line(faint, curve, data), **curve.look(fine), alpha=0.45)
        axes.plot(*line(points[len(faint) :], curve, data), **curve.look(fine))
    controls = {name: error.mean for name, error in figure.controls[data].items()}
    axes.axhline(controls["no-dp"], color=INK, linewidth=1.1, zorder=1.5)
    axes.axhline(controls["constant"], color=INK, linewidth=1.3, linestyle=":", zorder=3)
    axes.minorticks_off()


def line(points: Sequence[Point], curve: Curve, data: str) -> tuple[list[float], list[float]]:
    """Epsilons and errors, the strongest noise first."""
    x = [point.epsilons[curve.epsilon] for point in points]
    return x, [point.errors[data][curve.error].mean for point in points]


def label(axes: Axes, figure: Figure5, data: str) -> None:
    """Names on the lines that the legend does not explain."""
    controls = figure.controls[data]
    style: dict[str, Any] = {"fontsize": 8.5, "textcoords": "offset points"}
    at = (EPSILONS[1], controls["constant"].mean)
    axes.annotate("always 1/2", at, (-2, 3), ha="right", va="bottom", **style)
    at = (EPSILONS[0], controls["no-dp"].mean)
    axes.annotate("bits without any DP", at, (2, -3), ha="left", va="top", **style)
    first = max(figure.curve, key=lambda point: point.sigma)
    at = (first.epsilons["claimed"], first.errors[data]["printed"].mean)
    style["color"] = GREEN
    axes.annotate("no inverse", at, (0, 3), ha="left", va="bottom", **style)


def zoom(axes: Axes, figure: Figure5) -> None:
    """What lies on top of each other in the paper's setting, enlarged."""
    inset = axes.inset_axes(ZOOM_BOX, facecolor="white")
    panel(inset, figure, "uniform", fine=0.85)
    inset.set(xscale="log", xlim=EPSILONS, ylim=ZOOM)
    inset.set_xticks(X_TICKS, [""] * len(X_TICKS))
    inset.set_yticks(ZOOM_TICKS, [f"{y:g}" for y in ZOOM_TICKS])
    inset.spines[:].set(visible=True, color=FAINT, linewidth=0.6)
    inset.text(0.006, 0.42, "enlarged", fontsize=8.5, color=FAINT, transform=inset.transAxes)


def legend(page: Figure, figure: Figure5) -> None:
    """A column for each group, below its name."""
    from matplotlib.lines import Line2D

    from fedbench.privacy.figure5 import honest_cap, printed_cap

    caps = {"claimed-min": printed_cap(figure.delta), "honest-min": honest_cap(figure.delta)}
    for i, (name, curves) in enumerate(CURVES.items()):
        keys = [
            Line2D([], [], **curve.look(), label=curve.label.format(caps.get(curve.epsilon)))
            for curve in curves
        ]
        box = page.legend(
            handles=keys,
            title=name,
            title_fontproperties={"weight": "bold", "size": 9},
            alignment="left",
            loc="upper left",
            bbox_to_anchor=(0.025 + 0.325 * i, 0.887),
            handlelength=2.6,
        )
        page.add_artist(box)
