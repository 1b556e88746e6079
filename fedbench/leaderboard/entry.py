"""One entry of a leaderboard: one JSON file, and its records beside it."""

import hashlib
import json
from typing import Annotated, Final, Literal, Self

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


OneLine = Annotated[str, AfterValidator(_printable)]
Title = Annotated[str, Field(min_length=1, max_length=80), AfterValidator(_printable)]
Authors = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_printable)]
Link = Annotated[
    str,
    Field(pattern=r"^(https://[^\s\"'<>]+)?$", max_length=300),
    AfterValidator(_printable),
]
Note = Annotated[str, Field(max_length=1000), AfterValidator(_printable)]
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

    Args:
        name: Name of the entry.
        authors: Names of those who submit it.
        link: Address of a paper or of code, https only; may be empty.
        note: Note for readers.
        tried: Configurations that they tried before this one, this one included.
    """

    name: Title
    authors: Authors
    link: Link = ""
    note: Note = ""
    tried: Tried


class Interval(_Model):
    """A mean over seeds and its 95 % Student t interval."""

    mean: float
    low: float
    high: float


class Member(_Model):
    """A record that an entry is made of.

    Args:
        seed: Of the run.
        id: Of the record.
        digest: Of the record: its content.
        accuracy: Of the record, in [0, 1].
    """

    seed: Count
    id: str = Field(pattern=r"^[0-9a-f]{16}$")
    digest: str = Field(pattern=r"^[0-9a-f]{64}$")
    accuracy: float


class Point(_Model):
    """A look at the test data on the way.

    Args:
        rounds: That were over.
        bits: A client's part so far, per parameter, up and down, mean over seeds.
        accuracy: In [0, 1].
    """

    rounds: Count
    bits: float
    accuracy: Interval


class AttackedCell(_Model):
    """The system under one attack, over all seeds.

    Args:
        attack: As the records resolve it; ``none`` is the clean run.
        mandatory: Is it part of the ensemble of the rules?
        accuracy: Of the benign clients' pooled test data at the last round, in [0, 1].
        impact: Clean minus attacked accuracy over paired seeds; None in the clean cell.
        uplink_bits: Per parameter and benign message, mean over seeds.
        downlink_bits: Per parameter, client and round, mean over seeds.
        curve: Accuracy against bits on the way.
        flags: Doubts that any of the runs raised, each once.
        records: One a seed, in the order of the seeds.
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

    Args:
        epsilon: None where no finite one is known.
        delta: Of the same guarantee.
        unit: ``client`` or ``example``.
        sees: What the adversary of privacy sees.
        adjacency: What may differ.
        sampler: Who took part, how often, who can see it.
        winner: The bound that is the least.
        note: What malicious clients mean for it.
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
    """Numbers that an entry is ranked by.

    Args:
        worst: Accuracy under the attack that hurts most; in [0, 1].
        attack: That attack.
        clean: Accuracy without attack.
        uplink_bits: Per parameter and message, the mean over the cells' means.
        downlink_bits: Per parameter, client and round, likewise.
        epsilon: The largest; None without a mechanism, or without a finite price.
    """

    worst: Interval
    attack: OneLine
    clean: Interval
    uplink_bits: float
    downlink_bits: float
    epsilon: float | None


class Repeated(_Model):
    """A cell that was played again.

    Args:
        attack: Its attack.
        accuracy: Mean over its seeds, in [0, 1].
        difference: From the claimed mean.
        agrees: Are accuracy, bits and epsilon within the tolerance of the rules?
    """

    attack: OneLine
    accuracy: float
    difference: float
    agrees: bool


class Reproduction(_Model):
    """Result of playing some cells again.

    Args:
        code: Version that played it.
        platform: Operating system and processor.
        device: ``cpu`` or the accelerator's name.
        torch: Version.
        seeds: That were played.
        cells: Those that were played.
    """

    code: OneLine
    platform: OneLine
    device: OneLine
    torch: OneLine
    seeds: list[Count]
    cells: list[Repeated] = Field(min_length=1)


class Entry(_Model):
    """A system, under every attack of the ensemble, over paired seeds.

    Args:
        schema_version: Of this file.
        id: Twelve hex digits: SHA-256 of everything but itself, `status` and `reproductions`.
        division: ``closed`` or ``open``.
        track: Of the closed division; in the open one, the data set.
        rules: Version that it was scored under.
        name: What its authors call it.
        authors: Who submits it.
        link: To a paper or to code, https only; may be empty.
        note: What a reader should know.
        tried: Configurations that its authors tried before this one, this one included.
        protocol: As the records resolve it.
        defense: As the records resolve it.
        mechanism: As the records resolve it.
        votes: Is the protocol's own rule a vote?
        alphabet: What its clients send; names its ensemble.
        parameters: Of the network, d.
        scenario: Of the clean run with the first seed.
        seeds: Paired: every cell has all of them.
        data_digest: Of the data set.
        code: Version of fedbench that played it.
        device: That played it.
        cells: The clean one first.
        price: What it gives away; None without a mechanism.
        score: What it is ranked by.
        command: Plays it again, without the seeds' order mattering.
        status: ``claimed`` until somebody has run it again.
        reproductions: The oldest first.
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

    def content_id(self) -> str:
        """Return the id that follows from the content."""
        content = self.model_dump(mode="json", exclude={"id", "status", "reproductions"})
        text = json.dumps(content, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def to_json(self) -> str:
        """Return the text of the file, indented and in the order of the schema."""
        return self.model_dump_json(indent=1) + "\n"

    def system(self) -> tuple[Division, str, str, Scenario]:
        """Return division, track, code and system, which no two entries may share."""
        scenario = self.scenario.model_copy(update={"attack": "", "seed": 0, "data_seed": None})
        return self.division, self.track, self.code, scenario

    @property
    def file_name(self) -> str:
        """Name of the file, ``<protocol>-<id>.json``; a ``.jsonl.gz`` beside it has the records."""
        return f"{self.protocol.partition(':')[0]}-{self.id}.json"
