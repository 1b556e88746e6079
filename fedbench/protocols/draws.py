"""Whole numbers at random, many of one distribution at once: faster than NumPy draws them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import ive

Numbers = npt.NDArray[np.integer[Any]]

_BLOCK = 1 << 15  # draws at once: they stay in cache
_GUIDE = 16  # bits of a draw that mostly say all
_COINS = 24  # more are faster drawn as one binomial


@dataclass(frozen=True, eq=False)
class Table:
    """A distribution on ``first, first + 1, ...``, drawn by inversion of 53 random bits.

    The first `_GUIDE` of them are looked up; where they do not decide, the others are searched for.
    What is less likely than ``2**-53`` is not drawn as often as it should be.

    Args:
        first: Least value.
        cumulative: ``(v,)`` float64: the probability of at most each value; the last one is 1.
        guide: ``(2**16,)`` int32: the value less ``first`` for each beginning of the bits; -1 where
            more must be seen.
    """

    first: int
    cumulative: npt.NDArray[np.float64]
    guide: npt.NDArray[np.int32]

    @classmethod
    def of(cls, first: int, chances: npt.NDArray[np.float64]) -> Table:
        """From the probabilities ``(v,)``, which may be off by a common factor."""
        cumulative = np.cumsum(chances)
        cumulative /= cumulative[-1]
        edges = np.arange(2**_GUIDE) / 2**_GUIDE
        least = np.searchsorted(cumulative, edges, side="right")
        most = np.searchsorted(cumulative, edges + (2.0**-_GUIDE - 2.0**-53), side="right")
        return cls(first, cumulative, np.where(least == most, least, -1).astype(np.int32))

    def draw(self, draws: np.random.Generator, count: int) -> Numbers:
        """``(count,)`` int32."""
        out = np.empty(count, dtype=np.int32)
        for start in range(0, count, _BLOCK):
            part = out[start : start + _BLOCK]
            bits = draws.integers(0, 1 << 53, len(part), dtype=np.uint64)
            np.take(self.guide, bits >> np.uint64(53 - _GUIDE), out=part)
            open_ = (part < 0).nonzero()[0]
            part[open_] = np.searchsorted(self.cumulative, bits[open_] * 2.0**-53, side="right")
        out += self.first
        return out


@lru_cache(maxsize=8)
def _skellam(half: float) -> Table:
    """``P(k) = exp(-2 half) I_k(2 half)``, beyond twelve standard deviations cut off."""
    far = int(12 * (2 * half) ** 0.5) + 40
    chances = ive(np.abs(np.arange(-far, far + 1)), 2 * half)
    return Table.of(-far, np.asarray(chances, dtype=np.float64))


def skellam(draws: np.random.Generator, half: float, count: int) -> Numbers:
    """``(count,)`` differences of two Poisson numbers of mean ``half`` each.

    References:
        Skellam, "The Frequency Distribution of the Difference Between Two Poisson Variates
        Belonging to Different Populations", J. Royal Statistical Society 109(3), 1946.
    """
    if half == 0:
        return np.zeros(count, dtype=np.int32)
    if half > 1e6:  # a table as long as that is slower
        return draws.poisson(half, count) - draws.poisson(half, count)
    return _skellam(half).draw(draws, count)


def binomial(draws: np.random.Generator, m: int, chances: npt.NDArray[np.float64]) -> Numbers:
    """``(d,)``: heads among ``m`` coins of each chance ``(d,)``, which is rounded to ``2**-32``."""
    if m > _COINS:
        return draws.binomial(m, chances)
    out = np.zeros(len(chances), dtype=np.int32)
    for start in range(0, len(chances), _BLOCK):
        part = out[start : start + _BLOCK]
        limits = np.rint(chances[start : start + _BLOCK] * 2.0**32).astype(np.uint64)
        heads = np.minimum(limits, 2**32 - 1).astype(np.uint32)
        words = draws.integers(0, 1 << 64, -(-m * len(part) // 2), dtype=np.uint64)
        for coins in words.view(np.uint32)[: m * len(part)].reshape(m, len(part)):
            part += coins < heads
    return out
