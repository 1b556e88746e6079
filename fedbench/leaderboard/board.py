"""A board on disk: where its files lie, and entries that are read without trusting them.

``<division>/<track>/<protocol>-<id>.json`` is an entry, the ``.jsonl.gz`` beside it the records of
its development stage, ``.ranking.jsonl.gz`` those of its ranking stage, ``.replay-1.jsonl.gz`` and
so on those of others who played it again, ``.held-out.jsonl.gz`` those of attacks that were
revealed later.
"""

import gzip
import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fedbench.core.errors import ConfigError, FedbenchError
from fedbench.core.files import write_atomically
from fedbench.experiment.record import Record
from fedbench.experiment.scenario import UNWRITTEN
from fedbench.leaderboard.build import score
from fedbench.leaderboard.entry import Entry
from fedbench.leaderboard.rules import (
    DIVISIONS,
    MAX_RULES_BYTES,
    NUMBER,
    Division,
    Rules,
    first_wrong,
    lacking,
)
from fedbench.results.gather import ARCHIVE, MAX_UNPACKED_BYTES, gather, unpacked

DRAFT = "https://json-schema.org/draft/2020-12/schema"
RANKING = f".ranking{ARCHIVE}"
HELD_OUT = f".held-out{ARCHIVE}"
BESIDE = re.compile(r"(\.ranking|\.held-out|\.replay-[1-9][0-9]?)?\.jsonl\.gz$")
MAX_ARCHIVE_BYTES = 16 << 20  # 56 runs of Multi-Krum's ranking stage have 6 MiB
MAX_ARCHIVE_RECORDS = 2000
TEMPORARY = re.compile(r"\..+\.(json|jsonl\.gz)\.[a-z0-9_]{8}")  # files of `write_atomically`
STEM = re.compile(r"[a-z0-9][a-z0-9-]*-[0-9a-f]{12}")  # name of an entry's file

Race = tuple[Division, str]


def find(path: Path) -> Path:
    """Return the board that a path belongs to, or raise a `ConfigError` if it is in none."""
    absolute = Path(os.path.normpath(path.absolute()))
    for folder in (absolute, *absolute.parents):
        if has_rules(folder):
            return folder
    got = None
    if os.path.exists(path):
        got = lacking(path if os.path.isdir(path) else path.parent)
    got = got or "none; run it in a clone of the repository, or name its folder"
    raise ConfigError(f"{path} must belong to a board, a folder with rules, got {got}")


def require_no_board(folders: Iterable[Path]) -> None:
    """Raise `ConfigError` if one of these folders is a board or a folder of its entries.

    What reads records finds none there: an entry is no record, and has its own in an archive.
    """
    for folder in folders:
        absolute = Path(os.path.normpath(folder.absolute()))
        for board in (absolute, *absolute.parents):
            below = absolute.relative_to(board).parts
            if has_rules(board) and (not below or below[0] in DIVISIONS):
                raise ConfigError(
                    f"{folder} must be a folder of records, got that of a leaderboard; give the "
                    "board to fedbench leaderboard rank"
                )


def has_rules(folder: Path) -> bool:
    """Tell whether a folder has a version of rules, and so is a board."""
    return any(NUMBER.fullmatch(rules.stem) for rules in (folder / "rules").glob("*.toml"))


def files(board: Path) -> Iterator[Path]:
    """Yield all files below the divisions, by name, and links, which are not followed.

    Files that a killed `write_atomically` has left are skipped.
    """
    for division in DIVISIONS:
        if (board / division).is_symlink():
            yield board / division
            continue
        for folder, names, plain in os.walk(board / division):
            links = [name for name in names if Path(folder, name).is_symlink()]
            names.sort()
            every = sorted(name for name in plain + links if not TEMPORARY.fullmatch(name))
            yield from (Path(folder, name) for name in every)


def is_entry(path: Path) -> bool:
    """Return True for a file that can be an entry."""
    return path.suffix == ".json" and path.is_file() and not path.is_symlink()


def archive(path: Path) -> Path:
    """Return the path of the records of the entry at ``path``."""
    return path.with_name(path.name.removesuffix(".json") + ARCHIVE)


def ranking(path: Path) -> Path:
    """Return the path of the records of the ranking stage of the entry at ``path``."""
    return path.with_name(path.name.removesuffix(".json") + RANKING)


def replay(path: Path, number: int) -> Path:
    """Return the path of the records of a replay, counted from 1, of the entry at ``path``."""
    return path.with_name(path.name.removesuffix(".json") + f".replay-{number}{ARCHIVE}")


def beside(path: Path) -> list[Path]:
    """Return all archives that lie beside the entry at ``path``."""
    return [other for other in sorted(path.parent.glob(f"*{ARCHIVE}")) if owner(other) == path]


def held_out(path: Path) -> Path:
    """Return the path of the records of held-out attacks on the entry at ``path``."""
    return path.with_name(path.name.removesuffix(".json") + HELD_OUT)


def owner(path: Path) -> Path | None:
    """Return the entry whose records a file is named to be; None for another name."""
    stem = BESIDE.sub("", path.name)
    return path.with_name(f"{stem}.json") if stem != path.name else None


def read(path: Path) -> Entry:
    """Read an entry from its file, hostile until it is checked; `ConfigError` if it is none."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_RULES_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    if len(data) > MAX_RULES_BYTES:
        raise ConfigError(f"{path} must have at most {MAX_RULES_BYTES >> 20} MiB to be an entry")
    try:
        entry = Entry.model_validate_json(data)
    except ValidationError as error:
        raise ConfigError(f"{path} is no entry: {first_wrong(error)}") from error
    except FedbenchError as error:  # of the scenario in it
        raise ConfigError(f"{path} is no entry: scenario: {error}") from error
    if json.loads(data, object_pairs_hook=_once) != entry.model_dump(mode="json"):
        raise ConfigError(
            f"{path} is no entry: it must say every field once, and numbers as numbers; "
            "write it with fedbench leaderboard submit"
        )
    return entry


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON; empty, as no entry is, if it has a field twice."""
    fields = dict(pairs)
    return fields if len(fields) == len(pairs) else {}


def records(path: Path) -> list[Record]:
    """Return the records of the entry at ``path``; `ConfigError` if they are not whole."""
    return _unpacked(archive(path), path)


def ranking_records(path: Path) -> list[Record]:
    """Return the records of the ranking stage of an entry; `ConfigError` if they are not whole."""
    return _unpacked(ranking(path), path)


def replay_records(path: Path, number: int) -> list[Record]:
    """Return the records of a replay of an entry; `ConfigError` if they are not whole."""
    return _unpacked(replay(path, number), path)


def held_out_records(path: Path) -> list[Record]:
    """Return the records of held-out attacks on the entry at ``path``; none if none was played."""
    packed = held_out(path)
    return _unpacked(packed, path) if packed.is_symlink() or packed.exists() else []


def _unpacked(packed: Path, path: Path) -> list[Record]:
    if packed.is_symlink() or not packed.is_file():
        raise ConfigError(f"{packed} must be a file with the records of {path.name}, got none")
    if packed.stat().st_size > MAX_ARCHIVE_BYTES:
        raise ConfigError(f"{packed} must have at most {MAX_ARCHIVE_BYTES >> 20} MiB")
    lines = unpacked(packed).count(b"\n")
    if lines > MAX_ARCHIVE_RECORDS:
        raise ConfigError(f"{packed} must have at most {MAX_ARCHIVE_RECORDS} lines, got {lines}")
    played = gather([packed])
    if len(played) != lines:
        got = f"{lines} lines and {len(played)} records"
        raise ConfigError(f"{packed} must have every record once, a line each, got {got}")
    return played


def races(board: Path) -> dict[Race, list[Entry]]:
    """Return every entry by division and track, after what its own file can prove was checked.

    `ConfigError` if a file of the board is no entry, lies elsewhere, was edited or is there twice.
    """
    by_race: dict[Race, list[Entry]] = {}
    ids: set[str] = set()
    for path in filter(is_entry, files(board)):
        entry = read(path)
        if wrong := _doubtful(board, path, entry, ids):
            raise ConfigError(f"{path} must {wrong}; see fedbench leaderboard check")
        ids.add(entry.id)
        by_race.setdefault((entry.division, entry.track), []).append(entry)
    return dict(sorted(by_race.items()))


def _doubtful(board: Path, path: Path, entry: Entry, ids: set[str]) -> str | None:
    """Return what an entry must do before it is shown; only `check` compares its records."""
    if entry.id != entry.content_id():
        return f"have the id of its content, {entry.content_id()}, got {entry.id}"
    if not STEM.fullmatch(entry.file_name.removesuffix(".json")):
        return f"be named by a-z, 0-9 and hyphens, got the protocol {entry.protocol!r}"
    if path != place(board, entry):
        return f"be at {place(board, entry)} by its content, got another place"
    if entry.id in ids:
        return f"have an id of its own, got {entry.id} twice"
    if entry.status in ("replayed", "replicated") and not entry.replays:
        return f"have replays to be {entry.status}, got none"
    if entry.score != score(entry.scored, entry.epsilon):
        return "have the score that follows from its cells, got another one"
    return None


def place(board: Path, entry: Entry) -> Path:
    """Return the path at which an entry belongs."""
    return board / entry.division / entry.track / entry.file_name


def write(board: Path, entry: Entry, played: Iterable[Record]) -> Path:
    """Write an entry, and its records in the order of its cells: equal records make equal files.

    They are those of its ranking stage, once there is one: the others lie there already.
    """
    path = place(board, entry)
    by_digest = {record.digest: record for record in played}
    ordered = [by_digest[member.digest] for cell in entry.scored for member in cell.records]
    with archived(archive(path) if entry.ranking is None else ranking(path), ordered):
        write_atomically(path, entry.to_json().encode())
    return path


@contextmanager
def archived(path: Path, records: Iterable[Record]) -> Iterator[None]:
    """Write an archive of records, a line each; if the block fails, a new one is removed again.

    The block writes the entry that speaks of it. An archive that none speaks of breaks a rule, so
    after a full disk nobody could repeat the command.
    """
    is_new = not path.exists()
    text = "".join(record.to_json(None) for record in records).encode()
    packed = gzip.compress(text, mtime=0)
    if len(packed) > MAX_ARCHIVE_BYTES or len(text) > MAX_UNPACKED_BYTES:
        raise ConfigError(
            f"{path} must have at most {MAX_ARCHIVE_BYTES >> 20} MiB, and "
            f"{MAX_UNPACKED_BYTES >> 20} MiB unpacked, got {len(packed) >> 20} and "
            f"{len(text) >> 20} MiB; leave out cells that no rule asks for"
        )
    write_atomically(path, packed)
    try:
        yield
    except BaseException:
        if is_new:
            path.unlink(missing_ok=True)
        raise


def schemas() -> dict[str, str]:
    """Return JSON Schemas by file name: of entries and records as written, of rules as read."""
    by_name = {
        name: model.model_json_schema(mode="serialization")
        for name, model in (("entry", Entry), ("record", Record))
    }
    for schema in by_name.values():
        scenario = schema["$defs"]["Scenario"]
        if "required" in scenario:  # but what a scenario leaves out where it says nothing
            scenario["required"] = [name for name in scenario["required"] if name not in UNWRITTEN]
    by_name["rules"] = Rules.model_json_schema()
    return {
        f"{name}.json": json.dumps({"$schema": DRAFT, **schema}, indent=1) + "\n"
        for name, schema in by_name.items()
    }


def write_schemas(out: Path) -> list[Path]:
    """Write all schemas into a folder, and return their paths."""
    texts = {out / name: text.encode() for name, text in schemas().items()}
    for path, text in texts.items():
        write_atomically(path, text)
    return list(texts)
