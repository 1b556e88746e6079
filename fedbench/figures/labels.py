"""Labels beside points, placed so that nothing overlaps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from fedbench.figures.style import FAINT

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.text import Annotation

Spot = tuple[float, float]

NEAR = 7.0  # points from the middle of a marker to a label beside it
RINGS = (22.0, 40.0, 60.0, 85.0)  # points to labels that need a line to their marker
SIDES: tuple[Spot, ...] = ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (1, -1), (-1, 1), (-1, -1))
SIDES += ((1, 0.5), (1, -0.5), (-1, 0.5), (-1, -0.5))
TURNS = 16  # directions on a ring
LINE = {"arrowstyle": "-", "color": FAINT, "linewidth": 0.6, "shrinkA": 0, "shrinkB": 3}


def place_labels(
    axes: Axes,
    spots: Sequence[Spot],
    texts: Sequence[str],
    obstacles: Sequence[tuple[Spot, Spot]] = (),
    looks: Sequence[dict[str, Any]] = (),
    lines: bool = True,
    near: float = NEAR,
) -> list[Annotation | None]:
    """Write each text at the first free place beside its point; return None where there is none.

    Labels cover none of the ``obstacles``, which are segments. With ``lines`` a label may stand
    farther away than ``near``, with a line to its point. The layout of the figure must be final,
    since places are compared in pixels.
    """
    from matplotlib.path import Path
    from matplotlib.transforms import Bbox

    scale = axes.figure.dpi / 72
    frame = axes.get_window_extent()
    points = axes.transData.transform(spots)
    taken = [Bbox([p - 5 * scale, p + 5 * scale]) for p in points]
    for ends in obstacles:
        corners = axes.transData.transform(ends)
        taken.append(Bbox([corners.min(axis=0) - 2 * scale, corners.max(axis=0) + 2 * scale]))
    leaders: list[Path] = []
    labels: list[Annotation | None] = [None] * len(texts)
    for i, text in enumerate(texts):
        look = looks[i] if looks else {}
        probe = axes.text(0, 0, text, transform=None, **look)
        width, height = probe.get_window_extent().size
        probe.remove()
        for dx, dy, far in _offsets(width / scale, height / scale, near, lines):
            middle = points[i] + (scale * dx, scale * dy)
            half = (width / 2 + scale, height / 2)
            box = Bbox([middle - half, middle + half])
            leader = Path([points[i], middle])
            inside = frame.x0 <= box.x0 and box.x1 <= frame.x1
            inside &= frame.y0 <= box.y0 and box.y1 <= frame.y1
            if not inside or any(box.overlaps(other) for other in taken):
                continue
            names = taken[len(points) + len(obstacles) :] if far else []
            crossed = [(path, box) for path in leaders] + [(leader, name) for name in names]
            if any(path.intersects_bbox(other, filled=False) for path, other in crossed):
                continue
            labels[i] = axes.annotate(
                text,
                spots[i],
                (dx, dy),
                textcoords="offset points",
                ha="center",
                va="center",
                arrowprops=LINE if far else None,
                zorder=5,
                **look,
            )
            taken.append(box)
            leaders += [leader] if far else []
            break
    return labels


def _offsets(
    width: float, height: float, near: float, lines: bool
) -> Iterator[tuple[float, float, bool]]:
    """Yield offsets of the middle of a label from its point, in points; True if it needs a line."""
    for right, up in SIDES:
        yield right * (near + width / 2), up * (0.8 * near + height / 2), False
    for radius in RINGS if lines else ():
        for turn in range(TURNS):
            angle = 2 * math.pi * turn / TURNS
            across = math.cos(angle) * (radius + width / 2)
            yield across, math.sin(angle) * (radius + height / 2), True
