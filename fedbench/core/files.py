"""Files that are whole or absent, and foreign files that are read with a limit."""

import contextlib
import os
import re
import tempfile
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from fedbench.core.errors import ConfigError

_UMASK = os.umask(0)  # it can only be read by setting it
os.umask(_UMASK)
_LONG_KEY = re.compile(r"""(?<![\w"'-])(?:[\w"'-]++[ \t]*+\.[ \t]*+){32}""")


def writable(folder: Path) -> None:
    """Raise `ConfigError`, before hours of work, for a folder that cannot be written."""
    absent: list[Path] = []
    try:
        absent = [path for path in (folder, *folder.parents) if not os.path.lexists(path)]
        folder.mkdir(parents=True, exist_ok=True)
        handle, probe = tempfile.mkstemp(prefix=".fedbench-", dir=folder)
        os.close(handle)
        os.unlink(probe)
    except (OSError, ValueError) as error:  # ValueError for a null byte
        raise _unwritable(folder, error) from error
    finally:
        for path in absent:  # made again by the first write
            with contextlib.suppress(OSError, ValueError):
                path.rmdir()


def cache_folder(name: str) -> Path:
    """Return a folder of the user's caches, which need not exist; `RuntimeError` without a home."""
    given = os.environ.get("XDG_CACHE_HOME")
    return (Path(given) if given else Path.home() / ".cache") / "fedbench" / name


def _unwritable(folder: Path, error: OSError | ValueError) -> ConfigError:
    requirement = "--out must be a folder that can be written"
    return ConfigError(f"{requirement}, got {str(folder)!r} ({_reason(error)}); choose another one")


def _reason(error: OSError | ValueError) -> object:
    return (error.strerror if isinstance(error, OSError) else None) or error


def require_there(paths: Iterable[Path]) -> None:
    """Raise `ConfigError` for a path at which nothing is, before anything slow is imported."""
    for path in paths:
        try:
            path.stat()
        except (OSError, ValueError) as error:  # ValueError for a null byte in the name
            raise ConfigError(f"{path} cannot be read: {_reason(error)}") from error


def read_limited(path: Path, most: int) -> bytes:
    """Return the bytes of a foreign file; raise `ConfigError` if unreadable or above ``most``."""
    try:
        with path.open("rb") as file:
            data = file.read(most + 1)
    except (OSError, ValueError) as error:  # ValueError for a null byte in the name
        raise ConfigError(f"{path} cannot be read: {_reason(error)}") from error
    if len(data) > most:
        limit = f"{most >> 20} MiB" if most >= 1 << 20 else f"{most >> 10} KiB"
        raise ConfigError(f"{path} must have at most {limit}, got more")
    return data


def read_toml(path: Path, most: int = 1 << 20) -> dict[str, Any]:
    """Return the table that a foreign file of TOML holds, or raise `ConfigError` with the line."""
    return parsed_toml(read_limited(path, most), str(path))


def parsed_toml(data: bytes, name: str) -> dict[str, Any]:
    """Return the table that TOML describes; a `ConfigError` calls it ``name``."""
    try:
        text = data.decode()
        if _LONG_KEY.search(text):  # tomllib takes quadratic time and memory for long keys
            raise ConfigError(f"{name} must have keys of at most 32 parts, got a longer one")
        table = tomllib.loads(text)
    except ValueError as error:  # no TOML, no UTF-8, or a number of more than 4,300 digits
        raise ConfigError(f"{name} must be TOML: {error}") from error
    except RecursionError as error:
        raise ConfigError(f"{name} must be TOML of less nested tables and lists") from error
    values: list[Any] = [table]
    while values:
        value = values.pop()
        if isinstance(value, dict | list):
            values += value.values() if isinstance(value, dict) else value
        elif isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:  # may be 0xfff...
            raise ConfigError(f"{name} must have integers of at most 64 bits, got a longer one")
    return table


def write_atomically(path: Path, data: bytes) -> None:
    """Write to a temporary file beside the target and rename it; raise `ConfigError` if denied."""
    with replaced(path) as temporary:
        temporary.write_bytes(data)


@contextlib.contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """Yield a temporary file beside the target, which takes its place if the block succeeds.

    Whoever reads the target finds the old file or the new one, whole; of a link that is the file
    that it leads to. `ConfigError` if denied, or if the target is a folder or a device.
    """
    try:
        target = Path(os.path.realpath(path))
        if target.exists() and not target.is_file():
            kind = "a folder" if target.is_dir() else "a device or a pipe"
            raise ConfigError(f"{path} must be a file, got {kind}; choose another place")
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        os.close(handle)
        try:
            yield Path(name)
            with open(name, "rb+") as file:
                os.fsync(file.fileno())  # a rename may reach the disk before what it names
            os.chmod(name, 0o666 & ~_UMASK)
            os.replace(name, target)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):  # interrupted after the rename
                os.unlink(name)
            raise
        if hasattr(os, "O_DIRECTORY"):  # Windows opens no folders
            folder = os.open(target.parent, os.O_RDONLY)
            try:
                os.fsync(folder)  # so that a finished rename survives a crash
            finally:
                os.close(folder)
    except (OSError, ValueError) as error:  # ValueError for a null byte in the name
        raise _unwritable(path.parent, error) from error
