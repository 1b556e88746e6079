"""An entry from its records: its cells, its price, its score; the same code checks one."""

import math
import shlex
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from pydantic import ValidationError

from fedbench.core import registry
from fedbench.core.errors import ConfigError
from fedbench.experiment.record import Record, Source
from fedbench.experiment.scenario import Scenario
from fedbench.leaderboard.entry import (
    AttackedCell,
    Entry,
    Interval,
    Member,
    Point,
    Price,
    RankingStage,
    Score,
    Statement,
)
from fedbench.leaderboard.resampling import bca
from fedbench.leaderboard.rules import Division, Rules, Track, first_wrong
from fedbench.leaderboard.tiers import mandatory

# A quantile's last digits depend on the library, and numbers are compared exactly.
INTERVAL_DIGITS = 9
UNHASHED = "0" * 12  # id of an entry whose content is not hashed yet
SYSTEM_PLUGINS = ("protocol", "mechanism", "defense")
SKIPPED = (*SYSTEM_PLUGINS, "attack", "seed", "data_seed", "declared", "local_models")


def is_clean(attack: str) -> bool:
    """Return True if the adversary does nothing."""
    return attack.partition(":")[0] == "none"


def alphabet(protocol: str) -> str:
    """Return the name of the payload that clients of an installed protocol send."""
    sends: type = registry.load("protocol", protocol).sends
    return sends.__name__


def meaning(kind: str, text: str) -> str:
    """Return a plug-in with every parameter written out; the text itself if not installed."""
    try:
        return registry.describe(registry.split(text)[0], registry.load(kind, text))
    except ConfigError:
        return text


@dataclass(frozen=True)
class DrawnStage:
    """Attacks and drawn seeds that the ranking stage of an entry must have."""

    season: str
    seeds: tuple[int, ...]
    attacks: tuple[str, ...]  # as the records of the first stage write them, the clean run first


@dataclass(frozen=True, eq=False)
class Case:
    """Records of one system, and the rules that they are judged by."""

    records: Sequence[Record]
    rules: Rules
    division: Division
    track: str
    alphabet: str  # name of the payload that clients of the protocol send
    drawn: DrawnStage | None = None  # of the ranking stage; None: of the development stage

    @property
    def race(self) -> Track | None:
        """Track of the closed division; None in the open one."""
        return self.rules.named(self.track) if self.division == "closed" else None

    @cached_property
    def ensemble(self) -> dict[str, str]:
        """Mandatory attacks as typed, by what they mean."""
        if self.drawn is not None:
            typed = self.drawn.attacks
        else:
            typed = mandatory(self.rules, self.race, self.alphabet)
        return {meaning("attack", attack): attack for attack in typed}

    @cached_property
    def cells(self) -> dict[str, list[Record]]:
        """Records by attack, ordered by seed: the clean run, the ensemble, others by name."""
        runs: dict[str, list[Record]] = {}
        for record in sorted(self.records, key=lambda r: r.scenario.seed):
            runs.setdefault(record.scenario.attack, []).append(record)
        order = {full: at for at, full in enumerate(self.ensemble)}

        def place(attack: str) -> tuple[bool, int, str]:
            at = order.get(meaning("attack", attack), len(order))
            return not is_clean(attack), at, attack

        return {attack: runs[attack] for attack in sorted(runs, key=place)}

    def called(self, attack: str) -> str:
        """Return the name of an attack in the rules, which is short, or else in the records."""
        return self.ensemble.get(meaning("attack", attack), attack)

    @property
    def demanded(self) -> tuple[int, ...] | None:
        """Seeds that the stage must have; None in the open division: any number, from 0."""
        if self.drawn is not None:
            return self.drawn.seeds
        return None if self.race is None else self.race.seeds

    @property
    def clean(self) -> list[Record]:
        """Runs without attack; empty if they are missing."""
        return next((runs for attack, runs in self.cells.items() if is_clean(attack)), [])


def build(case: Case, statement: Statement) -> Entry:
    """Return the entry of records that keep the rules; `ConfigError` if no entry can hold them."""
    first = case.clean[0]
    seeds = [record.scenario.seed for record in case.clean]
    try:
        cells = cells_of(case)
        spent = price(case.records)
        ranked = score(cells, spent.epsilon if spent else None)
        assert ranked is not None
        entry = Entry(
            id=UNHASHED,
            division=case.division,
            track=case.track,
            rules=case.rules.version,
            rules_digest=case.rules.digest,
            **dict(statement),
            **{kind: getattr(first.scenario, kind) for kind in SYSTEM_PLUGINS},
            votes=first.vote,
            alphabet=case.alphabet,
            parameters=first.parameters,
            scenario=first.scenario,
            seeds=seeds,
            data_digest=first.data_digest,
            code=first.environment.fedbench,
            device=first.environment.device,
            sources=sources(case.records),
            cells=cells,
            price=spent,
            command=command(first.scenario, list(case.cells), seeds),
            score=ranked,
        )
    except ValidationError as error:
        wrong = first_wrong(error)
        raise ConfigError(
            f"records must be such that an entry can hold them, got {wrong}"
        ) from error
    return entry.model_copy(update={"id": entry.content_id()})


def cells_of(case: Case) -> list[AttackedCell]:
    """Return the cells of a case, the clean one first."""
    return [
        attacked_cell(runs, case.clean, meaning("attack", attack) in case.ensemble, case.rules)
        for attack, runs in case.cells.items()
    ]


def completed(entry: Entry, case: Case) -> Entry:
    """Return the entry with its ranking stage, of records that keep the rules."""
    assert case.drawn is not None
    cells = cells_of(case)
    seeds = [record.scenario.seed for record in case.clean]
    spent = price(case.records)
    stage = RankingStage(season=case.drawn.season, seeds=seeds, cells=cells, price=spent)
    entry = entry.model_copy(update={"ranking": stage})
    return entry.model_copy(update={"score": score(cells, entry.epsilon)})


def worst(entry: Entry, count: int) -> tuple[str, ...]:
    """Return the clean run and the mandatory attacks that are worst, of two alike by name.

    Attacks that an entry plays beside them are shown, and push none of these out.
    """
    clean, *others = entry.cells
    mandatory = [cell for cell in others if cell.mandatory]
    lowest = sorted(mandatory, key=lambda cell: (cell.accuracy.mean, cell.attack))[:count]
    return (clean.attack, *(cell.attack for cell in lowest))


def sources(records: Sequence[Record]) -> list[Source]:
    """Return the source files of other packages that the records name, each once."""
    unique = {source.sha256 + source.module: source for r in records for source in r.sources}
    return [unique[key] for key in sorted(unique)]


def command(scenario: Scenario, attacks: Sequence[str], seeds: Sequence[int]) -> str:
    """Return the command that plays all cells, with every parameter, since defaults may change."""
    words = ["fedbench", "attack"]
    for kind in SYSTEM_PLUGINS:
        words += [f"--{kind}", getattr(scenario, kind)]
    for attack in attacks:
        words += ["--attack", attack]
    written = scenario.model_dump()
    for name, value in scenario:
        if name in written and name not in SKIPPED and value is not None:
            words += [f"--{name.replace('_', '-')}", str(value)]
    if scenario.declared not in (None, scenario.malicious):
        words += ["--declared", str(scenario.declared)]
    if scenario.local_models:
        words.append("--local-models")
    return shlex.join([*words, "--seeds", ",".join(map(str, seeds))])


def final_accuracy(record: Record, looks: int) -> float:
    """Return the mean accuracy of the last ``looks`` evaluations; of all, if there are fewer."""
    return statistics.fmean(evaluated_accuracies(record)[-looks:])


def evaluated_accuracies(record: Record) -> list[float]:
    """Return the accuracies of a record in the rounds that were evaluated."""
    return [r.accuracy for r in record.rounds if r.accuracy is not None]


def mean(records: Sequence[Record], looks: int) -> float:
    """Return the mean of `final_accuracy` over the seeds."""
    return statistics.fmean(final_accuracy(record, looks) for record in records)


def with_interval(values: Sequence[float], confidence: float) -> Interval:
    """Return mean and interval over the seeds."""
    low, high = (round(end, INTERVAL_DIGITS) for end in bca(values, confidence))
    return Interval(mean=statistics.fmean(values), low=low, high=high, values=list(values))


def attacked_cell(
    records: Sequence[Record], clean: Sequence[Record], mandatory: bool, rules: Rules
) -> AttackedCell:
    """Return a cell over its seeds; ``clean`` are the runs without attack, in the same order."""
    attack = records[0].scenario.attack
    accuracies = [final_accuracy(record, rules.looks) for record in records]
    lost = [final_accuracy(c, rules.looks) - a for c, a in zip(clean, accuracies, strict=True)]
    return AttackedCell(
        attack=attack,
        mandatory=mandatory,
        accuracy=with_interval(accuracies, rules.confidence),
        area=statistics.fmean(statistics.fmean(evaluated_accuracies(record)) for record in records),
        impact=None if is_clean(attack) else with_interval(lost, rules.confidence),
        uplink_bits=statistics.fmean(uplink_bits(r) for r in records),
        downlink_bits=statistics.fmean(r.result.downlink_bits_per_parameter for r in records),
        curve=curve(records, rules.confidence),
        flags=list(dict.fromkeys(flag for r in records for flag in r.flags)),
        records=[
            Member(seed=r.scenario.seed, id=r.id, digest=r.digest, accuracy=accuracy)
            for r, accuracy in zip(records, accuracies, strict=True)
        ],
    )


def uplink_bits(record: Record) -> float:
    """Return the uplink bits per parameter and benign message; `ConfigError` if nobody knows."""
    bits = record.result.uplink_bits_per_parameter
    if not any(len(r.clients) - r.malicious for r in record.rounds):
        raise ConfigError(
            f"{record.file_name}: an entry must count its bits, got a run in which no benign "
            "client sent anything; sample more clients, or let fewer drop out"
        )
    if bits is None or any(r.benign_uplink_bits is None for r in record.rounds):
        raise ConfigError(
            f"{record.file_name}: an entry must count its bits, got a secure sum of "
            f"{record.scenario.protocol}'s messages, whose bits are not known; use --sees messages"
        )
    return bits


def curve(records: Sequence[Record], confidence: float) -> list[Point]:
    """Return the mean accuracy and bits of every round in which all seeds were evaluated."""
    spent = [spending(record) for record in records]
    by_step = [{r.step: r.accuracy for r in x.rounds if r.accuracy is not None} for x in records]
    return [
        Point(
            rounds=step + 1,
            bits=statistics.fmean(bits[step] for bits in spent),
            accuracy=with_interval([accuracy[step] for accuracy in by_step], confidence),
        )
        for step in sorted(set.intersection(*map(set, by_step)))
    ]


def spending(record: Record) -> list[float]:
    """Return the bits per parameter, both ways, of a client in every round, after each round.

    Up is the mean over the benign messages of a round, down that over all clients that were asked,
    of which some may have dropped out.
    """
    total = 0.0
    out = []
    for r in record.rounds:
        benign = len(r.clients) - r.malicious
        up = (r.benign_uplink_bits or 0) / benign if benign else 0.0
        down = r.downlink_bits / max(r.asked, 1)
        total += (up + down) / record.parameters
        out.append(total)
    return out


def price(records: Sequence[Record]) -> Price | None:
    """Return the cost of the run with the largest epsilon; None without a mechanism."""
    costs = [r.privacy for r in records if r.privacy is not None]
    if not costs:
        return None
    most = max(costs, key=lambda cost: math.inf if cost.epsilon is None else cost.epsilon)
    return Price(**most.model_dump(include=set(Price.model_fields)))


def score(
    cells: Sequence[AttackedCell],
    epsilon: float | None,
    read: Callable[[AttackedCell], Interval | None] = lambda cell: cell.accuracy,
) -> Score | None:
    """Return the score: that of the attack with the lowest mean, of two alike the first by name.

    The clean run, the first of the cells, is no attack, even where it is the worst. ``read``
    returns the accuracy that counts; if it returns None for any cell, there is no score. Bits are
    those of the mandatory cells: attacks that somebody adds make no system cheaper.
    """
    values = [(value, cell) for cell in cells if (value := read(cell)) is not None]
    if len(values) < len(cells):
        return None
    lowest, cell = min(values[1:], key=lambda pair: (pair[0].mean, pair[1].attack))
    mandatory = [cell for cell in cells if cell.mandatory]
    return Score(
        worst=lowest,
        attack=cell.attack,
        area=cell.area,
        clean=values[0][0],
        uplink_bits=statistics.fmean(cell.uplink_bits for cell in mandatory),
        downlink_bits=statistics.fmean(cell.downlink_bits for cell in mandatory),
        epsilon=epsilon,
    )
