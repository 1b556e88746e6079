"""Picture of FedPM's Figure 5: as printed, corrected, and with the exact epsilon of the bits."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fedbench.figures.style import COLOURS, FAINT, INK, WORST, save, styled

if TYPE_CHECKING:
    from figure5 import Figure5

RED, BLUE, GREEN = WORST, COLOURS[0], COLOURS[2]  # as in the paper
PINK, ORANGE, SKY = COLOURS[3], COLOURS[1], COLOURS[4]
EPSILONS, ERRORS = (0.1, 60.0), (8e-4, 2.0)  # what is shown
X_TICKS, Y_TICKS = (0.1, 0.3, 1, 3, 10, 30), (0.001, 0.01, 0.1, 1)
ZOOM, ZOOM_TICKS = (0.0105, 0.0145), (0.012, 0.014)
ZOOM_BOX = (0.0, 0.14, 1.0, 0.15)  # of the panel, so that its epsilons lie below each other


class Curve(NamedTuple):
    """One line of the picture: label, colour, who counts epsilon, who estimates, width."""

    label: str
    colour: str
    epsilon: str
    error: str
    width: float = 2.4

    def look(self, fine: float = 1.0) -> dict[str, Any]:
        """Return matplotlib's style: claims are dashed, by dashes of one length for all widths."""
        width = self.width * fine
        claimed = self.epsilon.startswith("claimed")
        dashes = (0, (7 / width, 3 / width)) if claimed else "-"
        return {"color": self.colour, "linewidth": width, "linestyle": dashes}


CAPPED = "min{{ε, {:.2f}}}"
# In the order of drawing: true curves lie above claimed ones, and shared pieces stay visible.
CURVES = {
    "as printed": (
        Curve("noise alone", RED, "claimed", "raw", 3.8),
        Curve(CAPPED, BLUE, "claimed-min", "raw", 2.2),
        Curve(f"{CAPPED}, printed correction", GREEN, "claimed-min", "printed", 1.4),
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
    """Write the picture as PNG or SVG."""
    save(compose(figure), path)


@styled
def compose(figure: Figure5) -> Figure:
    """Return the page: title and legend on top of a panel for each kind of data."""
    page = Figure(figsize=(10, 6.6))
    title = "Privacy against error of a mean: FedPM's Figure 5, as printed and as it is"
    page.text(0.025, 0.957, title, fontsize=14.5, fontweight="bold", va="center")
    subtitle = (
        "Squared error, summed over 5 coordinates, of the mean of 100 clients' θ from one bit per "
        f"coordinate; δ = {figure.delta:g}, {figure.repetitions:,} repetitions."
    )
    page.text(0.025, 0.916, subtitle, fontsize=9.5, color=FAINT, va="center")
    for i, (name, curves) in enumerate(CURVES.items()):
        keys = [
            Line2D([], [], **curve.look(), label=curve.label.format(figure.caps.get(curve.epsilon)))
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
    """Draw all curves for one kind of data, and the two controls."""
    points = sorted([*figure.claims, *figure.equal, *figure.curve], key=lambda point: -point.sigma)
    for curve in (curve for curves in CURVES.values() for curve in curves):
        x = [point.epsilons[curve.epsilon] for point in points]
        y = [point.errors[data][curve.error][0] for point in points]
        whole = curve.error != "printed"
        without_inverse = 0 if whole else sum(not point.invertible for point in points)
        axes.plot(x[:without_inverse], y[:without_inverse], **curve.look(fine), alpha=0.45)
        axes.plot(x[without_inverse:], y[without_inverse:], **curve.look(fine))
    controls = figure.controls[data]
    axes.axhline(controls["no-dp"][0], color=INK, linewidth=1.1, zorder=1.5)
    axes.axhline(controls["constant"][0], color=INK, linewidth=1.3, linestyle=":", zorder=3)
    axes.minorticks_off()


def label(axes: Axes, figure: Figure5, data: str) -> None:
    """Name the lines that the legend does not explain."""
    style: dict[str, Any] = {"fontsize": 8.5, "textcoords": "offset points"}
    at = (EPSILONS[1], figure.controls[data]["constant"][0])
    axes.annotate("always 1/2", at, (-2, 3), ha="right", va="bottom", **style)
    at = (EPSILONS[0], figure.controls[data]["no-dp"][0])
    axes.annotate("bits without any DP", at, (2, -3), ha="left", va="top", **style)
    first = max(figure.curve, key=lambda point: point.sigma)
    at = (first.epsilons["claimed"], first.errors[data]["printed"][0])
    axes.annotate("no inverse", at, (0, 3), ha="left", va="bottom", color=GREEN, **style)


def zoom(axes: Axes, figure: Figure5) -> None:
    """Enlarge the curves that lie on top of each other in the paper's setting."""
    inset = axes.inset_axes(ZOOM_BOX, facecolor="white")
    panel(inset, figure, "uniform", fine=0.85)
    inset.set(xscale="log", xlim=EPSILONS, ylim=ZOOM)
    inset.set_xticks(X_TICKS, [""] * len(X_TICKS))
    inset.set_yticks(ZOOM_TICKS, [f"{y:g}" for y in ZOOM_TICKS])
    inset.spines[:].set(visible=True, color=FAINT, linewidth=0.6)
    inset.text(0.006, 0.42, "enlarged", fontsize=8.5, color=FAINT, transform=inset.transAxes)
