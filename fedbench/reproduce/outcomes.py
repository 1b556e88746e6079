"""Outcomes of exhibits that were played: a small file for each exhibit and scale, beside the code.

Records are large; an outcome has of each run only the number that stands beside the paper's.
"""

import json
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from fedbench.core.errors import ConfigError
from fedbench.core.files import write_atomically
from fedbench.experiment.measurements import Round, Spread
from fedbench.experiment.record import Record
from fedbench.experiment.scenario import Scenario
from fedbench.reproduce.exhibits import Exhibit, Labels, PaperNumber
from fedbench.results.aggregate import Interval, interval

# What a record says of each measure, in the unit in which papers print it.
READ: dict[str, Callable[[Record], float | None]] = {
    "accuracy": lambda record: 100 * record.result.accuracy,
    "client-mean": lambda record: _of_clients(record, lambda spread: spread.mean),
    "lowest-client": lambda record: _of_clients(record, lambda spread: spread.min),
    "highest-client": lambda record: _of_clients(record, lambda spread: spread.max),
    "local-accuracy": lambda record: _times(100, record.result.local_accuracy),
    "sparsity": lambda record: _times(100, record.result.sparsity),
    "bits": lambda record: record.result.uplink_bits_per_parameter,
    "downlink": lambda record: record.result.downlink_bits_per_parameter,
    "entropy": lambda record: record.result.entropy_bits_per_parameter,
    "model-bits": lambda record: record.result.model_bits / record.parameters,
    "megabytes": lambda record: _times(
        record.parameters / 8 / 2**20, record.result.uplink_bits_per_parameter
    ),
    "gigabytes": lambda record: gigabytes(record.rounds),
    "epsilon": lambda record: record.result.epsilon,
}
COMPARE: dict[str, Callable[[float, float], float]] = {  # of ``against`` and of ``play``
    "difference": lambda against, play: against - play,
    "saved": lambda against, play: 1 - play / against,
    "magnitudes": lambda against, play: math.log10(against / play),
}


def _times(factor: float, number: float | None) -> float | None:
    return None if number is None else factor * number


def _of_clients(record: Record, read: Callable[[Spread], float]) -> float | None:
    """Return a number of the clients' accuracies in percent; None without data of their own."""
    spread = record.result.per_client
    return None if spread is None else 100 * read(spread)


def gigabytes(rounds: Iterable[Round]) -> float:
    """Return what was sent in these rounds, up and down, in units of 2**30 bytes (S9)."""
    return sum((r.uplink_bits or 0) + r.downlink_bits for r in rounds) / 8 / 2**30


def until(record: Record, accuracy: float | None) -> Record | None:
    """Return the record up to the first look at that accuracy, in percent; None without one."""
    if accuracy is None:
        return record
    for number, r in enumerate(record.rounds, 1):
        if r.accuracy is not None and 100 * r.accuracy >= accuracy:
            return record.model_copy(update={"rounds": record.rounds[:number]})
    return None


class Number(BaseModel):
    """Measurement of one cell: a number for each seed, or the one of a formula."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    at: Labels
    values: dict[int, float] = {}  # by seed
    scenario: dict[str, object] = {}  # fields that were played, but for the seed
    seconds: float = 0.0  # of all its runs

    @property
    def mean(self) -> float:
        """Mean over the seeds."""
        return statistics.fmean(self.values.values())

    @property
    def std(self) -> float | None:
        """Sample standard deviation over the seeds; None for a single value."""
        return statistics.stdev(self.values.values()) if len(self.values) > 1 else None

    @property
    def interval(self) -> Interval | None:
        """Student's 95 % interval of the mean; None for a single value."""
        return interval(list(self.values.values()))


class Outcome(BaseModel):
    """Measurements of an exhibit at a scale, by which code, and when."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    exhibit: str
    scale: str
    played: str  # date
    code: str  # version of fedbench of each record, the first one's
    platform: str
    cell: tuple[Number, ...]

    @property
    def file_name(self) -> str:
        """Name of its file."""
        return f"{self.exhibit}.{self.scale}.json"

    def number(self, claim: PaperNumber) -> Number | None:
        """Return what was measured for a cell; None if it was not played."""
        return next((cell for cell in self.cell if cell.at == claim.at), None)

    def write(self, folder: Path) -> Path:
        """Write it atomically, as JSON with a cell a line."""
        path = folder / self.file_name
        head = self.model_dump(mode="json", exclude={"cell"})
        cells = [cell.model_dump(mode="json") for cell in self.cell]
        lines = ",\n  ".join(json.dumps(cell, ensure_ascii=False) for cell in cells)
        text = json.dumps(head, ensure_ascii=False, indent=1).rstrip("\n}")
        write_atomically(path, f'{text},\n "cell": [\n  {lines}\n ]\n}}\n'.encode())
        return path


def measured(
    exhibit: Exhibit, scale: str, records: Mapping[Scenario, Sequence[Record]], date: str
) -> Outcome:
    """Make the outcome of the records, which are given by their scenario as it was described.

    A cell of which a run measured nothing of the kind, say the entropy of floats, has no number.
    """
    cells = []
    for claim in exhibit.trained(scale):
        played = exhibit.scenarios(claim, scale)
        groups = [records.get(scenario, ()) for scenario in played]
        values = numbers(exhibit, claim, groups)
        if not values:
            continue
        fields = played[0].model_dump(mode="json", exclude_defaults=True, exclude={"seed"})
        seconds = round(sum(record.timing.seconds for group in groups for record in group), 1)
        cells.append(Number(at=claim.at, values=values, scenario=fields, seconds=seconds))
    first = next(record for group in records.values() for record in group).environment
    return Outcome(
        exhibit=exhibit.name,
        scale=scale,
        played=date,
        code=first.fedbench,
        platform=first.platform,
        cell=tuple(cells),
    )


def numbers(
    exhibit: Exhibit, claim: PaperNumber, groups: Sequence[Sequence[Record]]
) -> dict[int, float]:
    """Return a cell's number for each seed that all of its runs have, and that was measured."""
    read = READ[exhibit.measure_of(claim)]
    by_seed: list[dict[int, float]] = []
    for group in groups:
        cut = {record.scenario.seed: until(record, claim.until) for record in group}
        read_values = {seed: read(record) for seed, record in cut.items() if record is not None}
        by_seed.append({seed: number for seed, number in read_values.items() if number is not None})
    if not exhibit.compares:
        return by_seed[0]
    play, against = by_seed
    compare = COMPARE[exhibit.compares]
    return {seed: compare(against[seed], play[seed]) for seed in play if seed in against}


@cache
def stored_outcomes() -> dict[tuple[str, str], Outcome]:
    """Return the outcomes that come with fedbench, by exhibit and scale."""
    folder = files("fedbench").joinpath("reproduce", "outcomes")
    texts = {path.name: path.read_text("utf-8") for path in folder.iterdir()}
    named = sorted(name for name in texts if name.endswith(".json"))
    read = [parsed(texts[name], name) for name in named]
    return {(outcome.exhibit, outcome.scale): outcome for outcome in read}


def parsed(text: str, name: str) -> Outcome:
    """Read an outcome; `ConfigError`, which names the file, if it is none."""
    try:
        return Outcome.model_validate_json(text)
    except ValidationError as error:
        reason = error.errors()[0]
        where = ".".join(str(part) for part in reason["loc"]) or "it"
        raise ConfigError(f"{name} must hold an outcome, {where}: {reason['msg']}") from error


def seconds(outcomes: Iterable[Outcome]) -> float:
    """Return how long the runs of outcomes took, one after the other."""
    return sum(cell.seconds for outcome in outcomes for cell in outcome.cell)
