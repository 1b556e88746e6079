"""Installed attacks whose messages another attack may try."""

from collections.abc import Iterable

from fedbench.api import Attack, Knowledge
from fedbench.core import registry
from fedbench.core.errors import UnknownPluginError
from fedbench.payload import Payload


def importable(names: Iterable[str]) -> dict[str, type[Attack]]:
    """Return the classes of installed attacks by name, without those that cannot be imported."""
    classes = {}
    for name in names:
        try:
            classes[name] = registry.plugin("attack", name)
        except UnknownPluginError:  # of another package, which is broken
            continue
    return classes


def installed(alphabet: type[Payload], allowed: Knowledge) -> list[str]:
    """Return the installed attacks on an alphabet that need no other training or knowledge."""
    names = []
    for name, plugin in importable(registry.names("attack")).items():
        if not issubclass(alphabet, plugin.accepts) or plugin.trigger is not Attack.trigger:
            continue
        attack = registry.load("attack", name)
        needs = attack.needs()
        rehearses = needs.defense and needs.data  # no budget would count its gradients
        if not (attack.idle or attack.trains or rehearses) and allowed.covers(needs):
            names.append(name)
    return names
