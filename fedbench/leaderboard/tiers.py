"""Tiers of a track: its mandatory attacks, with no more than its adversary may be shown."""

from fedbench.adversary.threat_model import needs
from fedbench.api import Knowledge
from fedbench.core import registry
from fedbench.leaderboard.rules import Rules, Track
from fedbench.sweeps.ensemble import capped


def mandatory(rules: Rules, track: Track | None, alphabet: str) -> tuple[str, ...]:
    """Return the attacks on an alphabet that an entry of a track must have withstood, as typed.

    A track whose scenario fixes ``knowledge`` asks for those of the ensemble that this adversary
    can play, each `capped`; others ask for all. None stands for the open division.
    """
    ensemble = rules.attacks(alphabet)
    cap = None if track is None else rules.scenario(track).knowledge
    if cap is None:
        return ensemble
    allowed = Knowledge.parse(cap)
    lowered = dict.fromkeys(capped(attack, cap) for attack in ensemble)
    return tuple(text for text in lowered if allowed.covers(needs(registry.load("attack", text))))
