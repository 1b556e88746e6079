"""Random integers, many of one distribution at once, drawn faster than by NumPy."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import ive

Numbers = npt.NDArray[np.integer[Any]]

_BLOCK = 1 << 15  # draws at once: they stay in cache
_GUIDE = 16  # leading bits of a draw, which decide most draws by table lookup
_COINS = 24  # more coins than this are drawn faster as one binomial


@dataclass(frozen=True, eq=False)
class Symmetric:
    """Symmetric distribution on the integers, drawn by inversion of 64 random bits.

    The last bit is the sign. The others are compared with the cumulative probabilities of the
    magnitudes, the largest first, where floats are exact; 16 bits in a table decide most draws.
    """

    limits: npt.NDArray[np.uint64]  # ``2**63 P(magnitude >= far, far - 1, ..., 0)``, ``(far + 1,)``
    guide: npt.NDArray[np.int32]  # ``(2**16,)`` magnitude for leading bits; -1: see more bits

    @classmethod
    def of(cls, chances: npt.NDArray[np.float64]) -> Symmetric:
        """Build the table from the probabilities of ``0, 1, 2, ...``, up to a common factor.

        Magnitudes that together have less than ``2**-63`` count as the largest one left.
        """
        folded = np.where(np.arange(len(chances)) > 0, 2.0, 1.0) * chances
        cumulative = np.cumsum(folded[::-1])
        limits = (cumulative / cumulative[-1] * 2.0**63).astype(np.uint64)
        limits = limits[limits > 0]
        begins = np.arange(2**_GUIDE, dtype=np.uint64) << np.uint64(63 - _GUIDE)
        ends = begins + np.uint64(2 ** (63 - _GUIDE) - 1)
        most, least = (_magnitudes(limits, bits) for bits in (begins, ends))
        return cls(limits, np.where(least == most, least, -1).astype(np.int32))

    def at(self, bits: npt.NDArray[np.uint64]) -> Numbers:
        """Map uint64 random bits to int32 draws."""
        magnitude_bits = bits >> np.uint64(1)
        magnitudes = self.guide[magnitude_bits >> np.uint64(63 - _GUIDE)]
        undecided = (magnitudes < 0).nonzero()[0]
        magnitudes[undecided] = _magnitudes(self.limits, magnitude_bits[undecided])
        signs = (bits & np.uint64(1)).astype(np.int32)
        signed: Numbers = (magnitudes ^ -signs) + signs  # in two's complement
        return signed

    def draw(self, draws: np.random.Generator, count: int) -> Numbers:
        """Draw ``(count,)`` int32 numbers."""
        out = np.empty(count, dtype=np.int32)
        for start in range(0, count, _BLOCK):
            part = out[start : start + _BLOCK]
            part[:] = self.at(draws.integers(0, 1 << 64, len(part), dtype=np.uint64))
        return out


def _magnitudes(limits: npt.NDArray[np.uint64], bits: npt.NDArray[np.uint64]) -> Numbers:
    return len(limits) - 1 - np.searchsorted(limits, bits, side="right")


@lru_cache(maxsize=8)
def _skellam(half: float) -> Symmetric:
    """Table of ``P(k) = exp(-2 half) I_k(2 half)``, as far as it can be drawn."""
    far = int(12 * (2 * half) ** 0.5) + 40
    chances = ive(np.arange(far + 1), 2 * half)
    return Symmetric.of(np.asarray(chances, dtype=np.float64))


def skellam(draws: np.random.Generator, half: float, count: int) -> Numbers:
    """``(count,)`` differences of two Poisson numbers of mean ``half`` each.

    Up to ``half = 1e6`` they come from a table: the probability of a tail is right to a relative
    1e-12 and an absolute ``2**-63``, which no accountant knows. Beyond, NumPy draws.

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
    """``(d,)`` heads among ``m`` coins of each chance, rounded to ``2**-32`` and below 1."""
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
