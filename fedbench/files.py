"""Files that are whole or absent."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from fedbench.errors import ConfigError


def writable(folder: Path) -> None:
    """Make the folder if needed; find out before hours of work that it cannot be written.

    Raises:
        ConfigError: it cannot.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle, probe = tempfile.mkstemp(prefix=".fedbench-", dir=folder)
        os.close(handle)
        os.unlink(probe)
    except OSError as error:
        raise _unwritable(folder, error) from error


def _unwritable(folder: Path, error: OSError) -> ConfigError:
    return ConfigError(
        f"--out must be a folder that can be written, got {str(folder)!r} "
        f"({error.strerror or error}); choose another one"
    )


def write_atomically(path: Path, data: bytes) -> None:
    """Write beside the target, then rename.

    Raises:
        ConfigError: the folder cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())  # a rename may reach the disk before what it names
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):  # stopped after the rename
                os.unlink(temporary)
            raise
        _remember(path.parent)
    except OSError as error:
        raise _unwritable(path.parent, error) from error


def _remember(folder: Path) -> None:
    """Bring the folder itself to the disk: who says that a file is there must not lose its name."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
