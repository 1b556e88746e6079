"""The sweep that a system must play to become an entry of the closed division."""

from collections.abc import Mapping
from typing import Any

import tomli_w

from fedbench.core.errors import ConfigError
from fedbench.leaderboard.build import alphabet
from fedbench.leaderboard.rules import Rules
from fedbench.sweep.plan import Plan


def plan(rules: Rules, track: str, system: Mapping[str, Any]) -> str:
    """Return a file for `fedbench sweep` with the mandatory cells of a system and no others.

    Args:
        rules: The version.
        track: Of the closed division.
        system: Fields that entries choose: ``protocol``, and those that are not by default.

    Raises:
        ConfigError: no such track, or a system that cannot be played.
    """
    race = rules.named(track)
    if race is None:
        names = ", ".join(each.name for each in rules.track)
        raise ConfigError(f"--track must be one of {names}, got {track!r}")
    sends = alphabet(system["protocol"])
    attacks = rules.ensemble.get(sends)
    if attacks is None:
        raise ConfigError(
            f"version {rules.version} must name attacks on {sends}, which {system['protocol']} "
            "sends, got none; add them in a new version of the rules"
        )
    table = {
        "title": f"Leaderboard, closed division, {track}, rules {rules.version}",
        "seeds": list(race.seeds),
        "scenario": dict(race.scenario),
        "grid": [{**system, "attack": list(attacks)}],
    }
    _, skipped = Plan.of(table, "plan").cells()
    if skipped:
        raise ConfigError(f"every mandatory attack must fit, got {skipped[0].reason}")
    return tomli_w.dumps(table)
