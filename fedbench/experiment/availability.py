"""Availability: which of the clients of a round send a message, by coins or by a trace.

A client that drops out was sent the broadcast, and may have trained; nothing of that reaches the
server, and when it takes part again it remembers what it did before. So it is not trained here at
all. Benign and malicious clients drop out alike.
"""

from __future__ import annotations

import csv
import hashlib
import io
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Self

from fedbench.core import registry
from fedbench.core.errors import ConfigError, require
from fedbench.core.files import read_limited

if TYPE_CHECKING:  # torch is not imported to check a scenario
    from fedbench.core.rng import Key

NONE = "none"
MAX_TRACE_BYTES = 64 << 20
COLUMNS = ["device", "first", "last"]
MAX_TRACE_NUMBER = 2**31 - 1  # of devices and rounds
Intervals = list[list[tuple[int, int]]]  # first and last round, by device


@dataclass(frozen=True, kw_only=True)
class Availability(ABC):
    """A way in which clients of a round drop out."""

    @abstractmethod
    def places(self, ids: Sequence[int], step: int, key: Key) -> list[int]:
        """Return the places, in a round of the clients ``ids``, of those that send a message."""

    def checked(self) -> Self:
        """Return it with all that its text leaves open; `ConfigError` if that cannot be read."""
        return self


@dataclass(frozen=True, kw_only=True)
class Everyone(Availability):
    """Every client of a round sends its message."""

    def places(self, ids: Sequence[int], step: int, key: Key) -> list[int]:
        """Return all places in their order."""
        return list(range(len(ids)))


@dataclass(frozen=True, kw_only=True)
class Dropout(Availability):
    """Each client of a round drops out with probability ``p``, whatever the others do.

    Args:
        p: Probability, to 2**-24.
    """

    p: float = 0.1

    def __post_init__(self) -> None:
        require("--availability dropout:p", self.p, 0 < self.p < 1, "in (0, 1)")

    def places(self, ids: Sequence[int], step: int, key: Key) -> list[int]:
        """Return the places whose draw is at least ``p``."""
        return (key.uniform(len(ids)) >= self.p).nonzero()[:, 0].tolist()


@dataclass(frozen=True, kw_only=True)
class Trace(Availability):
    """A file says in which rounds a device is there: lines of its number, first and last round.

    Client ``i`` is device ``i`` modulo the number of devices, one more than the largest, as more
    clients than devices are simulated. It drops out of every round that no line names. The file is
    CSV with the columns ``device,first,last``, all numbers from 0, ``last`` included.

    Args:
        file: Path of the file, without commas.
        sha256: Its SHA-256 in lower-case hex digits, which a record has; by default the file's.
    """

    file: str = ""
    sha256: str = ""

    def __post_init__(self) -> None:
        require("--availability trace:file", self.file, bool(self.file), "the path of a file")
        is_digest = re.fullmatch("([0-9a-f]{64})?", self.sha256) is not None
        require("--availability trace:sha256", self.sha256, is_digest, "64 lower-case hex digits")

    def places(self, ids: Sequence[int], step: int, key: Key) -> list[int]:
        """Return the places of the clients whose device is there in round ``step``."""
        devices = _devices(self.file, self.sha256 or self.checked().sha256)
        rounds = [devices[i % len(devices)] for i in ids]
        return [
            place
            for place, intervals in enumerate(rounds)
            if any(first <= step <= last for first, last in intervals)
        ]

    def checked(self) -> Self:
        """Return it with the digest of the file; `ConfigError` if the file has another one."""
        trace = replace(self, sha256=hashlib.sha256(_content(self.file)).hexdigest())
        _require_same(self.file, self.sha256 or trace.sha256, trace.sha256)
        _devices(trace.file, trace.sha256)
        return trace


KINDS: dict[str, type[Availability]] = {NONE: Everyone, "dropout": Dropout, "trace": Trace}


def parse(text: str) -> Availability:
    """Return the availability that a text names, without reading a file; `ConfigError` if none."""
    require("--availability", text, text.isprintable(), "one printable line")
    name, params = registry.split(text, "--availability")
    if name not in KINDS:
        kinds = ", ".join(KINDS)
        raise ConfigError(f"--availability must be one of {kinds}, got {text!r}; use dropout:p=0.1")
    made: Availability = registry.made("availability", name, KINDS[name], params)
    return made


def written(text: str) -> str:
    """Return the text with every default written out, and the digest of a trace."""
    availability = parse(text).checked()
    name = registry.split(text)[0]
    return registry.joined(
        name, {f.name: str(getattr(availability, f.name)) for f in fields(availability)}
    )


def _content(file: str) -> bytes:
    """Return the bytes of a trace as they are now."""
    return read_limited(Path(file), MAX_TRACE_BYTES)


def _require_same(file: str, named: str, digest: str) -> None:
    """Raise `ConfigError` if a trace has another SHA-256 than the one that was named."""
    if named != digest:
        raise ConfigError(
            f"{file} must have the SHA-256 {named[:12]}... that --availability names, got "
            f"{digest[:12]}...; use the file of that run, or leave sha256 out"
        )


@lru_cache(maxsize=4)
def _devices(file: str, digest: str) -> Intervals:
    """Return the intervals of every device by a trace with this SHA-256."""
    path = Path(file)
    data = _content(file)
    _require_same(file, digest, hashlib.sha256(data).hexdigest())
    try:
        lines = csv.reader(io.StringIO(data.decode()))
        header = next(lines, [])
        rows = [(lines.line_num, row) for row in lines if row]
    except (ValueError, csv.Error) as error:
        raise ConfigError(f"{path} must be CSV in UTF-8, got {error}") from error
    require(str(path), header, header == COLUMNS, f"CSV with the columns {', '.join(COLUMNS)}")
    require(str(path), "none", bool(rows), "a trace with a line for a device")
    spans: dict[int, list[tuple[int, int]]] = {}
    for number, row in rows:
        whole = len(row) == 3 and all(re.fullmatch("[0-9]{1,10}", cell.strip()) for cell in row)
        device, first, last = map(int, row) if whole else (0, 1, 0)
        if not (first <= last <= MAX_TRACE_NUMBER and device <= MAX_TRACE_NUMBER):
            requirement = "device,first,last, whole numbers from 0 with first <= last < 2**31"
            got = f"in line {number}, got {','.join(row)!r}"
            raise ConfigError(f"{path} must have {requirement} {got}")
        spans.setdefault(device, []).append((first, last))
    if max(spans) >= 4 * len(spans) + 1000:  # a list of devices that are never there
        raise ConfigError(
            f"{path} must number devices from 0, got {max(spans)} as one of {len(spans)}; number "
            "them anew"
        )
    return [spans.get(device, []) for device in range(max(spans) + 1)]
