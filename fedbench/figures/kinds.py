"""Kinds of figures that ``fedbench plot`` draws, by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedbench.figures import bits, epsilon, heatmap, impact, rounds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fedbench.results.summary import Row


@dataclass(frozen=True)
class Kind:
    """One kind of figure.

    Args:
        shows: Tells whether there is anything to see in these rows.
        lacks: What they lack, if not.
        compose: Draws the figure.
    """

    shows: Callable[[Sequence[Row]], bool]
    lacks: str
    compose: Callable[[Sequence[Row]], Figure]


KINDS = {
    "rounds": Kind(rounds.shows, "two looks at the test data", rounds.compose),
    "bits": Kind(bits.shows, "rows, all of whose bits are counted", bits.compose),
    "heatmap": Kind(heatmap.shows, "an attack", heatmap.compose),
    "impact": Kind(impact.shows, "a seed with and without attack", impact.compose),
    "epsilon": Kind(epsilon.shows, "a finite epsilon", epsilon.compose),
}
