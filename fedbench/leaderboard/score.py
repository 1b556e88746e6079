"""The numbers of an entry, from its records: the same function writes and checks them."""

from __future__ import annotations

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
    """True if the adversary does nothing."""
    return attack.partition(":")[0] == CLEAN


def mean(records: Sequence[Record]) -> float:
    """Accuracy at the last round, over the seeds."""
    return statistics.fmean(r.result.accuracy for r in records)


def over(values: Sequence[float], confidence: float) -> Interval:
    """Mean and interval over two seeds or more."""
    found = interval(values, confidence)
    assert found is not None, "the rules ask for more than one seed"
    low, high = (round(end, DIGITS) for end in found)
    return Interval(mean=statistics.fmean(values), low=low, high=high)


def attacked(
    records: Sequence[Record], clean: Sequence[Record], mandatory: bool, confidence: float
) -> AttackedCell:
    """A cell over its seeds; ``clean`` are the runs without attack, in the same order."""
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
    """Bits up, per parameter and benign message.

    Raises:
        ConfigError: nobody knows them.
    """
    bits = record.result.uplink_bits_per_parameter
    if bits is None or any(r.benign_uplink_bits is None for r in record.rounds):
        raise ConfigError(
            f"{record.file_name}: an entry must count its bits, got a secure sum of "
            f"{record.scenario.protocol}'s messages, whose bits are not known; use --sees messages"
        )
    return bits


def curve(records: Sequence[Record], confidence: float) -> list[Point]:
    """Every look at the test data that all seeds had."""
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
    """Bits per parameter, up and down, of a client that takes part in every round, after each.

    Up is the mean over the benign messages of a round, down that over all its clients.
    """
    total, out = 0.0, []
    for r in record.rounds:
        benign = len(r.clients) - r.malicious
        up = (r.benign_uplink_bits or 0) / benign if benign else 0.0
        down = r.downlink_bits / len(r.clients) if r.clients else 0.0
        total += (up + down) / record.parameters
        out.append(total)
    return out


def price(records: Sequence[Record]) -> Price | None:
    """Of the run that gave away most; None if nobody promised anything."""
    found = [r.privacy for r in records if r.privacy is not None]
    if not found:
        return None
    most = max(found, key=lambda one: math.inf if one.epsilon is None else one.epsilon)
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
    """The attack with the lowest mean, of two alike the first by name; by default at the end.

    The clean run is no attack, even where it is the worst.

    Args:
        cells: The clean one, and at least one under attack.
        epsilon: Of the entry.
        read: The accuracy that counts; None if there is none, and then there is no score.
    """
    known = [(cell, value) for cell in cells if (value := read(cell)) is not None]
    if len(known) < len(cells):
        return None
    attacks = [(value.mean, cell.attack, value) for cell, value in known if cell.impact is not None]
    _, attack, lowest = min(attacks, key=lambda one: one[:2])
    return Score(
        worst=lowest,
        attack=attack,
        clean=next(value for cell, value in known if cell.impact is None),
        uplink_bits=statistics.fmean(cell.uplink_bits for cell in cells),
        downlink_bits=statistics.fmean(cell.downlink_bits for cell in cells),
        epsilon=epsilon,
    )
