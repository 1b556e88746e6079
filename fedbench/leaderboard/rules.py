"""The rules of the leaderboards: data, one file a version, never changed once it is used."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedbench.errors import ConfigError, require
from fedbench.scenario import Scenario

Division = Literal["closed", "open"]
DIVISIONS: tuple[Division, ...] = ("closed", "open")


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Envelope(_Model):
    """Where the accuracy of a clean run can lie, in [0, 1].

    Args:
        low: Less is a broken baseline: half of what the nearest class mean of pooled data reaches.
        high: More is a leak or a bug: what the best of some classifiers of pooled data reaches.
    """

    low: float = Field(ge=0)
    high: float = Field(le=1)

    @model_validator(mode="after")
    def _room(self) -> Self:
        if not self.low < self.high:
            raise ValueError("low must be less than high")
        return self


class Track(_Model):
    """A race of the closed division: what all its entries have in common.

    Args:
        name: Of the folder; usually the data set.
        scenario: Fields that an entry must have just so.
        seeds: That every cell is played with.
        data: Digest of the data set.
        clean: Envelope of the clean run.
    """

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$")
    scenario: dict[str, Any]
    seeds: tuple[int, ...]
    data: str = Field(pattern=r"^[0-9a-f]{64}$")
    clean: Envelope


class Tolerance(_Model):
    """How far a run may be from the one that is reproduced.

    Args:
        accuracy: Of the mean over seeds, in [0, 1].
        bits: Relative.
        epsilon: Relative.
    """

    accuracy: float = Field(ge=0)
    bits: float = Field(ge=0)
    epsilon: float = Field(ge=0)


class Rules(_Model):
    """One version.

    Args:
        version: From 1 on.
        seeds: The least number of paired seeds; an interval needs two.
        confidence: Of every interval.
        free: Fields of a scenario that entries of the closed division choose; those that neither
            `free` nor a track names must be the default.
        ensemble: Of each alphabet, the attacks that an entry must have withstood, as typed.
        tolerance: Of `fedbench leaderboard reproduce`.
        track: The races of the closed division.
    """

    version: int = Field(ge=1)
    seeds: int = Field(ge=2)
    confidence: float = Field(gt=0, lt=1)
    free: tuple[str, ...]
    ensemble: dict[str, tuple[str, ...]]
    tolerance: Tolerance
    track: tuple[Track, ...]

    def named(self, name: str) -> Track | None:
        """The track of that name."""
        return next((track for track in self.track if track.name == name), None)

    def scenario(self, track: Track) -> Scenario:
        """What a track fixes, the rest at its defaults."""
        return Scenario.of(**track.scenario)


def read_rules(path: Path) -> Rules:
    """One version from its file.

    Raises:
        ConfigError: unreadable, a link, or not as this model says.
    """
    require(str(path), "a link", not path.is_symlink(), "a file of the board")
    try:
        rules = Rules.model_validate(tomllib.loads(path.read_text("utf-8")))
        for track in rules.track:
            rules.scenario(track)
        return rules
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} must be TOML: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"{path}: {where}: {first['msg'].lower()}") from error


def versions(board: Path) -> dict[int, Rules]:
    """Every version of a board, the oldest first.

    Raises:
        ConfigError: there is none, one is broken, or its file does not bear its number.
    """
    found = {}
    for path in sorted((board / "rules").glob("*.toml")):
        rules = read_rules(path)
        if path.stem != str(rules.version):
            raise ConfigError(f"{path} must be named by its version, got version {rules.version}")
        found[rules.version] = rules
    if not found:
        raise ConfigError(f"{board} must be a board with rules/1.toml, got none; use --board")
    return dict(sorted(found.items()))
