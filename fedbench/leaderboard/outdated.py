"""Attacks that were weaker than today's: entries that met these wait to be played again."""

from __future__ import annotations

from collections.abc import Iterable

WEAKER = (
    "played before the searches of dyn-opt, stat-opt and opt-ipm were mended: at the size of real "
    "updates they stopped early, so the worst case may be lower"
)


def outdated(attacks: Iterable[str]) -> str:
    """Return why entries that met these attacks are no worst case; empty if nothing is known.

    With the mended searches `dyn-opt` got its parameter ``selected``, and resolved texts write out
    every parameter, so its text tells old searches from new ones, whatever version played them.
    Every ensemble has a `dyn-opt`.

    Args:
        attacks: Texts as records resolve them.

    >>> outdated(["none", "dyn-opt:search=exact,selected=most,start=10.0"])
    ''
    >>> outdated(["none", "dyn-opt:search=exact,start=10.0"])[:35]
    'played before the searches of dyn-o'
    """
    return WEAKER if any(map(_searched_early, attacks)) else ""


def _searched_early(attack: str) -> bool:
    name, _, parameters = attack.partition(":")
    return name == "dyn-opt" and "start=" in parameters and "selected=" not in parameters
