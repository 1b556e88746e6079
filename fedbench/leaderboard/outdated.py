"""Code versions whose attacks were weaker than today's: their entries wait to be played again."""

from __future__ import annotations

# Version of the code, as in `Entry.code`, and what was too weak in it.
WEAKER_ATTACKS = {
    "0.1.0+c040ef68e64e": (
        "played before the searches of dyn-opt, stat-opt and opt-ipm were "
        "mended: at the size of real updates they stopped early, so the worst case may be lower"
    ),
}


def outdated(code: str) -> str:
    """Return why entries that this version of the code played are no worst case; empty if none."""
    return WEAKER_ATTACKS.get(code, "")
