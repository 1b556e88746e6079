"""Conclusions from seeds that systems share: intervals, differences, who is best.

Intervals and chances resample seeds (the bootstrap), and the sureness of a difference flips signs.
Whatever is drawn follows from the number of seeds alone, so whoever checks an entry gets its
numbers to the last digit.
"""

import hashlib
import math
import statistics
from collections.abc import Hashable, Mapping, Sequence
from functools import cache
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr

RESAMPLES = 9_999
MAX_EXACT = 20  # differences of whose signs all choices are looked at
POWER = 0.8
Key = TypeVar("Key", bound=Hashable)
_NORMAL = statistics.NormalDist()


@cache
def resamples(n: int) -> NDArray[np.int64]:
    """Return ``(RESAMPLES, n)`` indices in ``0 .. n - 1``: seeds drawn with replacement.

    They are made of a hash of ``n``, so they are the same everywhere.
    """
    stream = hashlib.shake_128(f"resamples of {n}".encode()).digest(8 * RESAMPLES * n)
    words = np.frombuffer(stream, dtype="<u8").reshape(RESAMPLES, n)
    return (words % np.uint64(n)).astype(np.int64)


def bca(values: Sequence[float], confidence: float) -> tuple[float, float]:
    """Return the bias-corrected and accelerated bootstrap interval of the mean.

    Its ends are means of resamples, so it never leaves the range of the values: an accuracy's stays
    in [0, 1].

    References:
        Efron, "Better Bootstrap Confidence Intervals", Journal of the American Statistical
        Association 82, 1987, equation 3.9.
    """
    x = np.asarray(values, dtype=np.float64)
    means = np.sort(x[resamples(len(x))].mean(axis=1))
    bias, acceleration = _corrections(x, means)
    ends = []
    for share in ((1 - confidence) / 2, (1 + confidence) / 2):
        shifted = bias + _NORMAL.inv_cdf(share)
        level = _NORMAL.cdf(bias + shifted / (1 - acceleration * shifted))
        place = min(max(math.ceil(level * (len(means) + 1)) - 1, 0), len(means) - 1)
        ends.append(float(means[place]))
    return ends[0], ends[1]


def _corrections(x: NDArray[np.float64], means: NDArray[np.float64]) -> tuple[float, float]:
    """Return bias and acceleration of the mean of ``x``, whose resampled means are sorted."""
    bias = _NORMAL.inv_cdf(_share_below(means, float(x.mean())))
    apart = x - x.mean()
    size = float(np.abs(apart).max())
    if size < np.finfo(np.float64).tiny:
        return bias, 0.0
    apart = apart / size  # or the square of a tiny number is 0
    return bias, float((apart**3).sum() / (6 * (apart**2).sum() ** 1.5))


def _share_below(means: NDArray[np.float64], value: float) -> float:
    """Return the share of the means below a value, ties by half, and never 0 or 1."""
    close = 1e-12 * float(np.abs(means).max())  # sums in another order are ties
    below = np.searchsorted(means, value - close)
    tied = np.searchsorted(means, value + close, side="right") - below
    return float((below + tied / 2 + 0.5) / (len(means) + 1))


def probability(differences: Sequence[float]) -> float:
    """Return the two-sided p-value of paired differences between systems that are equally good.

    Equally good is: each pair could as well have been the other way round. A system that collapses
    in few seeds is not so good as its other seeds look, and the test cannot see that. Of all
    ``2 ** n`` choices of signs, the p-value is the share of those whose sum is as far from 0. For
    more than `MAX_EXACT` differences `RESAMPLES` choices are drawn, and the observed
    one is counted with them.

    References:
        Fisher, "The Design of Experiments", 1935, section 21.
    """
    x = np.asarray(differences, dtype=np.float64)
    least = abs(float(x.sum())) - 1e-12 * float(np.abs(x).sum())  # sums in another order are ties
    if len(x) > MAX_EXACT:
        far = np.abs(_signs(len(x)) @ x) >= least
        return float((far.sum() + 1) / (RESAMPLES + 1))
    sums = x[:1]  # the choices with a minus here have the same sums, mirrored
    for value in x[1:]:
        sums = np.concatenate([sums + value, sums - value])
    return float((np.abs(sums) >= least).mean())


def _signs(n: int) -> NDArray[np.float64]:
    """Return ``(RESAMPLES, n)`` signs, made of a hash of ``n``."""
    size = -(-RESAMPLES * n // 8)
    drawn = hashlib.shake_128(f"signs of {n}".encode()).digest(size)
    bits = np.unpackbits(np.frombuffer(drawn, dtype=np.uint8))[: RESAMPLES * n]
    return np.where(bits.reshape(RESAMPLES, n), -1.0, 1.0)


def student(differences: Sequence[float]) -> float:
    """Return the two-sided p-value of paired differences of normal noise around 0.

    Unlike `probability` it can be sure with five of them.

    References:
        Student, "The Probable Error of a Mean", Biometrika 6, 1908.
    """
    mean = statistics.fmean(differences)
    error = statistics.stdev(differences) / math.sqrt(len(differences))
    if error <= 1e-12 * abs(mean):
        return 0.0 if mean else 1.0
    return float(2 * stdtr(len(differences) - 1, -abs(mean) / error))


def surest(n: int) -> float:
    """Return the least `probability` that ``n`` paired differences can have: all of one sign.

    Of more than `MAX_EXACT` it is one of the choices that are drawn.
    """
    return 2.0 ** (1 - n) if n <= MAX_EXACT else 1 / (RESAMPLES + 1)


def holm(probabilities: Mapping[Key, float]) -> dict[Key, float]:
    """Return p-values adjusted for the number of tests: below a level, all are true at it.

    >>> holm({"a": 0.01, "b": 0.04, "c": 0.03})
    {'a': 0.03, 'c': 0.06, 'b': 0.06}

    References:
        Holm, "A Simple Sequentially Rejective Multiple Test Procedure", Scandinavian Journal of
        Statistics 6, 1979.
    """
    adjusted: dict[Key, float] = {}
    least = 0.0
    ascending = sorted(probabilities.items(), key=lambda pair: pair[1])
    for done, (key, p) in enumerate(ascending):
        least = max(least, min((len(ascending) - done) * p, 1.0))
        adjusted[key] = least
    return adjusted


def chances(systems: Sequence[Sequence[Sequence[float]]]) -> list[float]:
    """Return the share of resamples in which each system is the best.

    Each system has a row for every attack with the accuracy of every seed; the seeds are the same
    for all. In a resample its worst attack is chosen anew. Ties share. The share of whoever leads
    a close table is higher than the probability that it is the best (`benchmarks/sureness.py`).
    """
    tables = [np.asarray(table, dtype=np.float64) for table in systems]
    drawn = resamples(tables[0].shape[1])
    worst = np.stack([table[:, drawn].mean(axis=2).min(axis=0) for table in tables])
    first = worst >= worst.max(axis=0) - 1e-12
    return [float(share) for share in (first / first.sum(axis=0)).mean(axis=1)]


def detectable(spread: float, n: int, level: float) -> float:
    """Return the least difference of means that ``n`` pairs show with a probability of `POWER`.

    ``spread`` is the standard deviation of paired differences, ``level`` that of a two-sided t
    test, whose power is close to that of `probability` (for 14 normal differences it shows them
    in 74 to 79 % of cases). It is infinite where not even differences of one sign are so sure.
    """
    if surest(n) >= level:
        return math.inf
    from scipy.optimize import brentq
    from scipy.stats import nct, t

    critical = float(t.ppf(1 - level / 2, n - 1))

    def short(shift: float) -> float:
        return POWER - float(nct.sf(critical, n - 1, shift))

    return spread * float(brentq(short, 0.0, 4 * critical + 10.0)) / math.sqrt(n)
