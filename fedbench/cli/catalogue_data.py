"""Plug-ins and presets as data: what ``list`` and ``show`` say, for other programs."""

from __future__ import annotations

from typing import Any

from fedbench.cli.docstrings import Doc, paragraphs, parameters, prose
from fedbench.core import registry
from fedbench.core.errors import UnknownPluginError


def listed(kinds: list[str]) -> list[dict[str, Any]]:
    """Return kind, name and summary of each plug-in; of one whose import fails, the error."""
    entries: list[dict[str, Any]] = []
    for kind in kinds:
        for name in registry.names(kind):
            entry: dict[str, Any] = {"kind": kind, "name": name}
            try:
                summary = prose(Doc.of(registry.plugin(kind, name)).summary)
            except UnknownPluginError as error:
                entries.append(entry | {"summary": "", "error": str(error)})
            else:
                entries.append(entry | {"summary": summary, "error": None})
    return entries


def presets() -> list[dict[str, Any]]:
    """Return name, title and size of each preset that comes with fedbench."""
    from fedbench.core.presets import preset_names
    from fedbench.sweeps.plan import Plan

    entries = []
    for name in preset_names():
        plan = Plan.preset(name, {})
        runs = len(plan.cells()[0]) * len(plan.seeds)
        entries.append({"kind": "preset", "name": name, "summary": plan.title, "runs": runs})
    return entries


def shown(kind: str, name: str) -> dict[str, Any]:
    """Return all that ``show`` says of a plug-in."""
    from fedbench.cli.catalogue_page import facts

    plugin = registry.plugin(kind, name)
    doc = Doc.of(plugin)
    instance = registry.load(kind, name)
    return {
        "kind": kind,
        "name": name,
        "summary": prose(doc.summary),
        "description": paragraphs(doc.body),
        "parameters": [
            {"name": given.partition("=")[0], "default": given.partition("=")[2], "text": text}
            for given, text in ((pair[0], prose(pair[1])) for pair in parameters(plugin, instance))
        ],
        "typed": registry.describe(name, instance, every=True),
        "facts": dict(facts(kind, instance)),
        "paper": doc.references or None,
        "code": f"{plugin.__module__}.{plugin.__qualname__}",
    }
