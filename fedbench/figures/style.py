"""Look shared by all figures: colours, markers and ticks, and how a figure becomes a file."""

from __future__ import annotations

import functools
import hashlib
import io
import math
import tomllib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from fedbench.core.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

STYLE = Path(__file__).with_name("fedbench.mplstyle")
FIXED = Path(__file__).with_name("attack_colours.toml")
USUAL = ("png", "svg")  # formats of files, unless others are asked for
FORMATS = (*USUAL, "pdf", "pgf")

# The palette of Okabe and Ito, which the colour-blind tell apart. Vermilion marks the worst case.
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9")
# Colours of attacks, Paul Tol's "muted" scheme but for its sand, too bright for lines.
ATTACKS = (
    *("#332288", "#882255", "#999933", "#44aa99", "#88ccee"),
    *("#aa4499", "#cc6677", "#e69f00", "#117733"),
)
INK = "#1a1a1a"
FAINT = "#595959"
RULE = "#d9d9d9"
WORST = "#d55e00"
BAR = "#8c9aa5"
SHADE = "#f4f4f2"
BANDS = (SHADE, "white")
MARKERS = "sD^vPXp"

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Mark:
    """Look of a line or a marker, and its label in the legend."""

    label: str
    colour: str
    marker: str = ""  # of matplotlib; empty for none
    line: str = ""  # style of matplotlib; empty for none
    thick: float = 1.6  # points
    hollow: bool = False  # whether the marker is white inside

    def look(self) -> dict[str, Any]:
        """Return the keyword arguments of a `matplotlib.lines.Line2D`."""
        return {
            "color": self.colour,
            "marker": self.marker,
            "markersize": 6.0,
            "markerfacecolor": "white" if self.hollow else self.colour,
            "linestyle": self.line,
            "linewidth": self.thick,
        }


@contextmanager
def look() -> Iterator[None]:
    """Apply the style file, whatever the user's own settings of matplotlib are."""
    from matplotlib import style

    with style.context(STYLE, after_reset=True):
        yield


def styled(compose: Callable[P, R]) -> Callable[P, R]:
    """Wrap a function so that it draws in `look`."""

    @functools.wraps(compose)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> R:
        with look():
            return compose(*args, **kwargs)

    return drawn


def save(figure: Figure, path: Path) -> None:
    """Write a file in one of `FORMATS`, by the path's ending; `ConfigError` if that fails."""
    from fedbench.core.files import write_atomically

    format = path.suffix.removeprefix(".")
    assert format in FORMATS
    write_atomically(path, rendered(figure, format))


def rendered(figure: Figure, format: str, letters: str = "path") -> bytes:
    """Return a file, undated; the letters of an ``svg`` are a ``path`` or text (``none``).

    The letters of a ``pdf`` are text in the figure's font. A ``pgf`` has the letters of the
    document that includes it, and is measured by LaTeX: `ConfigError` where none is installed.
    """
    from matplotlib import rc_context

    buffer = io.BytesIO()
    with look(), rc_context({"svg.fonttype": letters, "pdf.fonttype": 42}):
        undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(format)
        try:
            figure.savefig(buffer, format=format, metadata=undated)
        except (RuntimeError, FileNotFoundError) as error:
            if format != "pgf":
                raise
            raise ConfigError(
                "format pgf needs LaTeX with xelatex, which is not installed; use pdf"
            ) from error
    return buffer.getvalue()


def sign(i: int) -> tuple[str, str]:
    """Return the colour and the marker of the ``i``-th of several things; the first 35 differ."""
    return COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)]


def attack_signs(attacks: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Return the colour and the marker of each attack; its colour is the same in every picture.

    Attacks of one colour, as one attack with several parameters, have different markers as long as
    there are any.

    >>> signs = attack_signs(["alie:z=1.0", "alie:z=2.0", "somebody's"])
    >>> len({colour for colour, _ in signs.values()}), len(set(signs.values()))
    (2, 3)
    """
    signs: dict[str, tuple[str, str]] = {}
    for attack in attacks:
        group, place = _fixed_place(attack.partition(":")[0])
        rotated = [MARKERS[(group + place + i) % len(MARKERS)] for i in range(len(MARKERS))]
        colour = ATTACKS[group]
        free = [marker for marker in rotated if (colour, marker) not in signs.values()]
        signs[attack] = colour, (free or rotated)[0]
    return signs


@functools.cache
def _fixed_place(name: str) -> tuple[int, int]:
    """Return the colour's number, and the attack's among those of the colour, by its name."""
    fixed = tomllib.loads(FIXED.read_text("utf-8"))["colours"]
    for group, names in enumerate(fixed):
        if name in names:
            return group, names.index(name)
    digest = int(hashlib.sha256(name.encode()).hexdigest(), 16)
    group = digest % len(ATTACKS)
    return group, len(fixed[group])


def log_ticks(axis: Axis) -> None:
    """Set the ticks of a logarithmic axis, with their numbers written out."""
    axis.set_ticks(decades(*axis.get_view_interval()))
    axis.set_major_formatter(lambda x, _: f"{x:g}")
    axis.set_ticks([], minor=True)


def decades(low: float, high: float) -> list[float]:
    """Return ticks in [low, high] at 1, 2 and 5, or at powers of ten only; at least one tick.

    >>> decades(0.3, 20), decades(0.8, 3000), decades(2.4, 3.75)
    ([0.5, 1.0, 2.0, 5.0, 10.0, 20.0], [1.0, 10.0, 100.0, 1000.0], [3.0])
    """
    steps = (1, 2, 5) if high < 200 * low else (1,)
    every = max(1, round(math.log10(high / low) / 7))
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1, every)
    ticks = [step * 10.0**power for power in powers for step in steps]
    middle = float(f"{math.sqrt(low * high):.2g}")
    return [x for x in ticks if low <= x <= high] or [middle]
