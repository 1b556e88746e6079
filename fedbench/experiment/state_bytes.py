"""Bytes of a run's state: equal states have equal bytes, and the bytes give the state back.

A value is a tag of one letter and what follows it, all numbers little endian, lengths in 8 bytes:

- ``N`` None, ``T`` True, ``F`` False;
- ``i`` an integer: its length in bytes, then two's complement; ``f`` a float of 8 bytes;
- ``s`` a text in UTF-8 and ``b`` bytes: length, content;
- ``l`` a list and ``t`` a tuple: number of values, values; ``d`` a dict and ``c`` a counter: number
  of pairs, keys and values;
- ``x`` a tensor and ``a`` an array: name of the type of its numbers, shape, numbers; ``g`` a number
  of NumPy: name of the type, number;
- ``o`` an object of a dataclass: name of the class, number of fields, their names and values;
- ``e`` a member of an enumeration: name of the class, name.

Pairs stay in their order: a loop over a dict may add its values, and sums depend on the order. Only
classes of fedbench, its attacks and its defenses are read; no byte is ever run or unpickled.
"""

import dataclasses
import importlib
import math
import re
import struct
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from hashlib import sha256
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedbench.core.errors import ConfigError

# Rooms whose classes a state may hold: nothing in them starts a process or writes a file.
ROOMS = ("core", "payload", "api", "privacy", "protocols", "adversary", "experiment")
PACKAGES = (*(f"fedbench.{room}" for room in ROOMS), "fedbench_attacks", "fedbench_defenses")
NAMES = "bool uint8 int8 int16 int32 int64 float16 bfloat16 float32 float64"
DTYPES = {name: getattr(torch, name) for name in NAMES.split()}
ARRAYS = {name: np.dtype(name) for name in NAMES.split() if name != "bfloat16"}
ARRAYS |= {name: np.dtype(name) for name in ("uint16", "uint32", "uint64")}
CLASS = re.compile(r"[a-z_]\w*(?:\.\w+)*:[A-Za-z_]\w*", re.ASCII)
MAX_NESTING = 100  # values within values

Piece = bytes | memoryview
T = TypeVar("T")


class NoBytesError(ValueError):
    """A value that has no bytes: a function, say, or an object of another package's class."""


def encode(value: object) -> bytes:
    """Return the bytes of a value; `NoBytesError` if a part of it has none."""
    return b"".join(StateWriter().pieces(value))


def digest(value: object) -> bytes:
    """Return the SHA-256 of the bytes of a value, without copying its tensors."""
    hashed = sha256()
    for piece in StateWriter().pieces(value):
        hashed.update(piece)
    return hashed.digest()


class StateWriter:
    """Walk through a value that yields its bytes.

    Args:
        packages: Packages beside fedbench's own whose dataclasses may be written.
    """

    def __init__(self, packages: Collection[str] = ()) -> None:
        self.packages = (*PACKAGES, *packages)

    def pieces(self, value: Any, depth: int = 0) -> Iterator[Piece]:
        """Yield the bytes of a value in parts; those of a tensor are its own memory."""
        if depth > MAX_NESTING:
            raise NoBytesError(f"a value must be nested at most {MAX_NESTING} deep")
        kind = type(value)
        if value is None or value is True or value is False:
            yield {None: b"N", True: b"T", False: b"F"}[value]
        elif kind is int:
            yield _integer(value)
        elif kind is float:
            yield struct.pack("<cd", b"f", value)
        elif kind is str:
            yield _text(b"s", value)
        elif kind is bytes:
            yield b"b" + length(len(value))
            yield value
        elif kind is list or kind is tuple:
            yield (b"l" if kind is list else b"t") + length(len(value))
            for part in value:
                yield from self.pieces(part, depth + 1)
        elif kind is dict or kind is Counter:
            yield (b"d" if kind is dict else b"c") + length(len(value))
            for key, part in value.items():
                yield from self.pieces(key, depth + 1)
                yield from self.pieces(part, depth + 1)
        elif isinstance(value, Tensor):
            yield from self.tensor(value)
        elif isinstance(value, np.ndarray | np.generic):
            yield from _array(value)
        elif isinstance(value, Enum):
            yield _text(b"e", self._named(kind)) + _text(b"s", value.name)
        elif dataclasses.is_dataclass(value):
            fields = [field.name for field in dataclasses.fields(value)]
            yield _text(b"o", self._named(kind)) + length(len(fields))
            for name in fields:
                yield _text(b"s", name)
                yield from self.pieces(getattr(value, name), depth + 1)
        else:
            raise NoBytesError(f"a {kind.__name__} has no bytes")

    def tensor(self, value: Tensor) -> Iterator[Piece]:
        """Yield the bytes of a tensor, whatever its strides."""
        yield shaped(b"x", type_of_numbers(value), value.shape)
        flat = value.detach().cpu().resolve_neg().contiguous().reshape(-1)
        if len(flat):
            yield flat.view(torch.uint8).numpy().data

    def _named(self, cls: type) -> str:
        """Return the name of a class by which a `StateReader` finds it, or raise `NoBytesError`."""
        name = f"{cls.__module__}:{cls.__qualname__}"
        if not _within(cls.__module__, self.packages) or not CLASS.fullmatch(name):
            raise NoBytesError(f"an object of {name} has no bytes")
        return name


def length(count: int) -> bytes:
    """Return the 8 bytes of a length, or of another number that is not negative."""
    return struct.pack("<Q", count)


def _integer(value: int) -> bytes:
    size = value.bit_length() // 8 + 1  # with room for the sign
    return b"i" + length(size) + value.to_bytes(size, "little", signed=True)


def _text(tag: bytes, text: str) -> bytes:
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise NoBytesError("a text must be of whole characters") from error
    return tag + length(len(data)) + data


def shaped(tag: bytes, name: str, shape: Sequence[int]) -> bytes:
    """Return the bytes of a tag, the name of a type of numbers, and a shape."""
    sides = b"".join(map(length, shape))
    return _text(tag, name) + length(len(shape)) + sides


def type_of_numbers(value: Tensor) -> str:
    """Return the name of a tensor's type of numbers; `NoBytesError` if it is no plain tensor."""
    name = str(value.dtype).removeprefix("torch.")
    plain = type(value) is Tensor and value.layout is torch.strided
    if not plain or name not in DTYPES:
        raise NoBytesError(f"a {type(value).__name__} of {name} has no bytes")
    return name


def _array(value: "np.ndarray[Any, Any] | np.generic") -> Iterator[Piece]:
    name = value.dtype.name
    if name not in ARRAYS or type(value) not in (np.ndarray, ARRAYS[name].type):
        raise NoBytesError(f"a {type(value).__name__} of {name} has no bytes")
    little = np.ascontiguousarray(value, dtype=value.dtype.newbyteorder("<"))
    if isinstance(value, np.generic):
        yield _text(b"g", name)
    else:
        yield shaped(b"a", name, value.shape)
    yield little.tobytes()


def _within(module: str, packages: Iterable[str]) -> bool:
    return any(f"{module}.".startswith(f"{package}.") for package in packages)


def decode(data: bytes | memoryview) -> Any:
    """Return the value that has these bytes; `ConfigError` if none has.

    Whoever wrote them cannot run anything: classes are fedbench's own, objects are made without
    calling them, and their fields are those that the class declares.
    """
    return StateReader(memoryview(data)).whole()


def wrong(why: str) -> ConfigError:
    """Return the error that bytes hold no state, and why."""
    return ConfigError(f"a state must be bytes that fedbench wrote, got others: {why}")


class StateReader:
    """Walk through bytes that makes the values which a `StateWriter` wrote.

    Args:
        data: The bytes.
        packages: Packages beside fedbench's own whose dataclasses may be made; their modules are
            never imported for it.
    """

    def __init__(self, data: memoryview, packages: Collection[str] = ()) -> None:
        self.data = data
        self.packages = packages
        self.at = 0

    def whole(self) -> Any:
        """Return the value that all bytes together are; `ConfigError` if they are none."""
        try:
            value = self.value()
        except (RuntimeError, OverflowError, ValueError, TypeError) as error:  # a shape, or a class
            raise wrong(str(error)) from error
        if self.left:
            raise wrong(f"{self.left} bytes are left")
        return value

    @property
    def left(self) -> int:
        """Number of bytes that were not read yet."""
        return len(self.data) - self.at

    def take(self, size: int) -> memoryview:
        """Return the next ``size`` bytes."""
        if size > self.left:
            raise wrong(f"{size} bytes are not there")
        self.at += size
        return self.data[self.at - size : self.at]

    def number(self) -> int:
        """Return the next length."""
        return int.from_bytes(self.take(8), "little")

    def count(self, least: int) -> int:
        """Return the next number of values, each of which has ``least`` bytes or more."""
        number = self.number()
        if number * least > self.left:
            raise wrong(f"{number} values are not there")
        return number

    def text(self) -> str:
        """Return the next text, whose tag was read."""
        try:
            return str(self.take(self.number()), "utf-8")
        except UnicodeDecodeError as error:
            raise wrong("a text is no UTF-8") from error

    def named(self) -> str:
        """Return the next text, with its tag."""
        if bytes(self.take(1)) != b"s":
            raise wrong("a name is no text")
        return self.text()

    def value(self, depth: int = 0) -> Any:
        """Return the next value."""
        if depth > MAX_NESTING:
            raise wrong(f"they are nested more than {MAX_NESTING} deep")
        tag = bytes(self.take(1))
        if tag in (b"N", b"T", b"F"):
            return {b"N": None, b"T": True, b"F": False}[tag]
        if tag == b"i":
            return self.integer()
        if tag == b"f":
            return struct.unpack("<d", self.take(8))[0]
        if tag == b"s":
            return self.text()
        if tag == b"b":
            return bytes(self.take(self.number()))
        if tag in (b"l", b"t"):
            values = [self.value(depth + 1) for _ in range(self.count(1))]
            return values if tag == b"l" else tuple(values)
        if tag in (b"d", b"c"):
            return self.pairs(tag, depth)
        if tag == b"x":
            return self.tensor()
        if tag in (b"a", b"g"):
            return self.array(tag)
        if tag == b"o":
            return self.thing(depth)
        if tag == b"e":
            return self.member()
        raise wrong(f"{tag!r} is no tag")

    def known_type(self, types: Mapping[str, T]) -> T:
        """Return the type of the next name, which must be one of these."""
        name = self.text()
        if name not in types:
            raise wrong(f"{name!r} is no type of numbers")
        return types[name]

    def integer(self) -> int:
        """Return an integer, written in as few bytes as it needs."""
        value = int.from_bytes(self.take(self.number()), "little", signed=True)
        if _integer(value) != self.data[: self.at][-len(_integer(value)) :]:
            raise wrong("an integer is longer than it must be")
        return value

    def pairs(self, tag: bytes, depth: int) -> dict[Any, Any]:
        """Return a dict or a counter."""
        count = self.count(2)
        made: dict[Any, Any] = {} if tag == b"d" else Counter()
        for _ in range(count):
            key = self.value(depth + 1)
            try:
                made[key] = self.value(depth + 1)
            except TypeError as error:
                raise wrong(f"a {type(key).__name__} is no key") from error
        if len(made) != count:
            raise wrong("a key is there twice")
        return made

    def tensor(self) -> Tensor:
        """Return a tensor in memory of its own."""
        dtype = self.known_type(DTYPES)
        shape = self.shape()
        raw = bytearray(self.take(math.prod(shape) * dtype.itemsize))
        if not raw:
            return torch.empty(shape, dtype=dtype)
        if dtype == torch.bool and any(raw.translate(None, b"\0\1")):
            raise wrong("a truth value is neither 0 nor 1")
        return torch.frombuffer(raw, dtype=dtype).reshape(shape)

    def array(self, tag: bytes) -> Any:
        """Return an array in memory of its own, or a number of NumPy."""
        dtype = self.known_type(ARRAYS)
        shape = self.shape() if tag == b"a" else ()
        raw = self.take(math.prod(shape) * dtype.itemsize)
        if dtype == np.bool_ and any(bytes(raw).translate(None, b"\0\1")):
            raise wrong("a truth value is neither 0 nor 1")
        made = np.frombuffer(raw, dtype.newbyteorder("<")).astype(dtype).reshape(shape)
        return made if tag == b"a" else made[()]

    def shape(self) -> tuple[int, ...]:
        """Return the shape of a tensor or an array."""
        sides = tuple(self.number() for _ in range(self.count(8)))
        if len(sides) > 64 or any(side >= 1 << 63 for side in sides):
            raise wrong("a shape is too large")
        return sides

    def thing(self, depth: int) -> Any:
        """Return an object of a dataclass, with every field that the class declares, in order."""
        cls = self.named_class()
        if not dataclasses.is_dataclass(cls):
            raise wrong(f"{cls.__name__} is no dataclass")
        names = [field.name for field in dataclasses.fields(cls)]
        if self.count(10) != len(names):
            raise wrong(f"{cls.__name__} has {len(names)} fields")
        made = object.__new__(cls)
        for name in names:
            if self.named() != name:
                raise wrong(f"{cls.__name__} has the fields {', '.join(names)}")
            object.__setattr__(made, name, self.value(depth + 1))
        return made

    def member(self) -> Enum:
        """Return a member of an enumeration."""
        cls = self.named_class()
        name = self.named()
        if not issubclass(cls, Enum) or name not in cls.__members__:
            raise wrong(f"{cls.__name__} is no enumeration with {name!r}")
        return cls.__members__[name]

    def named_class(self) -> type:
        """Return the class of the next name, which must be of one of the packages."""
        name = self.text()
        module, _, word = name.partition(":")
        ours = _within(module, PACKAGES)
        if not CLASS.fullmatch(name) or not (ours or _within(module, self.packages)):
            raise wrong(f"{name[:80]!r} is no class of {', '.join([*PACKAGES, *self.packages])}")
        try:
            made = importlib.import_module(module) if ours else sys.modules.get(module)
        except ImportError as error:
            raise wrong(f"there is no module {module!r}") from error
        cls = getattr(made, word, None)
        if not isinstance(cls, type) or f"{cls.__module__}:{cls.__qualname__}" != name:
            raise wrong(f"{name!r} is no class")
        return cls
