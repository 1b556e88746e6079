"""How sure a mean over seeds is."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedbench.results.summary import Row

CONFIDENCE = 0.95

Interval = tuple[float, float]


def interval(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval | None:
    """Student's interval for the mean of the seeds; None for a single one.

    It may leave the range of what is measured: an accuracy's can end above 1.

    >>> low, high = interval([0.8, 0.9, 1.0])
    >>> round(low, 4), round(high, 4)
    (0.6516, 1.1484)
    """
    from scipy.special import stdtrit

    n = len(values)
    if n < 2:
        return None
    mean = statistics.fmean(values)
    half = float(stdtrit(n - 1, (1 + confidence) / 2)) * statistics.stdev(values) / math.sqrt(n)
    return mean - half, mean + half


def accuracies(row: Row) -> list[float]:
    """At the last round, one a seed."""
    return [record.result.accuracy for record in row.records]


def impacts(row: Row) -> list[float]:
    """Clean minus attacked accuracy of each seed that both have; none for the clean row."""
    if row.clean is None or row.cell.clean:
        return []
    clean = {r.scenario.seed: r.result.accuracy for r in row.clean.records}
    pairs = [(r.scenario.seed, r.result.accuracy) for r in row.records]
    return [clean[seed] - attacked for seed, attacked in pairs if seed in clean]
