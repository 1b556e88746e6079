"""One look for all pictures: colours, fonts and rules, and how a picture becomes a file."""

from __future__ import annotations

import functools
import io
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

STYLE = Path(__file__).with_name("fedbench.mplstyle")
FORMATS = ("png", "svg")

# Okabe and Ito: told apart by the colour-blind. Vermilion is kept for the worst case.
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9")
INK, FAINT, RULE, WORST, BAR = "#1a1a1a", "#595959", "#d9d9d9", "#d55e00", "#8c9aa5"
BANDS = ("#f4f4f2", "white")
MARKERS = "sD^vPXp"

P = ParamSpec("P")
R = TypeVar("R")


@contextmanager
def look() -> Iterator[None]:
    """The style file, whatever the user's own settings of matplotlib are."""
    from matplotlib import style

    with style.context(STYLE, after_reset=True):
        yield


def styled(compose: Callable[P, R]) -> Callable[P, R]:
    """A function that draws in `look`."""

    @functools.wraps(compose)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> R:
        with look():
            return compose(*args, **kwargs)

    return drawn


def save(figure: Figure, path: Path) -> None:
    """Write a PNG or an SVG, as the path ends; equal figures make equal files.

    Raises:
        ConfigError: the folder cannot be written.
    """
    from fedbench.core.files import write_atomically

    format = path.suffix.removeprefix(".")
    assert format in FORMATS
    buffer = io.BytesIO()
    with look():
        metadata = {"Date": None} if format == "svg" else {}
        figure.savefig(buffer, format=format, metadata=metadata)
    write_atomically(path, buffer.getvalue())


def sign(i: int) -> tuple[str, str]:
    """Colour and marker of the ``i``-th of several things; the first 35 differ."""
    return COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)]


def log_ticks(axis: Axis) -> None:
    """Ticks of a logarithmic axis, written out."""
    axis.set_ticks(decades(*axis.get_view_interval()))
    axis.set_major_formatter(lambda x, _: f"{x:g}")
    axis.set_ticks([], minor=True)


def decades(low: float, high: float) -> list[float]:
    """Numbers from one to the other at 1, 2 and 5, or at powers of ten only; one at least.

    >>> decades(0.3, 20), decades(2.4, 3.75)
    ([0.5, 1.0, 2.0, 5.0, 10.0, 20.0], [3.0])
    """
    steps = (1, 2, 5) if high < 200 * low else (1,)
    every = max(1, round(math.log10(high / low) / 7))
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1, every)
    found = [step * 10.0**power for power in powers for step in steps]
    middle = float(f"{math.sqrt(low * high):.2g}")
    return [x for x in found if low <= x <= high] or [middle]
