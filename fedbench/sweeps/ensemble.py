"""Names of several attacks: the mandatory ensemble, all installed ones, the strongest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from itertools import zip_longest
from typing import TYPE_CHECKING

from fedbench.adversary.threat_model import needs
from fedbench.api import TIERS, Attack, Knowledge
from fedbench.core import registry
from fedbench.core.choices import ALL, INSTALLED, STRONGEST
from fedbench.core.errors import ConfigError, require

if TYPE_CHECKING:
    from fedbench.leaderboard.rules import Rules


def expand(attack: str, protocol: str, knowledge: str | None) -> list[str]:
    """Return the attacks that one name stands for, against what this protocol sends.

    ``all`` is the mandatory ensemble of the leaderboards' newest rules, ``installed`` every
    installed attack with its defaults, ``strongest:budget=N`` the candidates of a search. Under a
    cap, attacks of an ensemble that can work with less knowledge are played with less.
    """
    name = registry.split(attack)[0]
    if name == INSTALLED:
        return registry.names("attack")
    if name == ALL:
        return list(dict.fromkeys(capped(text, knowledge) for text in ensemble(protocol)))
    if name == STRONGEST:
        return candidates(protocol, budget(attack), knowledge)
    return [attack]


def budget(attack: str) -> int:
    """Number of configurations that ``strongest:budget=N`` tries; any other parameter is an error.

    >>> budget("strongest"), budget("strongest:budget=30")
    (12, 30)
    """
    name, params = registry.split(attack)
    text = params.get("budget", "12")
    whole = text.isascii() and text.isdigit() and len(text) < 7 and int(text) > 0
    fits = whole and set(params) <= {"budget"}
    require("--attack", attack, fits, f"{name}:budget=N with N in 1 .. 999999")
    return int(text)


def ensemble(protocol: str) -> list[str]:
    """Mandatory attacks against a protocol's alphabet; those on floats if it has no list."""
    sends = registry.load("protocol", protocol).sends.__name__
    return list(_rules().attacks(sends) or registry.names("attack"))


@cache
def _rules() -> Rules:
    """Return the newest rules, installed with fedbench or in the repository."""
    from fedbench.leaderboard.rules import installed, newest

    return newest(installed())


def candidates(protocol: str, count: int, knowledge: str | None = None) -> list[str]:
    """The ensemble, then every other attack, then variations of one parameter, first ones first.

    No candidate is what does not fit the protocol's alphabet, needs more knowledge than the cap
    allows, does nothing, or is a backdoor, whose aim is another than low accuracy.
    """
    sends = registry.load("protocol", protocol).sends
    texts = [text for text in ensemble(protocol) if not registry.load("attack", text).idle]
    plugins = {name: registry.plugin("attack", name) for name in registry.names("attack")}
    fitting = [
        [name, *variations(name)]
        for name, plugin in plugins.items()
        if issubclass(sends, plugin.accepts) and plugin.trigger is Attack.trigger
        if not registry.load("attack", name).idle
    ]
    texts += [text for variants in zip_longest(*fitting) for text in variants if text is not None]
    distinct: dict[str, str] = {}  # by description
    cap = Knowledge("all", True, True) if knowledge is None else Knowledge.parse(knowledge)
    for text in (capped(text, knowledge) for text in texts):
        plugin = registry.load("attack", text)
        if cap.covers(needs(plugin)):
            distinct.setdefault(registry.describe(registry.split(text)[0], plugin), text)
    return list(distinct.values())[:count]


def variations(name: str) -> Iterator[str]:
    """Yield an attack with one parameter changed at a time, see `Attack.choices`."""
    choices: dict[str, Iterable[object]] = registry.plugin("attack", name).choices
    for param, values in choices.items():
        for value in values:
            yield f"{name}:{param}={str(value).lower()}"


def capped(attack: str, knowledge: str | None) -> str:
    """Return the attack, with its fields ``knows`` and ``asks`` lowered to what it may be shown.

    >>> capped("auto", "colluders"), capped("auto:knows=own", "all")
    ('auto:knows=colluders,asks=false', 'auto:knows=own,asks=false')
    """
    name, params = registry.split(attack)
    plugin = registry.load("attack", attack)
    knows = getattr(plugin, "knows", None)
    if knowledge is None or knows is None or Knowledge.parse(knowledge).covers(needs(plugin)):
        return attack
    cap = Knowledge.parse(knowledge)
    lowered: dict[str, str] = {"knows": min(cap.tier, knows, key=TIERS.index)}
    if hasattr(plugin, "asks") and not cap.defense:
        lowered["asks"] = "false"
    text = registry.joined(name, params | lowered)
    try:
        registry.load("attack", text)
    except ConfigError:  # it cannot work with so little
        return attack
    return text
