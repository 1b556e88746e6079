"""What a run is called by: its resolved scenario and the code that plays it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedbench.experiment.scenario import Scenario


def fingerprint(resolved: Scenario, modules: Iterable[str], own_data: str = "") -> str:
    """Return the id of a resolved scenario whose plug-ins are defined in these files.

    ``own_data`` identifies samples that replace those of the data set, see `Scenario.id`.
    """
    digest = hashlib.sha256(resolved.model_dump_json().encode() + own_data.encode())
    digest.update(code_version().encode())
    for module in modules:
        digest.update(Path(module).read_bytes())
    return digest.hexdigest()[:16]


# Packages that start runs or read records.
READERS = ("sweep", "leaderboard", "bench", "audit", "probes", "pictures", "cli")


@cache
def code_version() -> str:
    """Version, and a hash of the source of fedbench and of its own attacks and defenses.

    Only of what a round is made of: no run imports `READERS`, the test of the house sees to it, so
    a new command leaves the records of a sweep as they are.
    """
    from importlib.metadata import version
    from importlib.util import find_spec

    digest = hashlib.sha256()
    for package in ("fedbench", "fedbench_attacks", "fedbench_defenses"):
        spec = find_spec(package)
        for folder in (spec.submodule_search_locations or []) if spec else []:
            for path in sorted(Path(folder).rglob("*.py")):
                name = path.relative_to(folder)
                if name.parts[0] not in READERS:
                    digest.update(name.as_posix().encode() + path.read_bytes())
    return f"{version('fedbench-toolkit')}+{digest.hexdigest()[:12]}"
