"""Accuracy against epsilon: a panel a protocol, a line a mechanism over its noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedbench.core import registry
from fedbench.core.errors import ConfigError
from fedbench.figures.page import Key, Words
from fedbench.figures.panels import multiples
from fedbench.figures.style import BANDS, FAINT, INK, decades, sign, styled
from fedbench.figures.systems import System, cut, setting, sureness, systems, tens, where
from fedbench.results.aggregate import interval
from fedbench.tables import columns

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fedbench.results.summary import Row

STRIPS = ("no finite ε", "no mechanism")  # right of the numbers
STRIP = 0.16  # the width of one, as a share of the width of the numbers


@dataclass(frozen=True)
class Line:
    """One mechanism with one rule, over its noise.

    Args:
        panel: The protocol.
        name: Mechanism, rule, varied fields.
        systems: Of every noise.
        bare: The same without a mechanism, if it was played.
    """

    panel: str
    name: str
    systems: list[System]
    bare: System | None


def lines(rows: Sequence[Row]) -> list[Line]:
    """Of what has a price; in the order of the best worst cases."""
    priced: dict[tuple[str, str, str], list[System]] = {}
    bare: dict[tuple[str, str], System] = {}
    for system in systems(rows):
        cell = system.shown.cell
        panel, rule = quiet("protocol", cell.protocol), f"{cell.defense}{where(cell)}"
        unnoised = cell.scenario.mechanism == "none"
        if system.price.privacy is not None:
            noise = "noise of its own" if unnoised else quiet("mechanism", cell.scenario.mechanism)
            priced.setdefault((panel, noise, rule), []).append(system)
        elif unnoised:
            bare[panel, rule] = system
    return [
        Line(panel, f"{noise} + {rule}", found, bare.get((panel, rule)))
        for (panel, noise, rule), found in priced.items()
    ]


def quiet(kind: str, text: str) -> str:
    """A plug-in without the parameter that is its noise."""
    name, params = registry.split(text)
    try:
        knob = getattr(registry.load(kind, text), "knob", None)
    except ConfigError:  # not installed here
        return text
    kept = [f"{key}={value}" for key, value in params.items() if not knob or key != knob[0]]
    return f"{name}:{','.join(kept)}" if kept else name


def shows(rows: Sequence[Row]) -> bool:
    """Somebody has paid a finite epsilon."""
    return any(row.epsilon is not None for row in rows)


@styled
def compose(rows: Sequence[Row]) -> Figure:
    """Title, legend, a panel a protocol."""
    found = lines(rows)
    looks = {name: sign(i) for i, name in enumerate(dict.fromkeys(line.name for line in found))}
    names = list(dict.fromkeys(line.panel for line in found))
    worst = columns.in_worst_case(rows)
    caption = (
        f"Benign clients' pooled test data, last round. {_covered(found)} "
        f"{sureness(rows, 'Vertical bar')}"
    )
    words = Words(f"Accuracy{worst} against ε", setting(rows), caption)
    keys = [Key(name, *look, line="-") for name, look in looks.items()]
    keys += (
        [Key(f"{columns.worst_case(rows)} over the attacks", INK, "o", line="-")] if worst else []
    )
    keys.append(Key("no attack", INK, "o", line="--", hollow=True))
    figure, panels = multiples([(name, "") for name in names], words, keys)
    scale = _Scale.of(found)
    for panel, name in zip(panels, names, strict=True):
        here = [line for line in found if line.panel == name]
        scale.dress(panel.axes)
        for slot, line in enumerate(here):
            scale.draw(panel.axes, line, looks[line.name], (slot + 1) / (len(here) + 1))
        panel.axes.tick_params(labelleft=panel.leftmost, labelbottom=panel.lowest)
        if panel.leftmost:
            panel.axes.set_ylabel("accuracy, %")
        if panel.lowest:
            panel.axes.set_xlabel("ε (logarithmic)")
    return figure


def _covered(found: Sequence[Line]) -> str:
    """What the epsilons promise, if all promise the same."""
    priced = [system.price.privacy for line in found for system in line.systems]
    claims = {
        f"at δ = {one.delta:g}, per {one.unit}, {one.adjacency}, before who sees the "
        f"{columns.SEEN[one.sees]}"
        for one in priced
        if one is not None
    }
    return (
        f"ε {claims.pop() if len(claims) == 1 else 'of guarantees that differ in what they cover'}."
    )


@dataclass(frozen=True)
class _Scale:
    """Where an epsilon is: powers of ten, and strips for what is none.

    Args:
        low: The least power.
        high: The largest one.
        strips: Those that hold something.
        percent: Of accuracy, from where to where.
    """

    low: float
    high: float
    strips: list[str]
    percent: tuple[float, float]

    @classmethod
    def of(cls, found: Sequence[Line]) -> _Scale:
        prices = [system.price.epsilon for line in found for system in line.systems]
        priced = [row for line in found for system in line.systems for row in _shown(system)]
        bare = [row for line in found if line.bare for row in _shown(line.bare)]
        powers = [_power(epsilon) for epsilon in prices if epsilon is not None]
        air = max(0.04 * (max(powers) - min(powers)), 0.1)
        ends = [end for row in (*priced, *bare) for end in (row.accuracy, *(_ends(row) or ()))]
        held = {STRIPS[0]: None in prices, STRIPS[1]: bool(bare)}
        strips = [name for name, holds in held.items() if holds]
        return cls(min(powers) - air, max(powers) + air, strips, tens(ends))

    def strip(self, name: str) -> tuple[float, float]:
        """Its left end, and its width."""
        width = STRIP * (self.high - self.low)
        return self.high + width * (self.strips.index(name) + 0.15), 0.85 * width

    def dress(self, axes: Axes) -> None:
        right = self.high + STRIP * (self.high - self.low) * len(self.strips)
        axes.set(xlim=(self.low, right), ylim=self.percent)
        ticks = decades(10**self.low, 10**self.high)
        if len(ticks) > 6:
            ticks = [tick for tick in ticks if math.log10(tick).is_integer()]
        axes.set_xticks([math.log10(tick) for tick in ticks], [f"{tick:g}" for tick in ticks])
        for name in self.strips:
            left, width = self.strip(name)
            axes.axvspan(left, left + width, color=BANDS[0], zorder=1.5)
            x, y = left + 0.06 * width, self.percent[1] - 2
            axes.text(x, y, name, rotation=90, fontsize=7.5, color=FAINT, va="top")

    def draw(self, axes: Axes, line: Line, look: tuple[str, str], slot: float) -> None:
        """The worst case as a line, the clean runs as a dashed one; alone in the strips."""
        places: dict[bool, list[tuple[float, Row]]] = {True: [], False: []}
        for system in line.systems:
            epsilon = system.price.epsilon
            for row in _shown(system):
                if epsilon is not None:
                    places[row.cell.clean].append((_power(epsilon), row))
                else:
                    self._alone(axes, row, look, STRIPS[0], slot)
        for row in _shown(line.bare) if line.bare else ():
            self._alone(axes, row, look, STRIPS[1], slot)
        for clean, spots in places.items():
            spots.sort(key=lambda spot: spot[0])
            key = Key("", *look, line="--" if clean else "-", hollow=clean)
            self._points(axes, spots, key)

    def _alone(self, axes: Axes, row: Row, look: tuple[str, str], strip: str, slot: float) -> None:
        left, width = self.strip(strip)
        spot = (left + width * (0.35 + 0.65 * slot), row)
        self._points(axes, [spot], Key("", *look, hollow=row.cell.clean))

    def _points(self, axes: Axes, spots: Sequence[tuple[float, Row]], key: Key) -> None:
        x, y = [x for x, _ in spots], [100 * row.accuracy for _, row in spots]
        axes.plot(x, y, **key.look(), zorder=4, clip_on=False)
        for at, row in spots:
            if ends := _ends(row):
                low, high = ends
                axes.vlines(at, 100 * low, 100 * high, color=key.colour, alpha=0.4, zorder=3)


def _shown(system: System) -> list[Row]:
    """The clean run, and the worst case."""
    return [row for row in (system.clean, system.worst) if row] or system.rows[:1]


def _ends(row: Row) -> tuple[float, float] | None:
    return cut(interval(row.accuracies()))


def _power(epsilon: float) -> float:
    return math.log10(max(epsilon, 1e-6))
