"""Accuracy against epsilon: a panel per protocol, a line per mechanism over its noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fedbench.core import registry
from fedbench.core.errors import ConfigError
from fedbench.figures.layout import PLAIN, View, Words, fit_multiples, multiples
from fedbench.figures.style import INK, SHADE, Mark, decades, sign, styled
from fedbench.figures.systems import (
    SystemRows,
    ends,
    setting,
    sureness,
    systems,
    tens,
    tested,
    varied,
)
from fedbench.tables import columns

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fedbench.results.summary import Row

STRIPS = ("no finite ε", "no mechanism")  # places right of the numbers
STRIP = 0.16  # width of such a place, as a share of the width of the numbers


@dataclass(frozen=True)
class NoiseLine:
    """One mechanism with one defense, over its noise, and all marks of its panel."""

    panel: str  # protocol
    name: str  # mechanism, defense and varied fields
    systems: list[SystemRows]  # one for every noise
    bare: SystemRows | None  # the same system without a mechanism, if it was played

    @property
    def marks(self) -> list[tuple[float | str, Row]]:
        """The clean row and the worst row of every system, each with its epsilon or strip."""
        placed: list[tuple[float | str, SystemRows]] = []
        for system in self.systems:
            epsilon = system.cost["epsilon"]
            placed.append((STRIPS[0] if epsilon is None else epsilon, system))
        placed += [(STRIPS[1], self.bare)] if self.bare else []
        return [(place, row) for place, system in placed for row in system.ends]


def lines(rows: Sequence[Row]) -> list[NoiseLine]:
    """Return a line per mechanism and defense, in the order of the best worst cases."""
    priced: dict[tuple[str, str, str], list[SystemRows]] = {}
    bare: dict[tuple[str, str], SystemRows] = {}
    for system in systems(rows):
        cell = system.shown.cell
        panel = quiet("protocol", cell.protocol)
        defense = f"{cell.defense}{varied(cell)}"
        unnoised = cell.scenario.mechanism == "none"
        if system.cost.privacy is not None:
            noise = "noise of its own" if unnoised else quiet("mechanism", cell.scenario.mechanism)
            priced.setdefault((panel, noise, defense), []).append(system)
        elif unnoised:
            bare[panel, defense] = system
    return [
        NoiseLine(panel, f"{noise} + {defense}", priced_systems, bare.get((panel, defense)))
        for (panel, noise, defense), priced_systems in priced.items()
    ]


def quiet(kind: str, text: str) -> str:
    """Return the text of a plug-in without the parameter that is its noise."""
    name, params = registry.split(text)
    try:
        knob = getattr(registry.load(kind, text), "knob", None)
    except ConfigError:  # not installed here
        return text
    return registry.joined(name, {k: v for k, v in params.items() if not knob or k != knob[0]})


def shows(rows: Sequence[Row]) -> bool:
    """Return True if any row has a finite epsilon."""
    return any(row["epsilon"] is not None for row in rows)


@styled
def compose(rows: Sequence[Row], view: View = PLAIN) -> Figure:
    """Draw a panel per protocol."""
    drawn = lines(rows)
    looks = {name: sign(i) for i, name in enumerate(dict.fromkeys(line.name for line in drawn))}
    names = list(dict.fromkeys(line.panel for line in drawn))
    worst = columns.in_worst_case(rows)
    caption = (
        f"{tested(rows).capitalize()}, last round. {_covered(drawn)} "
        f"{sureness(rows, 'Vertical bar')}"
    )
    keys = [Mark(name, *look, line="-") for name, look in looks.items()]
    if worst:
        keys.append(Mark(f"{columns.worst_case(rows)} over the attacks", INK, "o", line="-"))
    keys.append(Mark("no attack", INK, "o", line="--", hollow=True))
    words = Words(f"Accuracy{worst} against ε", setting(rows), caption)
    sheet = multiples(words, keys, [(name, "") for name in names], "ε (logarithmic)", view.inches)
    places = _places(drawn)
    for axes, name in zip(sheet.panels, names, strict=False):
        here = [line for line in drawn if line.panel == name]
        _dress(axes, places)
        for slot, line in enumerate(here, 1):
            _draw(axes, line, Mark("", *looks[line.name]), places, slot / (len(here) + 1))
    shown = [row for line in drawn for _, row in line.marks]
    heights = [x for row in shown for x in (row.accuracy, *(ends(row) or ()))]
    sheet.panels[0].set_ylim(tens(heights))
    return fit_multiples(sheet)


def _covered(drawn: Sequence[NoiseLine]) -> str:
    """Say what the epsilons promise, if all promise the same."""
    claims = {
        f"ε at δ = {claim.delta:g}, per {claim.unit}, {claim.adjacency}, before who sees the "
        f"{columns.SEEN[claim.sees]}."
        for line in drawn
        for system in line.systems
        if (claim := system.cost.privacy) is not None
    }
    return claims.pop() if len(claims) == 1 else "ε of guarantees that differ in what they cover."


def _places(drawn: Sequence[NoiseLine]) -> dict[str, tuple[float, float]]:
    """Return the ends of the axis of powers of ten, and of each strip that holds something."""
    used = {place for line in drawn for place, _ in line.marks}
    powers = [_power(epsilon) for epsilon in used if isinstance(epsilon, float)]
    air = max(0.04 * (max(powers) - min(powers)), 0.1)
    low = min(powers) - air
    high = max(powers) + air
    places = {"ε": (low, high)}
    width = STRIP * (high - low)
    for strip in (strip for strip in STRIPS if strip in used):
        left = max(right for _, right in places.values()) + 0.15 * width
        places[strip] = (left, left + 0.85 * width)
    return places


def _power(epsilon: float) -> float:
    return math.log10(max(epsilon, 1e-6))


def _dress(axes: Axes, places: dict[str, tuple[float, float]]) -> None:
    """Set the ticks and the limits of a panel, and shade its strips."""
    low, high = places["ε"]
    ticks = decades(10**low, 10**high)
    if len(ticks) > 6:
        ticks = [tick for tick in ticks if math.log10(tick).is_integer()]
    axes.set_xticks([math.log10(tick) for tick in ticks], [f"{tick:g}" for tick in ticks])
    axes.set_xlim(low, max(right for _, right in places.values()))
    for name, (left, right) in places.items():
        if name in STRIPS:
            axes.axvspan(left, right, color=SHADE, zorder=1.5)
            look: dict[str, Any] = {"rotation": 90, "fontsize": 7.5, "va": "top"}
            x = left + 0.06 * (right - left)
            axes.text(x, 0.97, name, transform=axes.get_xaxis_transform(), **look)


def _draw(
    axes: Axes, line: NoiseLine, key: Mark, places: dict[str, tuple[float, float]], slot: float
) -> None:
    """Draw the worst cases as a line and the clean runs as a dashed one; alone in the strips."""
    connected: dict[bool, list[tuple[float, float]]] = {}
    for place, row in line.marks:
        clean = row.cell.clean
        y = 100 * row.accuracy
        if isinstance(place, float):
            x = _power(place)
            connected.setdefault(clean, []).append((x, y))
        else:
            left, right = places[place]
            x = left + (right - left) * (0.35 + 0.65 * slot)
            axes.plot(x, y, **replace(key, hollow=clean).look(), zorder=4, clip_on=False)
        if bounds := ends(row):
            low, high = bounds
            axes.vlines(x, 100 * low, 100 * high, color=key.colour, alpha=0.4, zorder=3)
    for clean, spots in connected.items():
        look = replace(key, line="--" if clean else "-", hollow=clean).look()
        axes.plot(*zip(*sorted(spots), strict=True), **look, zorder=4, clip_on=False)
