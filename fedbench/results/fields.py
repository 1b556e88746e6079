"""What can be asked of a store: fields of a run, of a cell, of a run that failed.

Nothing here or in what reads a store imports torch: a question is answered before that is loaded.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any, Literal

from fedbench.core.errors import ConfigError, few

Entry = dict[str, Any]  # of a run, a cell or a failure, by field; None: not measured

# ``share`` is in [0, 1], ``points`` a difference of two; ``plug-in`` reads name:param=value.
Kind = Literal["plug-in", "name", "whole", "number", "share", "points", "yes", "texts"]
Fields = dict[str, Kind]

NAMES: Fields = {
    "protocol": "plug-in",
    "mechanism": "plug-in",
    "defense": "plug-in",  # ``vote`` where the protocol's own rule counts votes
    "attack": "plug-in",
    "dataset": "plug-in",
    "model": "plug-in",
    "partition": "plug-in",
}
SETTINGS: Fields = {
    "clients": "whole",
    "per_round": "whole",
    "malicious": "share",
    "declared": "share",
    "rounds": "whole",
    "epochs": "whole",
    "batch_size": "whole",
    "eval_every": "whole",
    "local_models": "yes",
    "sampling": "name",
    "sees": "name",  # where something was priced: what the price holds for
    "adjacency": "name",  # likewise
    "delta": "number",
    "knowledge": "name",
    "attack_from": "whole",
    "attack_until": "whole",
    "attack_every": "whole",
    "defense_draw": "whole",
    "precision": "name",
    "server_checks": "name",
}
ADVERSARY = ("knowledge", "attack_from", "attack_until", "attack_every")
CODE: Fields = {"code": "name", "device": "name"}  # of other code the numbers may be others
MEASURED: Fields = {
    "accuracy": "share",
    "loss": "number",
    "worst_client": "share",
    "local_accuracy": "share",
    "uplink_bits": "number",  # per parameter and benign message
    "entropy_bits": "number",  # likewise
    "downlink_bits": "number",  # per parameter, client and round
    "total_bits": "number",  # of all packets of the run, both ways
    "model_bits": "number",  # per parameter
    "sparsity": "share",
    "epsilon": "number",
    "unit": "name",  # whose data epsilon covers
    "malicious_messages": "whole",
    "rejected_honest": "whole",
    "rejected_malicious": "whole",
    "skipped_rounds": "whole",
    "validation_accuracy": "share",  # for whoever chooses between runs
    "success": "share",  # of a backdoor
    "true_positive_rate": "share",  # of a rule that detects, mean over rounds
    "false_positive_rate": "share",
    "queries": "whole",  # of the attack, to a snapshot of the server's rule
    "flags": "texts",
    "seconds": "number",
    "peak_memory_mib": "number",
    "attack_seconds": "number",  # of these the adversary's
    "parameters": "whole",
}
SEEDS: Fields = {"seed": "whole", "data_seed": "whole"}
RUN: Fields = {
    "id": "name",
    **NAMES,
    **SETTINGS,
    **SEEDS,
    **MEASURED,
    **CODE,
    "file": "name",
}
ACCURACY: Fields = {
    "accuracy": "share",
    "accuracy_low": "number",  # of the 95 % interval for the mean
    "accuracy_high": "number",
    "accuracy_std": "number",
    "clean": "share",  # accuracy of the same system without attack
    "impact": "points",
    "worst": "yes",
}
CELL: Fields = {
    **NAMES,
    **SETTINGS,
    "data_seed": "whole",
    "seeds": "whole",
    **ACCURACY,
    **MEASURED,
    **CODE,
}
FAILED: Fields = {
    "id": "name",
    **NAMES,
    **SETTINGS,
    **SEEDS,
    "kind": "name",
    "error": "name",
    "message": "name",
    "tries": "whole",
    "chunk": "whole",
    "file": "name",
}
SOMETIMES = (  # measured
    *("loss", "local_accuracy", "entropy_bits", "sparsity", "epsilon", "unit"),
    *("validation_accuracy", "success", "queries", "attack_seconds"),
    *("true_positive_rate", "false_positive_rate"),
)
CHOSEN = ("declared", "sees", "adjacency", "data_seed", "knowledge", "attack_until")
OPTIONAL = frozenset((*CHOSEN, *SOMETIMES))


def known(name: str, fields: Iterable[str], subject: str) -> str:
    """The name, if it is a field of these.

    Raises:
        ConfigError: it is not.
    """
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
        close = difflib.get_close_matches(name, names, n=1)
        listed = f"known: {few(names)}; --format csv without --columns names all"
        hint = f"did you mean {close[0]!r}?" if close else listed
    raise ConfigError(f"{subject} must name a field, got {name!r}; {hint}")
