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

# the colours of the curves in the paper
RED = WORST
BLUE, GREEN = COLOURS[0], COLOURS[2]
PINK, ORANGE, SKY = COLOURS[3], COLOURS[1], COLOURS[4]
EPSILONS = (0.1, 60.0)  # what is shown
HIGHEST = 2.0  # error that is shown; the lowest is that of the controls, divided by MARGIN
MARGIN = 1.9
X_TICKS = (0.1, 0.3, 1, 3, 10, 30)
Y_TICKS = (0.0001, 0.001, 0.01, 0.1, 1)
ZOOM = (1.05, 1.45)  # errors times N
ZOOM_TICKS = (1.2, 1.4)
PANEL_WIDTH = 4.35  # inches
PANEL_STEP = 4.9


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
    "uniform": "θ of each client uniform on [0.2, 0.8]",
    "skewed": "θ of each client 0.8 with chance 15 %, else 0.2",
    "shared": "one θ for all clients, uniform on [0.2, 0.8]",
}


def draw(figure: Figure5, path: Path) -> None:
    """Write the picture as PNG or SVG."""
    save(compose(figure), path)


@styled
def compose(figure: Figure5) -> Figure:
    """Return the page: title and legend on top of a panel for each law of the data."""
    laws = list(figure.controls)
    width = 0.2 + PANEL_STEP * max(2, len(laws))
    page = Figure(figsize=(width, 6.6))
    clients = f"{figure.clients:,} clients"
    title = f"Privacy against error: FedPM's Figure 5 with {clients}, as printed and as it is"
    page.text(0.25 / width, 0.957, title, fontsize=14.5, fontweight="bold", va="center")
    delta = "1/N²" if figure.delta == figure.clients**-2 else f"{figure.delta:g}"
    subtitle = (
        f"Squared error, summed over 5 coordinates, of the mean of {clients}' θ from one bit per "
        f"coordinate; δ = {delta}, {figure.repetitions:,} repetitions."
    )
    page.text(0.25 / width, 0.916, subtitle, fontsize=9.5, color=FAINT, va="center")
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
            bbox_to_anchor=((0.25 + 3.25 * i) / width, 0.887),
            handlelength=2.6,
        )
        page.add_artist(box)
    controls = [error for errors in figure.controls.values() for error, _ in errors.values()]
    shown = (min(controls) / MARGIN, HIGHEST)
    panel_width = PANEL_WIDTH if len(laws) > 1 else PANEL_WIDTH + PANEL_STEP
    for i, data in enumerate(laws):
        axes = page.add_axes(((0.6 + PANEL_STEP * i) / width, 0.08, panel_width / width, 0.64))
        panel(axes, figure, data)
        axes.set(xscale="log", yscale="log", xlim=EPSILONS, ylim=shown)
        axes.set_xticks(X_TICKS, [f"{x:g}" for x in X_TICKS])
        ticks = [y for y in Y_TICKS if y > shown[0]]
        axes.set_yticks(ticks, [f"{y:g}" for y in ticks])
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
    without_inverse = [point for point in figure.curve if not point.invertible]
    worst = max(without_inverse, key=lambda point: point.errors[data]["printed"][0])
    at = (worst.epsilons["claimed"], worst.errors[data]["printed"][0])
    axes.annotate("no inverse", at, (0, 2), ha="center", va="bottom", color=GREEN, **style)


def zoom(axes: Axes, figure: Figure5) -> None:
    """Enlarge the curves that lie on top of each other where the mean of theta is 1/2.

    The box has the panel's width, so that its epsilons lie below each other, and stands between the
    lines of the two controls.
    """
    controls = figure.controls["uniform"]
    height = axes.transScale + axes.transLimits  # from data to the share of the panel
    low = height.transform((1.0, controls["constant"][0]))[1] + 0.06
    high = height.transform((1.0, controls["no-dp"][0]))[1] - 0.047
    inset = axes.inset_axes((0.0, low, 1.0, high - low), facecolor="white")
    panel(inset, figure, "uniform", fine=0.85)
    errors = [error / figure.clients for error in ZOOM]
    ticks = [error / figure.clients for error in ZOOM_TICKS]
    inset.set(xscale="log", xlim=EPSILONS, ylim=errors)
    inset.set_xticks(X_TICKS, [""] * len(X_TICKS))
    inset.set_yticks(ticks, [f"{y:g}" for y in ticks])
    inset.spines[:].set(visible=True, color=FAINT, linewidth=0.6)
    inset.text(0.006, 0.42, "enlarged", fontsize=8.5, color=FAINT, transform=inset.transAxes)
