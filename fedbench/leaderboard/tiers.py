"""Tiers of a track: its mandatory attacks, with no more than its adversary may be shown."""

import dataclasses
from collections.abc import Iterator

from fedbench.adversary.threat_model import needs
from fedbench.api import Knowledge
from fedbench.core import registry
from fedbench.core.errors import ConfigError
from fedbench.leaderboard.rules import Rules, Track


def mandatory(rules: Rules, track: Track | None, alphabet: str) -> tuple[str, ...]:
    """Return the attacks on an alphabet that an entry of a track must have withstood, as typed.

    A track whose scenario fixes ``knowledge`` asks for those of the ensemble that this adversary
    can play, `within` it; others ask for all. None stands for the open division.
    """
    ensemble = rules.attacks(alphabet)
    most = None if track is None else rules.scenario(track).knowledge
    if most is None:
        return ensemble
    return tuple(dict.fromkeys(_played(ensemble, Knowledge.parse(most))))


def _played(ensemble: tuple[str, ...], allowed: Knowledge) -> Iterator[str]:
    for attack in ensemble:
        if (narrowed := within(attack, allowed)) is not None:
            yield narrowed


def within(attack: str, allowed: Knowledge) -> str | None:
    """Return an attack that is shown at most ``allowed``; None if it needs more in every form.

    Attacks that estimate honest messages say by ``knows`` from whose; those that may ask the
    server's rule say so by ``asks``.

    >>> within("alie:z=1.5", Knowledge("colluders"))
    'alie:z=1.5,knows=colluders'
    >>> within("dyn-opt", Knowledge("colluders")) is None
    True
    """
    plugin = registry.load("attack", attack)
    if allowed.covers(needs(plugin)):
        return attack
    fields = {field.name for field in dataclasses.fields(plugin)}
    less = {"knows": allowed.tier, "asks": str(allowed.defense).lower()}
    params = [f"{name}={value}" for name, value in less.items() if name in fields]
    narrowed = f"{attack}{',' if ':' in attack else ':'}{','.join(params)}"
    try:
        less_shown = registry.load("attack", narrowed)
    except ConfigError:  # no parameter to show it less, or none that shows it so little
        return None
    return narrowed if allowed.covers(needs(less_shown)) else None
