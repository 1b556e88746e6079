"""The runs of a store, from its files or, where these did not change, from what they said last."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic_core import from_json, to_json

from fedbench.errors import ConfigError
from fedbench.files import write_atomically
from fedbench.sweep.fields import FAILED, NAMES, RUN, SEEDS, SETTINGS, Entry, Fields, fits

SCHEMA = 2  # of records; theirs would import torch
INDEX = ".index"  # a cache: it may be deleted at any time, and whoever writes last wins
VERSION = 1  # of the index: another meaning of a field is another version
MOST = 256 << 20  # bytes of a file
SEAL = re.compile(
    rb' "digest": "([0-9a-f]{64})",\n'
    rb' "timing": \{\n  "seconds": [^\s,]+,\n  "peak_memory_mib": [^\s,]+\n \}\n\}\n'
)
TAIL = 400  # bytes in which the seal stands

# Why a file is no run of this store: what it is, and what to do.
TROUBLES = {
    "torn": ("no whole JSON", "run the scenario again"),
    "foreign": ("no record", "move it to another folder"),
    "older": ("a record of an older schema", "fedbench results {folder} --migrate"),
    "newer": ("a record of a newer schema", "update fedbench"),
    "changed": ("other content than its digest says", "run the scenario again"),
    "closed": ("not readable", "change its permissions"),
}
Stamp = tuple[int, int]  # bytes, and nanoseconds when it was written


@dataclass
class Listing:
    """What a folder holds.

    Args:
        folder: Which.
        entries: Of the files that are good, in the order in which they were written.
        troubles: By what is wrong, the names of the others.
    """

    folder: Path
    entries: list[Entry] = field(default_factory=list)
    troubles: dict[str, list[str]] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """What is wrong, a line a kind, with the remedy."""
        return [
            f"left out {len(names)} file{'s' * (len(names) > 1)}: {TROUBLES[kind][0]}, first "
            f"{names[0]!r}; {TROUBLES[kind][1].format(folder=self.folder)}"
            for kind, names in self.troubles.items()
        ]


def runs(folder: Path) -> Listing:
    """The runs with a record.

    Raises:
        ConfigError: there is no such folder.
    """
    stamps = _stamps(folder)
    known = _remembered(folder)
    said = {}
    for name, stamp in stamps.items():
        before = known.get(name)
        told = before[1] if before and before[0] == stamp else _read(folder / name, stamp, record)
        if told is not None:
            said[name] = (stamp, told)
    if any(known.get(name) != told for name, told in said.items()) or len(said) < len(known):
        _remember(folder, said)
    return _listing(folder, said)


def failures(folder: Path) -> Listing:
    """The runs that failed."""
    where = folder / "failed"
    stamps = _stamps(where) if where.is_dir() else {}
    read = {name: (stamp, _read(where / name, stamp, failure)) for name, stamp in stamps.items()}
    return _listing(where, {name: (s, told) for name, (s, told) in read.items() if told})


def failed(folder: Path) -> int:
    """How many runs failed."""
    where = folder / "failed"
    return len(_stamps(where)) if where.is_dir() else 0


def _listing(folder: Path, said: dict[str, tuple[Stamp, Entry | str]]) -> Listing:
    listing = Listing(folder)
    for name, (_, told) in sorted(said.items(), key=lambda item: (item[1][0][1], item[0])):
        if isinstance(told, str):
            listing.troubles.setdefault(told, []).append(name)
        else:
            listing.entries.append(told)
    return listing


def _stamps(folder: Path) -> dict[str, Stamp]:
    """Of each file that may hold a record, in the order of their names."""
    try:
        with os.scandir(folder) as found:
            listed = sorted(one.name for one in found if one.name.endswith(".json"))
    except OSError as error:
        raise ConfigError(
            f"STORE must be a folder of records, got {str(folder)!r} ({error.strerror}); "
            "fedbench attack makes one"
        ) from error
    stamps = {}
    for name in listed:
        with contextlib.suppress(OSError):  # it went away, or is a link to nowhere
            about = os.stat(folder / name)
            if stat.S_ISREG(about.st_mode) and not name.startswith("."):
                stamps[name] = (about.st_size, about.st_mtime_ns)
    return stamps


def _read(path: Path, stamp: Stamp, parse: Callable[[bytes, str], Entry | str]) -> Entry | str | None:
    if stamp[0] > MOST:
        return "foreign"
    try:
        return parse(path.read_bytes(), path.name)
    except FileNotFoundError:
        return None
    except OSError:
        return "closed"


def record(data: bytes, name: str) -> Entry | str:
    """What a record says, or what is wrong with it."""
    try:
        read: Any = from_json(data)
    except ValueError:
        return "torn"
    version = read.get("schema_version") if isinstance(read, dict) else None
    if type(version) is not int:
        return "foreign"
    if version != SCHEMA:
        return "older" if version < SCHEMA else "newer"
    entry = _summary(read, name) if sealed(data) else None
    return _asked(data, name) if entry is None else entry


def sealed(data: bytes) -> bool:
    """Is this a record as it was written? If not, it may still be one, in another layout."""
    start = data.rfind(b'\n "digest"', -TAIL) + 1
    seal = SEAL.fullmatch(data, start)
    return seal is not None and hashlib.sha256(data[:start]).hexdigest().encode() == seal[1]


def _asked(data: bytes, name: str) -> Entry | str:
    """What the schema says to a record that is not as it was written."""
    from pydantic import ValidationError

    from fedbench.record import Record

    try:
        read = Record.model_validate_json(data)
    except (ValidationError, ConfigError):
        return "foreign"
    if read.digest != read.sealed().digest:
        return "changed"
    return _summary(from_json(read.to_json()), name) or "foreign"


def _summary(read: dict[str, Any], name: str) -> Entry | None:
    """A run's fields; None if they are not what a run can have."""
    try:
        scenario, result, rounds = read["scenario"], read["result"], read["rounds"]
        environment, privacy = read["environment"], read["privacy"]
        entry: Entry = {
            **{field: scenario[field] for field in (*NAMES, *SETTINGS, *SEEDS)},
            "id": read["id"],
            "accuracy": result["accuracy"],
            "loss": result["loss"],
            "worst_client": result["per_client"]["min"],
            "local_accuracy": result["local_accuracy"],
            "uplink_bits": result["uplink_bits_per_parameter"],
            "entropy_bits": result["entropy_bits_per_parameter"],
            "downlink_bits": result["downlink_bits_per_parameter"],
            "total_bits": sum(one["uplink_bits"] + one["downlink_bits"] for one in rounds),
            "model_bits": result["model_bits"] / read["parameters"],
            "sparsity": result["sparsity"],
            "epsilon": result["epsilon"],
            "unit": privacy and privacy["unit"],
            "malicious_messages": sum(one["malicious"] for one in rounds),
            "rejected_honest": sum(one["rejected_honest"] for one in rounds),
            "rejected_malicious": sum(one["rejected_malicious"] for one in rounds),
            "skipped_rounds": result["skipped_rounds"],
            "flags": read["flags"],
            "seconds": read["timing"]["seconds"],
            "peak_memory_mib": read["timing"]["peak_memory_mib"],
            "parameters": read["parameters"],
            "code": environment["fedbench"],
            "device": environment["device"],
            "file": name,
        }
        if read["vote"]:
            entry["defense"] = "vote"
        if privacy:
            entry |= {"sees": privacy["sees"], "adjacency": privacy["adjacency"]}
    except (LookupError, TypeError, ArithmeticError):
        return None
    return _ordered(entry, RUN)


def failure(data: bytes, name: str) -> Entry | str:
    """What the file of a failed run says, or what is wrong with it."""
    try:
        read: Any = from_json(data)
    except ValueError:
        return "torn"
    try:
        own = {field: read[field] for field in ("id", "kind", "error", "tries", "chunk")}
        message = " ".join(read["message"].split())
        entry = read["scenario"] | own | {"message": message, "file": name}
    except (LookupError, TypeError, AttributeError):
        return "foreign"
    return _ordered(entry, FAILED) or "foreign"


def _ordered(entry: Entry, fields: Fields) -> Entry | None:
    try:
        ordered = {name: entry[name] for name in fields}
    except KeyError:
        return None
    return ordered if all(fits(name, fields[name], ordered[name]) for name in fields) else None


def _remembered(folder: Path) -> dict[str, tuple[Stamp, Entry | str]]:
    """What the index says; nothing if it is another version's, or of somebody else's making."""
    try:
        read: Any = from_json((folder / INDEX).read_bytes())
        if read["version"] != VERSION or read["fields"] != list(RUN):
            return {}
        known: dict[str, tuple[Stamp, Entry | str]] = {}
        for name, (size, written, said) in read["files"].items():
            told = said if said in TROUBLES else _ordered(dict(zip(RUN, said, strict=True)), RUN)
            if told is None:
                return {}
            known[name] = ((size, written), told)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return {}
    return known


def _remember(folder: Path, said: dict[str, tuple[Stamp, Entry | str]]) -> None:
    files = {
        name: (*stamp, told if isinstance(told, str) else list(told.values()))
        for name, (stamp, told) in said.items()
    }
    with contextlib.suppress(ConfigError):  # a store that one may only read
        write_atomically(
            folder / INDEX, to_json({"version": VERSION, "fields": list(RUN), "files": files})
        )
