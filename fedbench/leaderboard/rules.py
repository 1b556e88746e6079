"""The rules of the leaderboards: data, one file a version, never changed once it is used."""

import hashlib
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StrictInt, ValidationError, model_validator

from fedbench.core.errors import ConfigError, require
from fedbench.core.files import read_limited, read_toml
from fedbench.core.registry import split
from fedbench.experiment.record import read
from fedbench.experiment.scenario import Scenario

Division = Literal["closed", "open"]
DIVISIONS: tuple[Division, ...] = ("closed", "open")

MAX_RULES_BYTES = 1 << 20
DEFAULT_BOARD = Path("leaderboards")  # board of a command that names none
INSTALLED_BOARD = "leaderboard/board"  # folder of the rules inside an installed package
FALLBACK_ALPHABET = "FloatVectors"  # alphabet whose list an alphabet without one has
ADAPTIVE = "auto"  # the attack that an ensemble must have to drop any
NUMBER = re.compile(r"[1-9][0-9]{0,3}")
# SHA-256 of the file of every version. A version that was published is never changed; who writes a
# new one adds its digest here.
PUBLISHED = {
    3: "63084a41a3649b77025f48f06fb240dcb020b663f597841e3d9e38c0c82e04dd",
}


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Envelope(_Model):
    """Where the accuracy of a clean run can lie, in [0, 1].

    Less than ``low``, half of what the nearest class mean of pooled data reaches, is a broken
    baseline. More than ``high``, the best of some classifiers of pooled data, is a leak or a bug.
    """

    low: float = Field(ge=0)
    high: float = Field(le=1)

    @model_validator(mode="after")
    def _room(self) -> Self:
        if not self.low < self.high:
            raise ValueError("low must be less than high")
        return self


Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Track(_Model):
    """A race of the closed division: what all its entries have in common.

    That is the fields in ``scenario``, the seeds of every cell and the digest of the ``data``, of
    whose samples the largest class has the share ``chance``: so good is a constant answer.
    Entries of a track that is not ``ranked`` are shown without a rank.
    """

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$")
    scenario: dict[str, Any]
    seeds: tuple[StrictInt, ...]  # true is not 1
    data: Digest
    clean: Envelope
    chance: float = Field(default=0.0, ge=0, lt=1)
    ranked: bool = True


class Front(_Model):
    """Entries that the Pareto front may hold: of private ones those up to an ``epsilon``."""

    epsilon: float = Field(default=10.0, gt=0)


@dataclass(frozen=True)
class Limits:
    """Numbers of the rules that a ranking needs, for one track."""

    confidence: float = 0.95
    ranked: bool = True
    chance: float = 0.0  # accuracy of a constant answer
    epsilon: float = Front().epsilon

    def admit(self, low: float, epsilon: float | None) -> bool:
        """Tell if an entry may be on the front: whose interval begins at ``low``, in [0, 1]."""
        return low > self.chance and (epsilon is None or epsilon <= self.epsilon)


class Tolerance(_Model):
    """How far a cell may be from the same cell played again.

    The difference of the mean accuracies is in [0, 1], those of bits and epsilon are relative. A
    larger difference of accuracies contests an entry if it is sure at the ``level``, by pairs of
    seeds: on another processor runs end elsewhere, but not all of them lower.
    """

    accuracy: float = Field(ge=0)
    bits: float = Field(ge=0)
    epsilon: float = Field(ge=0)
    level: float = Field(default=0.1, gt=0, lt=1)


class HeldOut(_Model):
    """Attacks that are published with the next version: SHA-256 of their salted files."""

    digests: tuple[Digest, ...] = ()

    @model_validator(mode="after")
    def _once(self) -> Self:
        if len(set(self.digests)) < len(self.digests):
            raise ValueError("every digest must be there once")
        return self


class Rules(_Model):
    """One version of the rules, from 1 on; ``seeds`` is the least number of paired seeds.

    A run's accuracy is the mean of its last ``looks``. The ``worst`` attacks of the development
    stage and the clean run are played again on so many ``ranking_seeds``.

    Entries of the closed division choose the ``free`` fields of a scenario; those that neither
    ``free`` nor a track names must be the default. ``ensemble`` has the attacks on each alphabet
    that an entry must have withstood, as typed, and ``adaptive`` those on all alphabets.
    ``families`` groups attacks by how they work: one of a family stands in for the others.
    """

    version: StrictInt = Field(ge=1)
    seeds: StrictInt = Field(ge=2)
    confidence: float = Field(gt=0, lt=1)
    looks: StrictInt = Field(default=1, ge=1)
    worst: StrictInt = Field(default=3, ge=1)
    ranking_seeds: StrictInt = Field(default=20, ge=3)
    free: tuple[str, ...]
    ensemble: dict[str, tuple[str, ...]]
    adaptive: tuple[str, ...] = ()
    families: dict[str, tuple[str, ...]] = {}
    held_out: HeldOut = HeldOut()
    tolerance: Tolerance
    front: Front = Front()
    track: tuple[Track, ...]
    digest: Digest = Field(default="0" * 64, exclude=True)  # of the file that they were read from

    @model_validator(mode="after")
    def _grouped(self) -> Self:
        listed = [attack for family in self.families.values() for attack in family]
        if len(set(listed)) < len(listed):
            raise ValueError("families must name every attack once")
        return self

    def attacks(self, alphabet: str) -> tuple[str, ...]:
        """Return the mandatory attacks on an alphabet as typed.

        On an alphabet that is not listed, such as a new one of somebody's package, they are those
        on floats: attacks on real values, which run on every alphabet.
        """
        own = self.ensemble.get(alphabet) or self.ensemble.get(FALLBACK_ALPHABET)
        return () if own is None else (*own, *self.adaptive)

    def stand_in(self, attack: str, alphabet: str) -> str | None:
        """Return the mandatory attack of the same family as one that is not; None without any."""
        mandatory = self.attacks(alphabet)
        family = next((family for family in self.families.values() if attack in family), ())
        return next((other for other in family if other in mandatory), None)

    def named(self, name: str) -> Track | None:
        """Return the track of that name; None if there is none."""
        return next((track for track in self.track if track.name == name), None)

    def limits(self, track: str) -> Limits:
        """Return what a ranking of the track needs; of an open one nobody knows the chance."""
        fixed = self.named(track)
        if fixed is None:
            return Limits(self.confidence, epsilon=self.front.epsilon)
        return Limits(self.confidence, fixed.ranked, fixed.chance, self.front.epsilon)

    def scenario(self, track: Track) -> Scenario:
        """Return the scenario that a track fixes, with defaults for all other fields."""
        return Scenario.of(**track.scenario)


def first_wrong(error: ValidationError) -> str:
    """Describe the first field that a model refuses."""
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc'])) or 'file'}: {first['msg'].lower()}"


def read_rules(path: Path) -> Rules:
    """Read a version of the rules; `ConfigError` for a link, a wrong name or a wrong field."""
    require(str(path), "a link", not path.is_symlink(), "a file of the board")
    try:
        fields = read_toml(path, MAX_RULES_BYTES)
        require(str(path), "a digest", "digest" not in fields, "without the digest of itself")
        digest = hashlib.sha256(read_limited(path, MAX_RULES_BYTES)).hexdigest()
        rules = Rules.model_validate(fields | {"digest": digest})
    except ValidationError as error:
        raise ConfigError(f"{path}: {first_wrong(error)}") from error
    for track in rules.track:
        rules.scenario(track)
    if path.stem != str(rules.version):
        raise ConfigError(f"{path} must be named by its version, got version {rules.version}")
    return rules


def numbered(board: Path) -> dict[int, Path]:
    """Return the file of every version, the oldest first, unread; `ConfigError` without any."""
    listed = (board / "rules").glob("*.toml")
    paths = {int(path.stem): path for path in listed if NUMBER.fullmatch(path.stem)}
    if not paths:
        got = lacking(board) or "none; name another folder"
        raise ConfigError(f"{board} must be a board with rules, got {got}")
    return dict(sorted(paths.items()))


def lacking(folder: Path) -> str | None:
    """Say that a folder without rules has records, and what to do with those; None if it has not.

    Only a few of its files are looked at.
    """
    for path in sorted(folder.glob("*.json"))[:3]:
        with suppress(ConfigError):
            read(path)
            return "a folder of records; give it to fedbench results or fedbench leaderboard submit"
    return None


def installed() -> Path:
    """Return the board inside the installed package, rules without entries, or the repository's."""
    package = Path(str(files("fedbench")))
    inside = package / INSTALLED_BOARD
    return inside if inside.is_dir() else package.parent / "leaderboards"


def readable(board: Path) -> Path:
    """Return the board; the installed one if it is the default, which exists only in a clone."""
    absent = board == DEFAULT_BOARD and not board.exists()
    return installed() if absent else board


def newest(board: Path) -> Rules:
    """Return the newest version; `ConfigError` if it is broken, while older ones may be."""
    return read_rules([*numbered(board).values()][-1])


def versions(board: Path, broken: dict[Path, str] | None = None) -> dict[int, Rules]:
    """Return every version of a board that can be read, the oldest first.

    ``broken`` takes the error of every other file of rules; without it the first one is raised.
    """
    readable = []
    numbered(board)
    for path in sorted((board / "rules").glob("*.toml")):
        try:
            readable.append(read_rules(path))
        except ConfigError as error:
            if broken is None:
                raise
            broken[path] = str(error)
    return {rules.version: rules for rules in sorted(readable, key=lambda rules: rules.version)}


def changed(board: Path) -> dict[Path, str]:
    """Return the rule files that differ from the published ones, with the expected digests."""
    wrong = {}
    for number, path in numbered(board).items():
        try:
            digest = hashlib.sha256(read_limited(path, MAX_RULES_BYTES)).hexdigest()
        except ConfigError:  # `versions` says so
            continue
        published = PUBLISHED.get(number)
        if published is None:
            wrong[path] = (
                f"version {number} is none that this fedbench knows; update it, add the digest to "
                "PUBLISHED if you wrote that version, or say --own-rules on a board of your own"
            )
        elif digest != published:
            wrong[path] = (
                f"version {number} must be as it was published (sha256 {published[:12]}...), got "
                f"{digest[:12]}...; write a new version, or say --own-rules on a board of your own"
            )
    return wrong


def growth(versions: dict[int, Rules]) -> dict[int, list[str]]:
    """Return, by version, the demands of the version before that it has dropped, if any."""
    pairs = {new.version: list(losses(old, new)) for old, new in pairwise(versions.values())}
    return {version: lost for version, lost in pairs.items() if lost}


def losses(old: Rules, new: Rules) -> Iterator[str]:
    """Yield every change that would let an entry in that the version before kept out."""
    before = f"as in version {old.version}"
    if new.version != old.version + 1:
        yield f"version must be {old.version + 1}, got {new.version}"
    if new.seeds < old.seeds:
        yield f"seeds must be at least {old.seeds} {before}, got {new.seeds}"
    for name in ("looks", "worst", "ranking_seeds"):
        if getattr(new, name) < getattr(old, name):
            yield f"{name} must be at least {getattr(old, name)} {before}, got {getattr(new, name)}"
    if new.confidence != old.confidence:
        yield f"confidence must be {old.confidence} {before}, got {new.confidence}"
    if freed := set(new.free) - set(old.free):
        yield f"free must not have {', '.join(sorted(freed))}, {before}"
    for name, limit in old.tolerance:
        got = getattr(new.tolerance, name)
        if name == "level" and got < limit:
            yield f"tolerance.level must be at least {limit} {before}, got {got}"
        elif name != "level" and got > limit:
            yield f"tolerance.{name} must be at most {limit} {before}, got {got}"
    if new.front.epsilon > old.front.epsilon:
        yield f"front.epsilon must be at most {old.front.epsilon} {before}, got {new.front.epsilon}"
    for alphabet in old.ensemble:
        newer = new.attacks(alphabet)
        dropped = [attack for attack in old.attacks(alphabet) if attack not in newer]
        if lost := [attack for attack in dropped if new.stand_in(attack, alphabet) is None]:
            yield (
                f"ensemble.{alphabet} must have {', '.join(lost)} {before}, or another attack of "
                "the family that names it"
            )
        elif dropped and not any(split(attack)[0] == ADAPTIVE for attack in newer):
            yield f"ensemble.{alphabet} must have {ADAPTIVE}, since it drops {', '.join(dropped)}"
    for track in old.track:
        now = new.named(track.name)
        if now is None:
            yield f"track {track.name} must be there {before}"
            continue
        for name in ("scenario", "seeds", "data"):
            if getattr(now, name) != getattr(track, name):
                yield f"track {track.name} must have the {name} that it has in {old.version}"
        if now.chance < track.chance:
            yield f"track {track.name} must have a chance of at least {track.chance} {before}"
        if now.clean.low < track.clean.low or now.clean.high > track.clean.high:
            yield f"track {track.name} must have an envelope within that of {old.version}"
