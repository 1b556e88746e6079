"""Images that were reconstructed from one message, beside the true images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch import Tensor

from fedbench.figures.layout import Words, page, wrap
from fedbench.figures.style import INK, RULE, styled
from fedbench.probes.inversion import MESSAGE, RAW, SAME_CLASS, InversionReport, Reconstruction

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Tiles are squares of an inch.
LANE = 1.35  # a tile and the numbers below it
BETWEEN = 0.4  # the two panels
MIN_PANEL_INCHES = 2.3  # panel, so that its name has room
MAX_PANEL_IMAGES = 4  # images in a panel
PANELS = {MESSAGE: "from the message", RAW: "from the raw update, not sent"}


@dataclass(frozen=True, eq=False)
class Strip:
    """One row of images, with a note below its name."""

    name: str
    note: str
    panels: dict[str, Sequence[Tensor]]  # images (C, H, W)
    scored: dict[str, Sequence[Reconstruction]] = field(default_factory=dict)  # scores below them


def strips(report: InversionReport) -> list[Strip]:
    """Return the true images, what each system gave away, and what a good guess is worth."""
    truth: dict[str, Sequence[Tensor]] = {panel: report.truth for panel in PANELS}
    out = [Strip("truth", "a client's images", truth)]
    for system in report.results:
        images: dict[str, Sequence[Tensor]] = {
            panel: [each.image for each in reconstructions]
            for panel, reconstructions in system.reconstructions.items()
        }
        note = "" if system.mechanism.partition(":")[0] == "none" else f"+ {system.mechanism}"
        out.append(Strip(system.protocol, note, images, dict(system.reconstructions)))
    guess = report.guesses[SAME_CLASS]
    note = "nearest other of the class"
    images = {MESSAGE: [each.image for each in guess]}
    return [*out, Strip("a guess", note, images, {MESSAGE: guess})]


@styled
def compose(rows: Sequence[Strip], subtitle: str) -> Figure:
    """Draw names on the left and two panels of images, with PSNR and SSIM below each image."""
    images = len(rows[0].panels[MESSAGE])
    columns = min(MAX_PANEL_IMAGES, images)
    panel = max(1.1 * columns, MIN_PANEL_INCHES)
    lefts = {MESSAGE: 0.0, RAW: panel + BETWEEN}
    width = lefts[RAW] + panel
    foot = "Under each image: PSNR, SSIM."
    if images > columns:
        foot += f" The first {columns} of {images} images."
    words = Words("What one message gives back", subtitle, foot)
    sheet = page(words, width=width + 2.9)
    axes = sheet.panels[0]
    labels = ["\n".join([*wrap(row.name, 1.8, 9), *wrap(row.note, 1.8, 9, most=4)]) for row in rows]
    middles = [LANE * i + 0.5 for i in range(len(rows))]
    axes.set_yticks(middles, labels, color=INK)
    axes.set_xticks([])
    axes.grid(False)
    for name, x in lefts.items():
        axes.text(x, -0.15, PANELS[name], fontweight="bold")
    for y, row in zip(middles, rows, strict=True):
        for name, shown in row.panels.items():
            for column, image in enumerate(shown[:columns]):
                x = lefts[name] + 1.1 * column
                _show(axes, x, y - 0.5, image)
                if name in row.scored:
                    scores = row.scored[name][column]
                    text = f"{scores.psnr:.1f} dB, {scores.ssim:.2f}"
                    axes.text(x + 0.5, y + 0.62, text, ha="center", va="center", fontsize=7.5)
    height = LANE * len(rows) + 0.3
    axes.set(xlim=(0, width), ylim=(height - 0.3, -0.3), aspect="equal", anchor="W")
    return sheet.fit(height)


def _show(axes: Axes, x: float, y: float, image: Tensor) -> None:
    from matplotlib.patches import Rectangle

    grey = image.shape[0] == 1
    pixels = (image[0] if grey else image.permute(1, 2, 0)).cpu().numpy()
    shades = "gray" if grey else None
    axes.imshow(pixels, cmap=shades, extent=(x, x + 1, y + 1, y), vmin=0, vmax=1)
    axes.add_patch(Rectangle((x, y), 1, 1, facecolor="none", edgecolor=RULE, linewidth=0.8))
