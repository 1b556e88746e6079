"""Identity of a run: a hash of its resolved scenario and of the code that plays it."""

import hashlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path


def fingerprint(resolved: str, modules: Iterable[str], own_data: str = "") -> str:
    """Return the sixteen hex digits that identify a run.

    ``resolved`` is the JSON of the scenario with every default written out, ``modules`` are the
    source files of its plug-ins, ``own_data`` is `Data.identity` of other samples than its own.
    """
    digest = hashlib.sha256(resolved.encode() + own_data.encode())
    digest.update(code_version().encode())
    for module in modules:
        digest.update(Path(module).read_bytes())
    return digest.hexdigest()[:16]


# Packages that start runs or read records.
READERS = (
    *("testing", "audits", "probes", "results", "sweep"),
    *("tables", "figures", "leaderboard", "cli"),
)


@cache
def code_version() -> str:
    """Return the version, and a hash of the source of fedbench and of its attacks and defenses.

    The hash covers what a round is made of. No run imports `READERS`, which a test of the house
    checks, so a new command leaves the ids of a sweep's records as they are.
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
