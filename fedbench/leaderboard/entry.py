"""One entry of a leaderboard: one JSON file, and its records beside it."""

import hashlib
import json
from datetime import date
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from fedbench.api import Adjacency, Sees
from fedbench.experiment.record import Source
from fedbench.experiment.scenario import Scenario
from fedbench.leaderboard.rules import Division
from fedbench.tables.numbers import counted

SCHEMA: Final = 2
Status = Literal["submitted", "replayed", "replicated", "contested"]
LATER = ("id", "status", "score", "ranking", "replays")  # what an id does not cover


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("must be one line without control characters")
    return text


def _a_day(text: str) -> str:
    if text:
        date.fromisoformat(text)
    return text


_ONE_LINE = AfterValidator(_printable)
OneLine = Annotated[str, _ONE_LINE]
Title = Annotated[str, Field(min_length=1, max_length=80), _ONE_LINE]
Authors = Annotated[str, Field(min_length=1, max_length=200), _ONE_LINE]
Link = Annotated[str, Field(pattern=r"^(https://[^\s\"'<>]+)?$", max_length=300), _ONE_LINE]
Note = Annotated[str, Field(max_length=1000), _ONE_LINE]
Tried = Annotated[int, Field(ge=1, le=1_000_000)]
Day = Annotated[str, Field(pattern=r"^(\d{4}-\d{2}-\d{2})?$"), AfterValidator(_a_day)]
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

    ``tried`` counts the configurations that they tried before this one, this one included;
    ``submitted`` is the day, as in 2026-12-31, empty where nobody said it.
    """

    name: Title
    authors: Authors
    link: Link = ""
    note: Note = ""
    tried: Tried
    submitted: Day = ""


class Interval(_Model):
    """A mean over seeds and its 95 % interval, with the ``values`` in the order of the seeds."""

    mean: float
    low: float
    high: float
    values: list[float]


class Member(_Model):
    """A record that an entry is made of; its digest is of its content.

    The accuracy is the mean of as many last looks as the rules say, in [0, 1].
    """

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

    Accuracy is on the benign clients' pooled test data, in [0, 1], over the last looks that the
    rules count; ``area`` is its mean over all looks. ``impact`` is clean minus attacked accuracy
    over paired seeds, None in the clean cell. Bits are means over seeds, per parameter: of a benign
    message up, of one client and round down. ``mandatory`` cells are part of the ensemble of the
    rules, ``flags`` the doubts that any run raised, each once.
    """

    attack: OneLine
    mandatory: bool
    accuracy: Interval
    area: float
    impact: Interval | None = None
    uplink_bits: float
    downlink_bits: float
    curve: list[Point] = Field(min_length=1)
    flags: list[OneLine]
    records: list[Member]


def intervals(cell: AttackedCell) -> list[Interval]:
    """Return all intervals of a cell."""
    impact = [] if cell.impact is None else [cell.impact]
    return [cell.accuracy, *impact, *(point.accuracy for point in cell.curve)]


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

    ``area`` is that attack's mean accuracy over all looks. Bits are means over the mandatory cells;
    ``epsilon`` is None without a mechanism or a finite price.
    """

    worst: Interval
    attack: OneLine
    area: float
    clean: Interval
    uplink_bits: float
    downlink_bits: float
    epsilon: float | None


class RankingStage(_Model):
    """The second stage of an entry: the attacks that hurt most, on seeds that nobody chose.

    The first cell is the clean run; the others are the attacks with the lowest accuracy over the
    development seeds. The ``seeds`` were drawn from the value of the ``season``, after the entry
    was frozen.
    """

    season: OneLine
    seeds: list[Count]
    cells: list[AttackedCell] = Field(min_length=2)
    price: Price | None = None


class Replay(_Model):
    """Cells that somebody played again with all of their seeds: the records lie beside the entry.

    ``digests`` are those of the records, in the order of their archive, ``read`` the SHA-256 of
    files of other packages that whoever played it has read, see `replays.unread`.
    """

    by: Title
    code: OneLine
    platform: OneLine
    processor: OneLine
    device: OneLine
    torch: OneLine
    digests: list[str] = Field(min_length=1)
    read: list[str] = []


class Entry(_Model):
    """A system, under every attack of the ensemble, over paired seeds; the clean cell is first.

    ``id`` is the SHA-256 of everything but itself and what comes later: ``ranking``, the stage on
    seeds that nobody chose, ``replays`` by others, the ``status`` that follows from these, and
    ``score``, which is of the ranking stage once there is one. In the open division ``track`` is
    the data set. ``rules`` is the version that it was scored under, ``rules_digest`` the SHA-256 of
    its file, and ``sources`` are the plug-ins of other packages. Plug-ins are as the records
    resolve them; ``votes`` says whether the protocol's own rule is a vote. ``scenario`` is that of
    the clean run with the first seed, and ``command`` plays all of it again.
    """

    schema_version: Literal[2] = SCHEMA
    id: str = Field(pattern=r"^[0-9a-f]{12}$")
    division: Division
    track: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$")
    rules: int = Field(ge=1, lt=10_000)
    rules_digest: str = Field(pattern=r"^[0-9a-f]{64}$")
    name: Title
    authors: Authors
    link: Link = ""
    note: Note = ""
    tried: Tried
    submitted: Day = ""
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
    sources: list[Source]
    cells: list[AttackedCell] = Field(min_length=1)
    price: Price | None = None
    command: OneLine
    score: Score
    ranking: RankingStage | None = None
    replays: list[Replay] = []
    status: Status = "submitted"

    @model_validator(mode="after")
    def _cells(self) -> Self:
        """Check that the first cell, and no other, is clean, and that the worst is another one."""
        for cells, seeds in ((self.cells, self.seeds), (self.scored, self.scored_seeds)):
            clean, *others = cells
            for cell in cells:
                if [member.seed for member in cell.records] != seeds:
                    raise ValueError("every cell must have a record of each seed, in their order")
                if any(len(x.values) != len(seeds) for x in intervals(cell)):
                    raise ValueError("every interval of a cell must have a value for each seed")
            if clean.impact is not None or any(cell.impact is None for cell in others):
                raise ValueError("the first of its cells, and no other, must be the clean one")
        if self.score.attack not in [cell.attack for cell in self.scored[1:]]:
            raise ValueError("the attack of its score must be that of an attacked cell")
        return self

    @property
    def epsilon(self) -> float | None:
        """Largest epsilon of any run of both stages; None without a mechanism or a finite price."""
        prices = [self.price] if self.ranking is None else [self.price, self.ranking.price]
        bounds = [price.epsilon for price in prices if price and price.epsilon is not None]
        return max(bounds) if len(bounds) == len(prices) else None

    @property
    def scored(self) -> list[AttackedCell]:
        """Cells that the score is of: those of the ranking stage, once there is one."""
        return self.cells if self.ranking is None else self.ranking.cells

    @property
    def scored_seeds(self) -> list[int]:
        """Seeds of the cells that the score is of."""
        return self.seeds if self.ranking is None else self.ranking.seeds

    def content(self) -> dict[str, Any]:
        """Return everything but the id, and what comes after the entry was made."""
        return self.model_dump(mode="json", exclude=set(LATER))

    def content_digest(self) -> str:
        """Return the SHA-256 of the content, in hexadecimal digits."""
        text = json.dumps(self.content(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def content_id(self) -> str:
        """Return the id that follows from the content."""
        return self.content_digest()[:12]

    def to_json(self) -> str:
        """Return the text of the file, indented and in the order of the schema."""
        return self.model_dump_json(indent=1) + "\n"

    def system(self) -> tuple[Division, str, str, Scenario]:
        """Return division, track, code and system, which no two entries may share."""
        scenario = self.scenario.model_copy(update={"attack": "", "seed": 0, "data_seed": None})
        return self.division, self.track, self.code, scenario

    def coverage(self) -> str:
        """Say how much was played again, and by whom."""
        return "; ".join(f"{counted(len(r.digests), 'run')} by {r.by}" for r in self.replays)

    @property
    def file_name(self) -> str:
        """Name of the file, ``<protocol>-<id>.json``; a ``.jsonl.gz`` beside it has the records."""
        return f"{self.protocol.partition(':')[0]}-{self.id}.json"
