"""Scratch files: bytes that are too many for memory, in files without a name."""

from collections.abc import Iterable
from io import FileIO
from tempfile import TemporaryFile, gettempdir

from fedbench.core.errors import ConfigError


def scratch(subject: str) -> FileIO:
    """Open a file for the ``subject`` that goes with the process; `ConfigError` without a folder.

    The folder is that for temporary files (``TMPDIR``).
    """
    try:
        return TemporaryFile(prefix="fedbench-", buffering=0)
    except OSError as error:
        raise ConfigError(
            f"{subject} must find room in a temporary folder, got {error.strerror!r}; "
            "set TMPDIR to one"
        ) from error


def write_at(file: FileIO, start: int, parts: Iterable[memoryview], subject: str) -> None:
    """Write bytes of the ``subject`` from a place on; `ConfigError` if there is no room."""
    try:
        file.seek(start)
        for left in parts:
            while len(left):
                left = left[file.write(left) :]
    except OSError as error:
        raise ConfigError(
            f"{subject} must find room in {gettempdir()}, got {error.strerror!r}; "
            "set TMPDIR to another folder, or sample fewer clients"
        ) from error
