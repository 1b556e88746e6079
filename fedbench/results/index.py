"""The runs of a store, from its files or, where these did not change, from what they said last.

What they said is kept in the user's own folder of caches and never in the store: a store may come
from somebody else, and an index in it could say what no record does.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from pydantic_core import SchemaValidator, ValidationError, to_json
from pydantic_core.core_schema import (
    dict_schema,
    int_schema,
    literal_schema,
    str_schema,
    tuple_schema,
    typed_dict_field,
    typed_dict_schema,
    union_schema,
)

from fedbench.core.errors import ConfigError
from fedbench.core.files import cache_folder, write_atomically
from fedbench.results import extract
from fedbench.results.fields import RUN, Entry

INDEX = "stores"  # folder of caches: it may be deleted at any time, and whoever writes last wins
VERSION = "3 " + " ".join(RUN)  # of the index: another meaning of a field is another number
MOST = 256 << 20  # bytes of a file

# Why a file is no run of this store: what it is, and what to do.
TROUBLES = {
    "torn": ("no whole JSON", "run the scenario again"),
    "foreign": ("no record", "move it to another folder"),
    "schema": ("of another schema", "run the scenario again"),
    "changed": ("not what its digest says", "run the scenario again"),
    "closed": ("cannot be read", "change its permissions"),
}
# Bytes, when it was written, when anything of it changed (nobody can choose that), which inode.
Stamp = tuple[int, int, int, int]
Said = dict[str, tuple[Stamp, Entry | str]]  # by file: its fields, or which trouble it has

_RUN = tuple_schema([extract.schema(name, kind) for name, kind in RUN.items()])
_SAID = union_schema([literal_schema([*TROUBLES]), _RUN])
_STAMP = tuple_schema([int_schema()] * 4)
_FILES = dict_schema(str_schema(), tuple_schema([_STAMP, _SAID]))
_INDEX = SchemaValidator(
    typed_dict_schema(
        {
            "version": typed_dict_field(literal_schema([VERSION])),
            "files": typed_dict_field(_FILES),
        }
    )
)


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

    def complaints(self) -> list[str]:
        """A line for each kind of trouble, with its remedy."""
        return [
            f"{len(names)} file{'s' * (len(names) > 1)} left out ({TROUBLES[kind][0]}), first "
            f"{min(names)!r}: {TROUBLES[kind][1]}"
            for kind, names in sorted(self.troubles.items())
        ]


def runs(store: Path) -> Listing:
    """The runs that have a record.

    Raises:
        ConfigError: there is no such folder.
    """
    known = _remembered(store)
    said = _said(store, known, extract.run)
    if said != known:
        _remember(store, said)
    return _listing(store, said)


def failures(store: Path) -> Listing:
    """The runs that failed."""
    folder = store / "failed"
    return _listing(folder, _said(folder, {}, extract.failure) if folder.is_dir() else {})


def failed(store: Path) -> int:
    """How many runs failed."""
    folder = store / "failed"
    return len(_stamps(folder)) if folder.is_dir() else 0


def _said(folder: Path, known: Said, parse: Callable[[bytes, str], Entry | str]) -> Said:
    """Of every file what it says, or what it said when it had the same stamp."""
    said = {}
    for name, stamp in _stamps(folder).items():
        before = known.get(name)
        if before is not None and before[0] == stamp:
            said[name] = before
        elif stamp[0] > MOST or not name.isprintable():
            said[name] = stamp, "foreign"
        else:
            with contextlib.suppress(FileNotFoundError):  # it has just gone away
                said[name] = stamp, _read(f"{folder}/{name}", name, parse)
    return said


def _read(path: str, name: str, parse: Callable[[bytes, str], Entry | str]) -> Entry | str:
    try:
        with open(path, "rb") as file:
            data = file.read()
    except PermissionError:
        return "closed"
    return parse(data, name)


def _stamps(folder: Path) -> dict[str, Stamp]:
    """Of each file that may hold a record, in the order of their names."""
    try:
        with os.scandir(folder) as found:
            names = [one.name for one in found if one.name.endswith(".json")]
    except OSError as error:
        raise ConfigError(
            f"STORE must be a folder of records, got {str(folder)!r} ({error.strerror}); "
            "name the --out of a sweep"
        ) from error
    stamps = {}
    for name in sorted(names):
        with contextlib.suppress(OSError):  # it has gone away, or is a link to nowhere
            about = os.stat(f"{folder}/{name}")
            if stat.S_ISREG(about.st_mode) and not name.startswith("."):
                stamps[name] = (
                    about.st_size,
                    about.st_mtime_ns,
                    about.st_ctime_ns,
                    about.st_ino,
                )
    return stamps


def _listing(folder: Path, said: Said) -> Listing:
    listing = Listing(folder)
    for name, (_, told) in sorted(said.items(), key=lambda item: (item[1][0][1], item[0])):
        if isinstance(told, str):
            listing.troubles.setdefault(told, []).append(name)
        else:
            listing.entries.append(told)
    return listing


def place(store: Path) -> Path:
    """Return the file that the index of a store is kept in.

    Raises:
        RuntimeError: nobody knows where the user's home is.
    """
    where = hashlib.sha256(os.fsencode(os.path.realpath(store))).hexdigest()
    return cache_folder(INDEX) / f"{where[:32]}.json"


def _remembered(store: Path) -> Said:
    """What the index says; nothing if it is of another version, or is none."""
    try:
        read = _INDEX.validate_json(place(store).read_bytes())
    except (OSError, RuntimeError, ValidationError):
        return {}
    return {
        name: (
            stamp,
            told if isinstance(told, str) else dict(zip(RUN, told, strict=True)) | {"file": name},
        )
        for name, (stamp, told) in read["files"].items()
    }


def _remember(store: Path, said: Said) -> None:
    files = {
        name: (stamp, told if isinstance(told, str) else list(told.values()))
        for name, (stamp, told) in said.items()
        if name.isprintable()
    }
    with contextlib.suppress(ConfigError, RuntimeError):  # caches that cannot be written
        write_atomically(place(store), to_json({"version": VERSION, "files": files}))
