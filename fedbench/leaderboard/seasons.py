"""Seasons: entries are frozen, then a public value draws the seeds that they are ranked on.

Nobody can choose a system for its seeds, since they are drawn after every system of the season was
fixed; and all systems of a season have the same ones, so that they can be compared by pairs.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Self

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedbench.core.errors import ConfigError
from fedbench.core.files import read_toml, write_atomically
from fedbench.experiment.scenario import LAST_SEED
from fedbench.leaderboard import beacon
from fedbench.leaderboard.rules import MAX_RULES_BYTES, first_wrong, numbered

FOLDER = "seasons"
NAME = re.compile(r"[a-z0-9][a-z0-9-]*")

Hex = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Season(BaseModel):
    """Frozen entries, and the public value that draws the seeds of their ranking stage.

    Args:
        name: Name of its file.
        source: Where the value comes from, said before it is known: a round of a public beacon. If
            it speaks of ``drand``, it must name a round of the chain quicknet, whose signature is
            verified; the value is then the SHA-256 of the signature.
        frozen: Ids of the entries whose systems were fixed before the value was known.
        digests: Their digests (`Entry.content_digest`), of which ids are the beginning: of two
            entries that somebody made to have one id, only one is frozen. Empty in older seasons.
        value: The public value, 32 bytes; empty until it is published.
        signature: Signature of the beacon's round, in hexadecimal digits.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=rf"^{NAME.pattern}$")
    source: str = Field(min_length=1, max_length=200)
    frozen: tuple[str, ...]
    digests: tuple[Hex, ...] = ()
    value: Hex | None = None
    signature: str = Field(default="", pattern=r"^([0-9a-f]{2})*$")

    @model_validator(mode="after")
    def _signed(self) -> Self:
        if not self.source.isprintable() or not self.source.split():
            raise ValueError("source must be one line that says something")
        if list(self.frozen) != sorted(set(self.frozen)):
            raise ValueError("frozen must have every id once, in order")
        if self.digests and [digest[:12] for digest in self.digests] != list(self.frozen):
            raise ValueError("digests must be those of the frozen entries, in their order")
        try:
            number = beacon.round_of(self.source)
        except ConfigError as error:
            raise ValueError(str(error)) from error
        if self.value is None or number is None:
            return self
        signature = bytes.fromhex(self.signature)
        hashed = hashlib.sha256(signature).hexdigest()
        if hashed != self.value:
            raise ValueError(f"value must be the hash of the signature (SHA-256), {hashed}")
        if not beacon.signed(number, signature):
            raise ValueError(f"signature must be that of {self.source}, which it is not")
        return self

    def seeds(self, track: str, count: int) -> list[int]:
        """Return the seeds of a track: 63 bits each, drawn from the value."""
        digests = (self._hash("seed", track, str(i)) for i in range(count))
        return [int.from_bytes(digest[:8], "big") & LAST_SEED for digest in digests]

    def order(self, entry: str, attacks: Iterable[str]) -> list[str]:
        """Return the attacks of an entry in an order that is drawn from the value."""
        return sorted(attacks, key=lambda attack: self._hash("cell", entry, attack))

    def _hash(self, *words: str) -> bytes:
        if self.value is None:
            raise ConfigError(
                f"season {self.name} must have its value before anything is drawn, got none; say "
                f"fedbench leaderboard draw {self.name} --value once {self.source} is published"
            )
        return hashlib.sha256(" ".join([self.value, *words]).encode()).digest()


def path(board: Path, name: str) -> Path:
    """Return the file of a season."""
    return board / FOLDER / f"{name}.toml"


def read(file: Path) -> Season:
    """Read a season; `ConfigError` for a link, a wrong name or a wrong field."""
    if file.is_symlink():
        raise ConfigError(f"{file} must be a file of the board, got a link")
    try:
        season = Season.model_validate(read_toml(file, MAX_RULES_BYTES))
    except ValidationError as error:
        raise ConfigError(f"{file}: {first_wrong(error)}") from error
    if season.name != file.stem:
        raise ConfigError(f"{file} must be named by its season, got {season.name!r}")
    return season


def seasons(board: Path) -> dict[str, Season]:
    """Return the seasons of a board by name.

    `ConfigError` if one is broken, or if two share an entry.
    """
    files = sorted((board / FOLDER).glob("*.toml"))
    by_name = {file.stem: read(file) for file in files}
    for texts in shared(by_name).values():
        raise ConfigError(texts[0])
    return by_name


def shared(by_name: Mapping[str, Season]) -> dict[str, list[str]]:
    """Return the seasons that freeze entries of another one, by name, and what is wrong.

    Whoever could add a season to that of an entry would choose the seeds of its ranking stage.
    """
    every = Counter(entry for season in by_name.values() for entry in season.frozen)
    requirement = "an entry must be frozen in one season"
    several = {
        name: [f"{requirement}, got {entry} in two" for entry in season.frozen if every[entry] > 1]
        for name, season in by_name.items()
    }
    return {name: texts for name, texts in several.items() if texts}


def of(entry: str, by_name: Mapping[str, Season]) -> Season | None:
    """Find the season in which the entry with this id is frozen; None without one."""
    return next((season for _, season in sorted(by_name.items()) if entry in season.frozen), None)


def freeze(board: Path, name: str, source: str, digests: Iterable[str]) -> Season:
    """Write a season of the entries, named by their digests, that are in none; without a value.

    `ConfigError` if there is one of that name, or if the folder is no board.
    """
    numbered(board)
    file = path(board, name)
    if file.exists():
        raise ConfigError(f"NAME must be that of a new season, got {name!r}")
    earlier = {entry for season in seasons(board).values() for entry in season.frozen}
    new = tuple(sorted({digest for digest in digests if digest[:12] not in earlier}))
    frozen = tuple(digest[:12] for digest in new)
    try:
        season = Season(name=name, source=source, frozen=frozen, digests=new)
    except ValidationError as error:
        raise ConfigError(f"season {first_wrong(error)}, got {name!r} and {source!r}") from error
    file.parent.mkdir(exist_ok=True)
    _write(file, season)
    return season


def draw(board: Path, name: str, value: str, signature: str) -> Season:
    """Write the value of a season; `ConfigError` if it has one, or if it is not of its source."""
    file = path(board, name)
    if not file.exists():
        raise ConfigError(f"NAME must be that of a season, got {name!r}; freeze one first")
    season = read(file)
    if season.value is not None:
        raise ConfigError(f"season {name} must be drawn once, got a second value")
    fields = season.model_dump() | {"value": value, "signature": signature}
    try:
        drawn = Season.model_validate(fields)
    except ValidationError as error:
        raise ConfigError(f"--value or --signature: {first_wrong(error)}, got {value!r}") from error
    _write(file, drawn)
    return drawn


def _write(file: Path, season: Season) -> None:
    fields = season.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    write_atomically(file, tomli_w.dumps(fields | {"frozen": list(season.frozen)}).encode())
