"""Reconstructions beside the truth, as a PNG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from fedbench.figures.page import MARGIN, Page, Words, wrap
from fedbench.figures.style import FAINT, RULE, save, styled
from fedbench.probes.inversion import (
    MESSAGE,
    RAW,
    SAME_CLASS,
    InversionReport,
    InvertedSystem,
    Reconstruction,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Inches.
NAME, TILE, GAP = 2.0, 1.0, 0.1
BETWEEN, NARROWEST = 0.3, 2.2  # the two panels
HEAD, UNDER = 0.3, 0.2  # room for the names of panels, for the numbers under an image
MOST = 4  # images in a panel
PANELS = {MESSAGE: "from the message", RAW: "from the raw update, not sent"}


@dataclass(frozen=True, eq=False)
class Strip:
    """A row of the picture.

    Args:
        name: In bold.
        note: Under it.
        panels: By panel, the images ``(C, H, W)``.
        found: By panel, what stands under them; nothing under the truth.
    """

    name: str
    note: str
    panels: dict[str, Sequence[Tensor]]
    found: dict[str, Sequence[Reconstruction]] = field(default_factory=dict)


def draw(report: InversionReport, subtitle: str, path: Path) -> None:
    """Write the PNG.

    Raises:
        ConfigError: the folder cannot be written.
    """
    save(compose(strips(report), subtitle), path)


def strips(report: InversionReport) -> list[Strip]:
    """The truth, what each system gave away, and what a good guess is worth."""
    truth: dict[str, Sequence[Tensor]] = {panel: report.truth for panel in PANELS}
    out = [Strip("truth", "a client's images", truth)]
    for system in report.results:
        images: dict[str, Sequence[Tensor]] = {
            panel: [one.image for one in found] for panel, found in system.found.items()
        }
        out.append(Strip(system.protocol, _note(system), images, dict(system.found)))
    guess = report.guesses[SAME_CLASS]
    note = "nearest other of the class"
    return [*out, Strip("a guess", note, {MESSAGE: [one.image for one in guess]}, {MESSAGE: guess})]


@styled
def compose(rows: Sequence[Strip], subtitle: str) -> Figure:
    """Names on the left, two panels of images, PSNR and SSIM under each."""
    columns = min(MOST, len(rows[0].panels[MESSAGE]))
    panel = max(columns * (TILE + GAP) - GAP, NARROWEST)
    lefts = {MESSAGE: MARGIN + NAME, RAW: MARGIN + NAME + panel + BETWEEN}
    foot = "Under each image: PSNR, SSIM."
    if len(rows[0].panels[MESSAGE]) > columns:
        foot += f" The first {columns} of {len(rows[0].panels[MESSAGE])} images."
    words = Words("What one message gives back", subtitle, foot)
    body = HEAD + len(rows) * (TILE + UNDER + GAP)
    page, top = Page.framed(body, words, width=lefts[RAW] + panel + MARGIN)
    for name, x in lefts.items():
        page.write(x, top + HEAD / 2, PANELS[name], fontweight="bold")
    for number, row in enumerate(rows):
        y = top + HEAD + number * (TILE + UNDER + GAP)
        _label(page, row, y + TILE / 2)
        for name, images in row.panels.items():
            for column, image in enumerate(images[:columns]):
                x = lefts[name] + column * (TILE + GAP)
                _show(page, x, y, image)
                if name in row.found:
                    one = row.found[name][column]
                    text = f"{one.psnr:.1f} dB, {one.ssim:.2f}"
                    page.write(x + TILE / 2, y + TILE + 0.1, text, ha="center", fontsize=7.5)
    return page.figure


def _show(page: Page, x: float, y: float, image: Tensor) -> None:
    axes = page.axes(x, y, TILE, TILE, xticks=[], yticks=[])
    axes.spines[:].set(visible=True, color=RULE, linewidth=0.8)
    grey = image.shape[0] == 1
    shade = image[0] if grey else image.permute(1, 2, 0)
    axes.imshow(shade.cpu().numpy(), cmap="gray" if grey else None, vmin=0, vmax=1)


def _label(page: Page, row: Strip, middle: float) -> None:
    """The name and the note of a row, one line under the other."""
    texts: list[tuple[str, dict[str, Any]]] = []
    for text, style in ((row.name, {"fontweight": "bold"}), (row.note, {"color": FAINT})):
        texts += [(line, style) for line in wrap(text, NAME - 0.1, 9, bold="fontweight" in style)]
    for i, (line, style) in enumerate(texts):
        y = middle + 0.17 * (i - (len(texts) - 1) / 2)
        page.write(MARGIN, y, line, fontsize=9 if "fontweight" in style else 8, **style)


def _note(system: InvertedSystem) -> str:
    return "" if system.mechanism.partition(":")[0] == "none" else f"+ {system.mechanism}"
