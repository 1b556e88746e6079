"""Source code of plug-ins: the file, or the notebook cell, of a class, and its SHA-256."""

import dataclasses
import hashlib
import inspect
import linecache
import marshal
import os
import reprlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import CellType, FunctionType

PLAIN = (bool, int, float, str)  # types of values that are part of a source without a file
# Python's own files, of which `dataclass` takes methods: __repr__ is reprlib's from 3.13 on.
_OF_DATACLASSES = (dataclasses.__file__, reprlib.__file__)


@dataclass(frozen=True)
class SourceFile:
    """One file of source code, as it was when it was played."""

    path: str  # of a file; of a notebook cell the name that Python gives it
    sha256: str  # in hex


def package_of(cls: type) -> str:
    """Return the name of the top-level package that defines a class."""
    return cls.__module__.partition(".")[0]


def source_at(path: str) -> SourceFile:
    """Return a source file with its SHA-256; `OSError` if it cannot be read."""
    return SourceFile(path, _sha256(path, os.stat(path).st_mtime_ns))


def source_of(made: type | FunctionType) -> SourceFile:
    """Return the source of a class or a function: its file, its notebook cell, or its byte code.

    A cell is what Python's `linecache` holds of it. What was typed at a prompt has neither; there
    the digest is that of the compiled code. Without a file it also covers the numbers and texts
    that the class has as attributes, and those that its methods read from the cells before it.
    """
    functions = [made] if isinstance(made, FunctionType) else _methods(made)
    # Of a class that was typed after a script had run, Python names the script.
    typed = any(map(_is_typed, functions))
    try:
        return source_at("" if typed else inspect.getfile(made))
    except (TypeError, OSError):  # Python takes what __main__ defines without a file as built in
        codes = [function.__code__ for function in functions]
        lines = next(filter(None, (linecache.getlines(code.co_filename) for code in codes)), None)
        # Version 2 has no references, which depend on what else holds a constant.
        compiled = b"".join(marshal.dumps(code, 2) for code in codes)
        content = compiled if lines is None else "".join(lines).encode()
        read = [
            (name, function.__globals__[name])
            for function in functions
            for name in function.__code__.co_names
            if name in function.__globals__
        ]
        plain = [
            (n, x)
            for n, x in (*vars(made).items(), *read)
            if type(x) in PLAIN and not n.startswith("__")
        ]
        content += repr(plain).encode() if plain else b""
        named = f"<{made.__module__}.{made.__qualname__}>"
        return SourceFile(named, hashlib.sha256(content).hexdigest())


def _methods(made: type) -> list[FunctionType]:
    """Return the functions of a class that no file has: of its methods and properties."""
    members = [
        getattr(member, "__func__", getattr(member, "fget", getattr(member, "func", member)))
        for member in vars(made).values()
    ]
    functions = [member for member in members if isinstance(member, FunctionType)]
    return [f for f in functions if f.__code__.co_filename not in _OF_DATACLASSES]


def captured(made: type) -> list[tuple[str, str, object]]:
    """Return the numbers and texts that a class reads from the function that it is defined in.

    Each is the name of a method, of the variable, and its value. No source says them: two calls of
    the function make classes of one name and one source that do different things.
    """
    return [
        (function.__name__, name, cell.cell_contents)
        for function in _methods(made)
        for name, cell in zip(
            function.__code__.co_freevars, function.__closure__ or (), strict=True
        )
        if _is_plain(cell)
    ]


def _is_plain(cell: CellType) -> bool:
    try:
        return type(cell.cell_contents) in PLAIN
    except ValueError:  # empty as yet
        return False


def _is_typed(function: FunctionType) -> bool:
    """Tell whether a function is of no file, nor one that `dataclasses` has made."""
    path = function.__code__.co_filename
    return path != "<string>" and not os.path.isfile(path)


def each_once(sources: Iterable[SourceFile]) -> list[SourceFile]:
    """Return the sources without duplicates of a path, in order."""
    return list({source.path: source for source in sources}.values())


@lru_cache(maxsize=1024)
def _sha256(path: str, changed: int) -> str:
    """Return the SHA-256 of a file that was ``changed`` at this time."""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()
