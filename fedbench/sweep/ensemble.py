"""Attacks that come in numbers: the mandatory ensemble, all that is installed, the strongest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from importlib.resources import files
from itertools import zip_longest
from pathlib import Path

from fedbench.adversary.threat_model import needs
from fedbench.api import Attack, Knowledge
from fedbench.core import registry
from fedbench.core.errors import ConfigError, require

ALL, INSTALLED, STRONGEST = "all", "installed", "strongest"
INSIDE = "leaderboard/board"  # in the package: a wheel has the rules there


def expand(attack: str, protocol: str, knowledge: str | None) -> list[str]:
    """The attacks that one name stands for, against what this protocol sends.

    ``all`` is the mandatory ensemble of the leaderboards' newest rules, ``installed`` every
    installed attack with its defaults, ``strongest:budget=N`` the candidates of a search. Under a
    cap, attacks of an ensemble that can do with less knowledge are played with less.

    Raises:
        ConfigError: a budget that is no number above 0, or another parameter.
    """
    name = registry.split(attack)[0]
    if name == INSTALLED:
        return registry.names("attack")
    if name == ALL:
        found = ensemble(protocol)
    elif name == STRONGEST:
        return candidates(protocol, budget(attack), knowledge)
    else:
        return [attack]
    return list(dict.fromkeys(capped(one, knowledge) for one in found))


def budget(attack: str) -> int:
    """How many configurations ``strongest:budget=N`` tries.

    >>> budget("strongest"), budget("strongest:budget=30")
    (12, 30)
    """
    name, params = registry.split(attack)
    known = set(params) <= {"budget"}
    text = params.get("budget", "12")
    good = text.isascii() and text.isdigit() and len(text) < 7 and int(text) > 0
    require("--attack", attack, known and good, f"{name}:budget=N with N in 1 .. 999999")
    return int(text)


def ensemble(protocol: str) -> list[str]:
    """The mandatory attacks against a protocol's alphabet; what is installed if there is no list.

    A list names what comes with fedbench: an alphabet of a plug-in may have none.
    """
    sends = registry.load("protocol", protocol).sends.__name__
    return list(_lists().get(sends, registry.names("attack")))


@cache
def _lists() -> dict[str, tuple[str, ...]]:
    """Of the newest rules: those installed with fedbench, or those of the repository."""
    from fedbench.leaderboard.rules import newest

    package = Path(str(files("fedbench")))
    inside, repository = package / INSIDE, package.parent / "leaderboards"
    board = inside if inside.is_dir() else repository
    return newest(board).ensemble


def candidates(protocol: str, count: int, knowledge: str | None = None) -> list[str]:
    """The ensemble, then variations of one parameter each, every attack's first ones first.

    What does not fit the protocol's alphabet, must be shown more than the cap allows, does nothing,
    or is a backdoor, whose aim is another than low accuracy, is no candidate.
    """
    sends = registry.load("protocol", protocol).sends
    found = [one for one in ensemble(protocol) if not registry.load("attack", one).idle]
    plugins = {name: registry.plugin("attack", name) for name in registry.names("attack")}
    fitting = [
        name
        for name, plugin in plugins.items()
        if issubclass(sends, plugin.accepts) and plugin.trigger is Attack.trigger
    ]
    for round in zip_longest(*map(variations, fitting)):
        found += [one for one in round if one is not None]
    meanings: dict[str, str] = {}
    cap = Knowledge("all", True, True) if knowledge is None else Knowledge.parse(knowledge)
    for one in (capped(text, knowledge) for text in found):
        plugin = registry.load("attack", one)
        if cap.covers(needs(plugin)):
            meanings.setdefault(registry.describe(registry.split(one)[0], plugin), one)
    return list(meanings.values())[:count]


def variations(name: str) -> Iterator[str]:
    """An attack with one parameter changed at a time, see `Attack.choices`."""
    choices: dict[str, Iterable[object]] = registry.plugin("attack", name).choices
    for param, values in choices.items():
        for value in values:
            yield f"{name}:{param}={str(value).lower()}"


def capped(attack: str, knowledge: str | None) -> str:
    """The attack, with its field ``knows`` lowered to what it may be shown.

    >>> capped("dyn-opt", None)
    'dyn-opt'
    """
    name, params = registry.split(attack)
    plugin = registry.load("attack", attack)
    knows = getattr(plugin, "knows", None)
    if knowledge is None or knows is None or Knowledge.parse(knowledge).covers(needs(plugin)):
        return attack
    changed = params | {"knows": Knowledge.parse(knowledge).tier}
    text = f"{name}:" + ",".join(f"{key}={value}" for key, value in changed.items())
    try:
        registry.load("attack", text)
    except ConfigError:  # it cannot do with so little
        return attack
    return text
