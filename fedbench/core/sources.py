"""Source code of plug-ins: the file, or the notebook cell, of a class, and its SHA-256."""

import hashlib
import inspect
import linecache
import marshal
import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import FunctionType


@dataclass(frozen=True)
class SourceFile:
    """One file of source code, as it was when it was played."""

    path: str  # of a file; of a notebook cell the name that Python gives it
    sha256: str  # in hex


def source_at(path: str) -> SourceFile:
    """Return a source file with its SHA-256; `OSError` if it cannot be read."""
    return SourceFile(path, _sha256(path, os.stat(path).st_mtime_ns))


def source_of(made: type | FunctionType) -> SourceFile:
    """Return the source of a class or a function: its file, its notebook cell, or its byte code.

    A cell is what Python's `linecache` holds of it. What was typed at a prompt has neither; there
    the digest is that of the compiled code.
    """
    try:
        return source_at(inspect.getfile(made))
    except (TypeError, OSError):  # Python takes what __main__ defines without a file as built in
        members = [made] if isinstance(made, FunctionType) else vars(made).values()
        codes = [member.__code__ for member in members if type(member) is FunctionType]
        cells = (linecache.getlines(code.co_filename) for code in codes)
        lines = next(filter(None, cells), None)
        named = f"<{made.__module__}.{made.__qualname__}>"
        content = b"".join(map(marshal.dumps, codes)) if lines is None else "".join(lines).encode()
        return SourceFile(named, hashlib.sha256(content).hexdigest())


def each_once(sources: Iterable[SourceFile]) -> list[SourceFile]:
    """Return the sources in their order, those of one path once."""
    return list({source.path: source for source in reversed(list(sources))}.values())[::-1]


@lru_cache(maxsize=1024)
def _sha256(path: str, changed: int) -> str:
    """Return the SHA-256 of a file that was ``changed`` at this time."""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()
