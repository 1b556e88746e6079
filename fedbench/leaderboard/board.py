"""A board on disk: who may lie where, and entries that are read without trusting them.

``<division>/<track>/<protocol>-<id>.json`` is an entry, the ``.jsonl.gz`` beside it its records.
"""

from __future__ import annotations

import gzip
import json
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fedbench.core.errors import ConfigError, FedbenchError
from fedbench.core.files import write_atomically
from fedbench.experiment.record import Record
from fedbench.leaderboard.entry import Entry
from fedbench.leaderboard.rules import DIVISIONS, Division
from fedbench.leaderboard.score import score
from fedbench.results.gather import ARCHIVE, gather, unpacked

LARGEST = 1 << 20  # bytes of an entry
PACKED, LINES = 4 << 20, 2000  # bytes and lines of its records
TEMPORARY = re.compile(r"\..+\.(json|jsonl\.gz)\.[a-z0-9_]{8}")  # of `write_atomically`
STEM = re.compile(r"[a-z0-9][a-z0-9-]*-[0-9a-f]{12}")  # of an entry's file

Race = tuple[Division, str]


def find(path: Path) -> Path:
    """The board that a path belongs to.

    Raises:
        ConfigError: to none.
    """
    whole = Path(os.path.normpath(path.absolute()))
    for folder in (whole, *whole.parents):
        if (folder / "rules" / "1.toml").is_file():
            return folder
    raise ConfigError(
        f"{path} must belong to a board, a folder with rules/1.toml, got none; use --board"
    )


def files(board: Path) -> Iterator[Path]:
    """Everything below the divisions that is no folder, by name; links are not followed.

    What a killed `write_atomically` has left is nothing.
    """
    for division in DIVISIONS:
        if (board / division).is_symlink():
            yield board / division
            continue
        for folder, names, found in os.walk(board / division):
            links = [name for name in names if Path(folder, name).is_symlink()]
            names.sort()
            every = sorted(name for name in found + links if not TEMPORARY.fullmatch(name))
            yield from (Path(folder, name) for name in every)


def is_entry(path: Path) -> bool:
    """True for a file that can be one."""
    return path.suffix == ".json" and path.is_file() and not path.is_symlink()


def archive(path: Path) -> Path:
    """Where the records of the entry at ``path`` are."""
    return path.with_name(path.name.removesuffix(".json") + ARCHIVE)


def owner(path: Path) -> Path | None:
    """The entry whose records a file is named to be."""
    stem = path.name.removesuffix(ARCHIVE)
    return path.with_name(f"{stem}.json") if stem != path.name else None


def read(path: Path) -> Entry:
    """An entry from its file, which is hostile until `fedbench leaderboard check` is content.

    Raises:
        ConfigError: unreadable, too large, not as the schema says, or written in another way than
            an entry is.
    """
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST + 1)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    if len(data) > LARGEST:
        raise ConfigError(f"{path} must have at most {LARGEST >> 20} MiB to be an entry")
    try:
        entry = Entry.model_validate_json(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "file"
        raise ConfigError(f"{path} is no entry: {where}: {first['msg'].lower()}") from error
    except FedbenchError as error:  # of the scenario in it
        raise ConfigError(f"{path} is no entry: scenario: {error}") from error
    if json.loads(data, object_pairs_hook=_once) != entry.model_dump(mode="json"):
        raise ConfigError(
            f"{path} is no entry: it must say every field once, and numbers as numbers; "
            "write it with fedbench leaderboard submit"
        )
    return entry


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object; empty, which no entry is, if it says a field twice."""
    found = dict(pairs)
    return found if len(found) == len(pairs) else {}


def records(path: Path) -> list[Record]:
    """The records of the entry at ``path``.

    Raises:
        ConfigError: absent, a link, too large, no archive, or a record that is not one.
    """
    packed = archive(path)
    if packed.is_symlink() or not packed.is_file():
        raise ConfigError(f"{packed} must be a file with the records of {path.name}, got none")
    lines = _measured(packed)
    found = gather([packed])
    if len(found) != lines:
        got = f"{lines} lines and {len(found)} records"
        raise ConfigError(f"{packed} must have every record once, a line each, got {got}")
    return found


def _measured(packed: Path) -> int:
    """How many lines it has, if it is no bomb."""
    if packed.stat().st_size > PACKED:
        raise ConfigError(f"{packed} must have at most {PACKED >> 20} MiB")
    lines = unpacked(packed).count(b"\n")
    if lines > LINES:
        raise ConfigError(f"{packed} must have at most {LINES} lines, got {lines}")
    return lines


def races(board: Path) -> dict[Race, list[Entry]]:
    """Every entry, by division and track; each is what its own file can prove.

    Raises:
        ConfigError: a file of the board is no entry, lies elsewhere, was edited or is there twice.
    """
    found: dict[Race, list[Entry]] = {}
    known: set[str] = set()
    for path in filter(is_entry, files(board)):
        entry = read(path)
        if wrong := _doubtful(board, path, entry, known):
            raise ConfigError(f"{path} must {wrong}; see fedbench leaderboard check")
        known.add(entry.id)
        found.setdefault((entry.division, entry.track), []).append(entry)
    return dict(sorted(found.items()))


def _doubtful(board: Path, path: Path, entry: Entry, known: set[str]) -> str | None:
    """What keeps it from being shown; that its records say the same, only `check` knows."""
    if entry.id != entry.content_id():
        return f"have the id of its content, {entry.content_id()}, got {entry.id}"
    if not STEM.fullmatch(entry.file_name.removesuffix(".json")):
        return f"be named by a-z, 0-9 and hyphens, got the protocol {entry.protocol!r}"
    if path != place(board, entry):
        return f"be at {place(board, entry)} by its content, got another place"
    if entry.id in known:
        return f"have an id of its own, got {entry.id} twice"
    if entry.score != score(entry.cells, None if entry.price is None else entry.price.epsilon):
        return "have the score that follows from its cells, got another one"
    return None


def place(board: Path, entry: Entry) -> Path:
    """Where it belongs."""
    return board / entry.division / entry.track / entry.file_name


def write(board: Path, entry: Entry, played: Iterable[Record]) -> Path:
    """The entry, and its records in the order of its cells: equal records make equal files."""
    path = place(board, entry)
    known = {record.digest: record for record in played}
    ordered = [known[member.digest] for cell in entry.cells for member in cell.records]
    text = "".join(record.to_json(None) for record in ordered)
    write_atomically(archive(path), gzip.compress(text.encode(), mtime=0))
    write_atomically(path, entry.to_json().encode())
    return path
