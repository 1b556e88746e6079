"""One entry of a leaderboard: one JSON file, and its records beside it."""

import hashlib
import json
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from fedbench.api import Adjacency, Sees
from fedbench.experiment.scenario import Scenario
from fedbench.leaderboard.rules import Division

SCHEMA: Final = 1
Status = Literal["claimed", "reproduced", "contested"]


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("must be one line without control characters")
    return text


_ONE_LINE = AfterValidator(_printable)
OneLine = Annotated[str, _ONE_LINE]
Title = Annotated[str, Field(min_length=1, max_length=80), _ONE_LINE]
Authors = Annotated[str, Field(min_length=1, max_length=200), _ONE_LINE]
Link = Annotated[str, Field(pattern=r"^(https://[^\s\"'<>]+)?$", max_length=300), _ONE_LINE]
Note = Annotated[str, Field(max_length=1000), _ONE_LINE]
Tried = Annotated[int, Field(ge=1, le=1_000_000)]
Count = Annotated[int, Field(ge=0, lt=1 << 63)]


class _Model(BaseModel):
    # Numbers are numbers: strict, or "0.9" would be one.
    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        json_schema_serialization_defaults_required=True,  # a file says every field
    )


class Statement(_Model):
    """Statement of the authors about their entry; all else is read from its records.

    ``tried`` counts the configurations that they tried before this one, this one included.
    """

    name: Title
    authors: Authors
    link: Link = ""
    note: Note = ""
    tried: Tried


class Interval(_Model):
    """A mean over seeds and its 95 % interval, with the ``values`` in the order of the seeds."""

    mean: float
    low: float
    high: float
    values: list[float]


class Member(_Model):
    """A record that an entry is made of; its digest is of its content."""

    seed: Count
    id: str = Field(pattern=r"^[0-9a-f]{16}$")
    digest: str = Field(pattern=r"^[0-9a-f]{64}$")
    accuracy: float


class Point(_Model):
    """A look at the test data after some rounds.

    ``bits`` is a client's part so far, per parameter, up and down, mean over seeds.
    """

    rounds: Count
    bits: float
    accuracy: Interval


class AttackedCell(_Model):
    """The system under one attack, over all seeds; attack ``none`` is the clean run.

    Accuracy is on the benign clients' pooled test data at the last round, in [0, 1]; ``impact`` is
    clean minus attacked accuracy over paired seeds, None in the clean cell. Bits are means over
    seeds, per parameter: of a benign message up, of one client and round down. ``mandatory`` cells
    are part of the ensemble of the rules, ``flags`` the doubts that any run raised, each once.
    """

    attack: OneLine
    mandatory: bool
    accuracy: Interval
    impact: Interval | None = None
    uplink_bits: float
    downlink_bits: float
    curve: list[Point] = Field(min_length=1)
    flags: list[OneLine]
    records: list[Member]


class Price(_Model):
    """Privacy cost of the run with the largest epsilon, over all seeds, clean or attacked.

    ``epsilon`` is None where no finite one is known; the other fields are those of a record's.
    """

    epsilon: float | None
    delta: float
    unit: Literal["client", "example"]
    sees: Sees
    adjacency: Adjacency
    sampler: OneLine
    winner: OneLine
    note: OneLine = ""


class Score(_Model):
    """Numbers that an entry is ranked by: ``worst`` is under the attack that hurts most.

    Bits are means over the cells; ``epsilon`` is None without a mechanism or a finite price.
    """

    worst: Interval
    attack: OneLine
    clean: Interval
    uplink_bits: float
    downlink_bits: float
    epsilon: float | None


class Repeated(_Model):
    """A cell that was played again: its mean accuracy, and the difference from the claimed one.

    It ``agrees`` if accuracy, bits and epsilon are within the tolerance of the rules.
    """

    attack: OneLine
    accuracy: float
    difference: float
    agrees: bool


class Reproduction(_Model):
    """Result of playing some cells again, with some of the seeds."""

    code: OneLine
    platform: OneLine
    device: OneLine
    torch: OneLine
    seeds: list[Count]
    cells: list[Repeated] = Field(min_length=1)


class Entry(_Model):
    """A system, under every attack of the ensemble, over paired seeds; the clean cell is first.

    ``id`` is the SHA-256 of everything but itself, ``status`` and ``reproductions``, which come
    later. In the open division ``track`` is the data set. ``rules`` is
    the version that it was scored under. Plug-ins are as the records resolve them; ``votes`` says
    whether the protocol's own rule is a vote. ``scenario`` is that of the clean run with the first
    seed, and ``command`` plays all of it again.
    """

    schema_version: Literal[1] = SCHEMA
    id: str = Field(pattern=r"^[0-9a-f]{12}$")
    division: Division
    track: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$")
    rules: int = Field(ge=1, lt=10_000)
    name: Title
    authors: Authors
    link: Link = ""
    note: Note = ""
    tried: Tried
    protocol: OneLine
    defense: OneLine
    mechanism: OneLine
    votes: bool
    alphabet: OneLine
    parameters: Count
    scenario: Scenario
    seeds: list[Count]
    data_digest: OneLine
    code: OneLine
    device: OneLine
    cells: list[AttackedCell] = Field(min_length=1)
    price: Price | None = None
    score: Score
    command: OneLine
    status: Status = "claimed"
    reproductions: list[Reproduction] = []

    @model_validator(mode="after")
    def _cells(self) -> Self:
        """Check that the first cell, and no other, is clean, and that the worst is another one."""
        clean, *others = self.cells
        if clean.impact is not None or any(cell.impact is None for cell in others):
            raise ValueError("the first of its cells, and no other, must be the clean one")
        if self.score.attack not in [cell.attack for cell in others]:
            raise ValueError("the attack of its score must be that of an attacked cell")
        return self

    def content(self) -> dict[str, Any]:
        """Return everything but the id, and what comes after the entry was made."""
        return self.model_dump(mode="json", exclude={"id", "status", "reproductions"})

    def content_id(self) -> str:
        """Return the id that follows from the content."""
        text = json.dumps(self.content(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def to_json(self) -> str:
        """Return the text of the file, indented and in the order of the schema."""
        return self.model_dump_json(indent=1) + "\n"

    def system(self) -> tuple[Division, str, str, Scenario]:
        """Return division, track, code and system, which no two entries may share."""
        scenario = self.scenario.model_copy(update={"attack": "", "seed": 0, "data_seed": None})
        return self.division, self.track, self.code, scenario

    def coverage(self) -> str:
        """Say how much was played again: cells, and seeds that each of them had."""
        counts = [(len(r.seeds), again.attack) for r in self.reproductions for again in r.cells]
        most = {attack: count for count, attack in sorted(counts)}
        seeds = f"{min(most.values(), default=0)} of {len(self.seeds)} seeds"
        return f"{len(most)} of {len(self.cells)} cells, {seeds}"

    @property
    def file_name(self) -> str:
        """Name of the file, ``<protocol>-<id>.json``; a ``.jsonl.gz`` beside it has the records."""
        return f"{self.protocol.partition(':')[0]}-{self.id}.json"


def status(reproductions: Sequence[Reproduction], seeds: Sequence[int] = ()) -> Status:
    """Return ``contested`` while any reproduction that counts disagrees, else how far it came.

    An entry is ``reproduced`` once a cell was played again with all ``seeds``. A later reproduction
    of a cell replaces an earlier one if it has all its seeds.
    """
    words: list[tuple[str, set[int], bool]] = []
    for each in reproductions:
        played = set(each.seeds)
        for again in each.cells:
            words = [word for word in words if word[0] != again.attack or not word[1] <= played]
            words.append((again.attack, played, again.agrees))
    if not all(agrees for _, _, agrees in words):
        return "contested"
    return "reproduced" if any(set(seeds) <= played for _, played, _ in words) else "claimed"
