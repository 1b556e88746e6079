"""Numbers of an entry, from its records: the same functions write and check them."""

import math
import statistics
from collections.abc import Callable, Sequence

from fedbench.core.errors import ConfigError
from fedbench.experiment.record import Record
from fedbench.leaderboard.entry import AttackedCell, Interval, Member, Point, Price, Score
from fedbench.results.aggregate import interval

CLEAN = "none"
DIGITS = 9  # a quantile's last ones depend on the library, and numbers are compared exactly


def is_clean(attack: str) -> bool:
    """Return True if the adversary does nothing."""
    return attack.partition(":")[0] == CLEAN


def mean(records: Sequence[Record]) -> float:
    """Return the mean accuracy at the last round over the seeds."""
    return statistics.fmean(r.result.accuracy for r in records)


def over(values: Sequence[float], confidence: float) -> Interval:
    """Return mean and interval over two seeds or more."""
    ends = interval(values, confidence)
    assert ends is not None, "the rules ask for more than one seed"
    low, high = (round(end, DIGITS) for end in ends)
    return Interval(mean=statistics.fmean(values), low=low, high=high)


def attacked(
    records: Sequence[Record], clean: Sequence[Record], mandatory: bool, confidence: float
) -> AttackedCell:
    """Return a cell over its seeds; ``clean`` are the runs without attack, in the same order."""
    attack = records[0].scenario.attack
    accuracies = [r.result.accuracy for r in records]
    lost = [c.result.accuracy - a for c, a in zip(clean, accuracies, strict=True)]
    return AttackedCell(
        attack=attack,
        mandatory=mandatory,
        accuracy=over(accuracies, confidence),
        impact=None if is_clean(attack) else over(lost, confidence),
        uplink_bits=statistics.fmean(counted(r) for r in records),
        downlink_bits=statistics.fmean(r.result.downlink_bits_per_parameter for r in records),
        curve=curve(records, confidence),
        flags=list(dict.fromkeys(flag for r in records for flag in r.flags)),
        records=[
            Member(seed=r.scenario.seed, id=r.id, digest=r.digest, accuracy=r.result.accuracy)
            for r in records
        ],
    )


def counted(record: Record) -> float:
    """Return the uplink bits per parameter and benign message.

    Raises:
        ConfigError: a secure sum hides them.
    """
    bits = record.result.uplink_bits_per_parameter
    if bits is None or any(r.benign_uplink_bits is None for r in record.rounds):
        raise ConfigError(
            f"{record.file_name}: an entry must count its bits, got a secure sum of "
            f"{record.scenario.protocol}'s messages, whose bits are not known; use --sees messages"
        )
    return bits


def curve(records: Sequence[Record], confidence: float) -> list[Point]:
    """Return every look at the test data that all seeds had."""
    spent = [spending(record) for record in records]
    looks = [{r.step: r.accuracy for r in x.rounds if r.accuracy is not None} for x in records]
    common = sorted(set.intersection(*map(set, looks)))
    return [
        Point(
            rounds=step + 1,
            bits=statistics.fmean(bits[step] for bits in spent),
            accuracy=over([look[step] for look in looks], confidence),
        )
        for step in common
    ]


def spending(record: Record) -> list[float]:
    """Return the bits per parameter, both ways, of a client in every round, after each round.

    Up is the mean over the benign messages of a round, down that over all its clients.
    """
    total = 0.0
    out = []
    for r in record.rounds:
        benign = len(r.clients) - r.malicious
        up = (r.benign_uplink_bits or 0) / benign if benign else 0.0
        down = r.downlink_bits / len(r.clients) if r.clients else 0.0
        total += (up + down) / record.parameters
        out.append(total)
    return out


def price(records: Sequence[Record]) -> Price | None:
    """Return the cost of the run with the largest epsilon; None without a mechanism."""
    costs = [r.privacy for r in records if r.privacy is not None]
    if not costs:
        return None
    most = max(costs, key=lambda cost: math.inf if cost.epsilon is None else cost.epsilon)
    return Price(
        epsilon=most.epsilon,
        delta=most.delta,
        unit=most.unit,
        sees=most.sees,
        adjacency=most.adjacency,
        sampler=most.sampler,
        winner=most.winner,
        note=most.note,
    )


def score(
    cells: Sequence[AttackedCell],
    epsilon: float | None,
    read: Callable[[AttackedCell], Interval | None] = lambda cell: cell.accuracy,
) -> Score | None:
    """Return the score: that of the attack with the lowest mean, of two alike the first by name.

    The clean run is no attack, even where it is the worst.

    Args:
        cells: The clean one, and at least one under attack.
        epsilon: Epsilon of the entry.
        read: Returns the accuracy that counts, by default the last one; if it returns None for
            any cell, there is no score.
    """
    values = [(cell, value) for cell in cells if (value := read(cell)) is not None]
    if len(values) < len(cells):
        return None
    attacked = [(cell.attack, value) for cell, value in values if cell.impact is not None]
    attack, lowest = min(attacked, key=lambda pair: (pair[1].mean, pair[0]))
    return Score(
        worst=lowest,
        attack=attack,
        clean=next(value for cell, value in values if cell.impact is None),
        uplink_bits=statistics.fmean(cell.uplink_bits for cell in cells),
        downlink_bits=statistics.fmean(cell.downlink_bits for cell in cells),
        epsilon=epsilon,
    )
