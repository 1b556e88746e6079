"""Fields of a store that can be asked for: those of a run, of a cell, of a run that failed.

No module that reads a store imports torch: a question is answered before that is loaded.
"""

from collections.abc import Iterable
from typing import Any

from fedbench.core import registry
from fedbench.core.errors import ConfigError, few, nearest
from fedbench.experiment.measurements import MEASURED, Kind

Entry = dict[str, Any]  # values of a run, a cell or a failure, by field; None: not measured

Fields = dict[str, Kind]


def _of(kind: Kind, *names: str) -> Fields:
    return dict.fromkeys(names, kind)


# A defense is ``vote`` where the protocol's own rule counts votes.
PLUG_INS = ("protocol", "mechanism", "defense", "attack", "dataset", "model", "partition")
NAMES = _of("plug-in", *PLUG_INS)
SETTINGS: Fields = {
    **_of("name", "adapter", "split"),
    **_of("whole", "clients", "per_round"),
    **_of("name", "cohorts", "availability"),
    **_of("share", "malicious", "declared"),
    **_of("whole", "rounds", "epochs", "batch_size", "eval_every"),
    **_of("yes", "local_models"),
    **_of("name", "sampling", "sees", "adjacency"),  # of what was priced: what the price holds for
    **_of("number", "delta"),
    **_of("name", "knowledge"),
    **_of("whole", "attack_from", "attack_until", "attack_every", "defense_draw"),
    **_of("name", "augment", "precision", "server_checks"),
}
ADVERSARY = ("knowledge", "attack_from", "attack_until", "attack_every")
# Of other code, on another device or on other data (first 12 digits) numbers may be others.
CODE: Fields = _of("name", "code", "device", "data")
KINDS: Fields = {measurement.name: measurement.kind for measurement in MEASURED}
SEEDS: Fields = {"seed": "whole", "data_seed": "whole"}
RUN: Fields = {"id": "name", **NAMES, **SETTINGS, **SEEDS, **KINDS, **CODE, "file": "name"}
ACCURACY: Fields = {
    "accuracy": "share",
    **_of("number", "accuracy_low", "accuracy_high", "accuracy_std"),  # ends of the 95 % interval
    "clean": "share",  # accuracy of the same system without attack
    "impact": "points",
    "worst": "yes",
    "worst_by_seed": "share",  # mean over seeds of the lowest accuracy of each, over all attacks
}
SEEDED: Fields = {"data_seed": "whole", "seeds": "whole"}
CELL: Fields = {**NAMES, **SETTINGS, **SEEDED, **ACCURACY, **KINDS, **CODE}
_HOW = _of("name", "kind", "error", "message", "traceback") | _of("whole", "tries", "chunk")
FAILED: Fields = {"id": "name", **NAMES, **SETTINGS, **SEEDS, **_HOW, "file": "name"}
# Fields that a scenario leaves open.
OPEN = ("declared", "sees", "adjacency", "data_seed", "knowledge", "attack_until")


def require_field(name: str, fields: Iterable[str], subject: str) -> str:
    """Return the name if it is a field of these; `ConfigError` if not."""
    names = list(fields)
    if name in names:
        return name
    if name in CELL and "accuracy" in names:
        hint = "that is a field of cells: --each cell"
    elif name in RUN and "accuracy" in names:
        hint = "that is a field of runs: --each run"
    elif name in FAILED:
        hint = "that is a field of failed runs: --failed"
    else:
        listed = f"known: {few(names)}; --format csv without --columns names all"
        hint = nearest(name, names, listed)
    raise ConfigError(f"{subject} must name a field, got {name!r}; {hint}")


def plugin_parts(text: str) -> tuple[str, dict[str, str]]:
    """Split a plug-in's name from its parameters; a name of somebody's own may not split."""
    try:
        return registry.split(text)
    except ConfigError:
        return text, {}
