"""Reconstructions beside the truth, as a PNG."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from fedbench.cli.chart import FAINT, INK, RULE
from fedbench.probes.inversion import MESSAGE, RAW, SAME_CLASS, Found, Report, System

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Inches.
NAME, TILE, GAP, MARGIN, FOOT = 2.0, 1.0, 0.1, 0.25, 0.4
BETWEEN = 0.3  # the two panels
UNDER = 0.2  # room for the numbers under an image
LETTERS, MOST = 26, 4  # of a name in a line; images in a panel
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
    found: dict[str, Sequence[Found]] = field(default_factory=dict)


def draw(report: Report, subtitle: str, path: Path) -> None:
    """Write the PNG.

    Raises:
        ConfigError: the folder cannot be written.
    """
    from fedbench.files import write_atomically

    buffer = io.BytesIO()
    compose(strips(report), subtitle).savefig(buffer, format="png")
    write_atomically(path, buffer.getvalue())


def strips(report: Report) -> list[Strip]:
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


def compose(rows: Sequence[Strip], subtitle: str) -> Figure:
    """Names on the left, two panels of images, PSNR and SSIM under each."""
    from matplotlib.figure import Figure

    columns = min(MOST, len(rows[0].panels[MESSAGE]))
    panel = columns * (TILE + GAP) - GAP
    lefts = {MESSAGE: MARGIN + NAME, RAW: MARGIN + NAME + max(panel, 2.2) + BETWEEN}
    width = lefts[RAW] + max(panel, 2.2) + MARGIN
    lines = textwrap.wrap(subtitle, int((width - 2 * MARGIN) / 0.072))
    top = 1.0 + 0.18 * (len(lines) - 1)
    height = top + len(rows) * (TILE + UNDER + GAP) + FOOT
    figure = Figure(figsize=(width, height), dpi=160, facecolor="white")

    def write(x: float, y: float, text: str, **style: Any) -> None:
        look: dict[str, Any] = {"va": "center", "color": INK, "fontsize": 9} | style
        figure.text(x / width, 1 - y / height, text, **look)

    def show(x: float, y: float, image: Tensor) -> None:
        box = (x / width, 1 - (y + TILE) / height, TILE / width, TILE / height)
        axes = figure.add_axes(box, xticks=[], yticks=[])
        for spine in axes.spines.values():
            spine.set(color=RULE, linewidth=0.8)
        grey = image.shape[0] == 1
        shade = image[0] if grey else image.permute(1, 2, 0)
        axes.imshow(shade.cpu().numpy(), cmap="gray" if grey else None, vmin=0, vmax=1)

    write(MARGIN, 0.28, "What one message gives back", fontsize=14, fontweight="bold")
    for i, line in enumerate(lines):
        write(MARGIN, 0.53 + 0.18 * i, line, color=FAINT)
    for name, x in lefts.items():
        write(x, top - 0.14, PANELS[name], fontweight="bold")
    for number, row in enumerate(rows):
        y = top + number * (TILE + UNDER + GAP)
        _label(row, y + TILE / 2, write)
        for name, images in row.panels.items():
            for column, image in enumerate(images[:columns]):
                x = lefts[name] + column * (TILE + GAP)
                show(x, y, image)
                if name in row.found:
                    one = row.found[name][column]
                    text = f"{one.psnr:.1f} dB, {one.ssim:.2f}"
                    write(x + TILE / 2, y + TILE + 0.1, text, ha="center", fontsize=7.5)
    foot = "Under each image: PSNR, SSIM."
    if len(rows[0].panels[MESSAGE]) > columns:
        foot += f" The first {columns} of {len(rows[0].panels[MESSAGE])} images."
    write(MARGIN, height - 0.2, foot, color=FAINT, fontsize=8)
    return figure


def _label(row: Strip, middle: float, write: Any) -> None:
    """The name and the note of a row, one line under the other."""

    def wrapped(text: str) -> list[str]:
        return textwrap.wrap(text.replace(",", ", "), LETTERS, break_on_hyphens=False)

    texts: list[tuple[str, dict[str, Any]]] = [
        (line, {"fontweight": "bold"}) for line in wrapped(row.name)
    ]
    texts += [(line, {"color": FAINT, "fontsize": 8}) for line in wrapped(row.note)]
    for i, (line, style) in enumerate(texts):
        write(MARGIN, middle + 0.17 * (i - (len(texts) - 1) / 2), line, **style)


def _note(system: System) -> str:
    return "" if system.mechanism.partition(":")[0] == "none" else f"+ {system.mechanism}"
