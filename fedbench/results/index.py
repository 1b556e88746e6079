"""Entries of all runs of a store, from its files or, for files that did not change, from an index.

The index is kept in the user's own folder of caches and never in the store: a store may come from
somebody else, and an index in it could say what no record does.
"""

import contextlib
import hashlib
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from pydantic_core import SchemaValidator, ValidationError, to_json
from pydantic_core import core_schema as cs

from fedbench.core.errors import ConfigError
from fedbench.core.files import cache_folder, write_atomically
from fedbench.results import extract
from fedbench.results.fields import RUN, Entry

INDEX_FOLDER = "stores"  # of caches: it may be deleted at any time, and whoever writes last wins
VERSION = "3 " + " ".join(RUN)  # another meaning of a field is another number
MAX_RECORD_BYTES = 256 << 20

# Reasons why a file is no run of this store, each with its remedy.
TROUBLES = {
    "torn": ("no whole JSON", "run the scenario again"),
    "foreign": ("no record", "move it to another folder"),
    "schema": ("of another schema", "run the scenario again"),
    "changed": ("not what its digest says", "run the scenario again"),
    "closed": ("cannot be read", "change its permissions"),
}
# Size, time of writing, time of any change (nobody can choose that one), and inode of a file.
Stamp = tuple[int, int, int, int]
Files = dict[str, tuple[Stamp, Entry | str]]  # by name: stamp, and fields or a trouble

_RUN = cs.tuple_schema([extract.schema(name, kind) for name, kind in RUN.items()])
_CONTENT = cs.union_schema([cs.literal_schema([*TROUBLES]), _RUN])
_STAMP = cs.tuple_schema([cs.int_schema()] * 4)
_FILES = cs.dict_schema(cs.str_schema(), cs.tuple_schema([_STAMP, _CONTENT]))
_INDEX = SchemaValidator(extract.table({"version": cs.literal_schema([VERSION]), "files": _FILES}))


@dataclass
class Listing:
    """Content of a folder of records."""

    entries: list[Entry] = field(default_factory=list)  # of good files, in the order of writing
    troubles: dict[str, list[str]] = field(default_factory=dict)  # names of the others

    def complaints(self) -> list[str]:
        """Return a line for each kind of trouble, with its remedy."""
        return [
            f"{len(names)} file{'s' * (len(names) > 1)} left out ({TROUBLES[kind][0]}), first "
            f"{min(names)!r}: {TROUBLES[kind][1]}"
            for kind, names in sorted(self.troubles.items())
        ]


def runs(store: Path) -> Listing:
    """List the runs with a record and update the index; `ConfigError` without such a folder."""
    indexed = _load(store)
    files = _read(store, indexed, extract.run)
    if files != indexed:
        _save(store, files)
    return _listing(files)


def failures(store: Path) -> Listing:
    """List the runs of a store that failed."""
    folder = store / "failed"
    return _listing(_read(folder, {}, extract.failure) if folder.is_dir() else {})


def failed(store: Path) -> int:
    """Count the runs of a store that failed."""
    folder = store / "failed"
    return len(_stamps(folder)) if folder.is_dir() else 0


def _read(folder: Path, indexed: Files, parse: Callable[[bytes, str], Entry | str]) -> Files:
    """Read every file of a folder whose stamp is not the one that the index has."""
    files = {}
    for name, stamp in _stamps(folder).items():
        if name in indexed and indexed[name][0] == stamp:
            files[name] = indexed[name]
        elif stamp[0] > MAX_RECORD_BYTES or not name.isprintable():
            files[name] = stamp, "foreign"
        else:
            try:
                with open(f"{folder}/{name}", "rb") as file:
                    data = file.read()
            except FileNotFoundError:  # it has just gone away
                continue
            except PermissionError:
                files[name] = stamp, "closed"
            else:
                files[name] = stamp, parse(data, name)
    return files


def _stamps(folder: Path) -> dict[str, Stamp]:
    """Return the stamp of each file that may hold a record, ordered by name."""
    try:
        with os.scandir(folder) as files:
            names = [file.name for file in files if file.name.endswith(".json")]
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
                times = (about.st_mtime_ns, about.st_ctime_ns)
                stamps[name] = (about.st_size, *times, about.st_ino)
    return stamps


def _listing(files: Files) -> Listing:
    listing = Listing()
    for name, (_, content) in sorted(files.items(), key=lambda item: (item[1][0][1], item[0])):
        if isinstance(content, str):
            listing.troubles.setdefault(content, []).append(name)
        else:
            listing.entries.append(content)
    return listing


def place(store: Path) -> Path:
    """Return the file of a store's index; `RuntimeError` if nobody knows where the home is."""
    where = hashlib.sha256(os.fsencode(os.path.realpath(store))).hexdigest()
    return cache_folder(INDEX_FOLDER) / f"{where[:32]}.json"


def _load(store: Path) -> Files:
    """Read the index; it is empty if it has another version, or is none."""
    try:
        index = _INDEX.validate_json(place(store).read_bytes())
    except (OSError, RuntimeError, ValidationError):
        return {}
    files: Files = {}
    for name, (stamp, content) in index["files"].items():
        if not isinstance(content, str):
            content = dict(zip(RUN, content, strict=True)) | {"file": name}
        files[name] = stamp, content
    return files


def _save(store: Path, files: Files) -> None:
    rows = {
        name: (stamp, content if isinstance(content, str) else list(content.values()))
        for name, (stamp, content) in files.items()
        if name.isprintable()
    }
    with contextlib.suppress(ConfigError, RuntimeError):  # caches that cannot be written
        write_atomically(place(store), to_json({"version": VERSION, "files": rows}))
