"""Many bits through randomized response: the exact delta of epsilon, and back."""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from fedbench.core.errors import require
from fedbench.privacy.conversion import Floats, check_delta

OMITTED = 1e-36  # at most, outside 13 standard deviations and 60: 2 exp(-84) by Bernstein


@dataclass(frozen=True)
class RandomizedResponse:
    """Exact trade-off of ``n`` bits, each of which is flipped with probability ``p``.

    With ``L = ln((1-p)/p)``, ``k ~ Bin(n, 1-p)`` and the privacy loss ``l_k = L(2k - n)``,
    ``delta(eps) = sum_k Pr[k] (1 - e^(eps - l_k))+``. For the first ``k`` whose loss exceeds
    ``eps``, by ``g``, and ``S_k = Pr[>= k]``, that is ``e^-g D_k + (1 - e^-g) S_k`` with ``D_k =
    delta(l_k) = e^(-2L) D_{k+1} + (1 - e^(-2L)) S_{k+1}``: sums of terms >= 0, with an inverse in
    closed form. Only 13 standard deviations around the mean are computed, 10^6 numbers at ``n`` of
    5e9; the rest of the mass is added to delta.

    References:
        Kairouz, Oh, Viswanath, "The Composition Theorem for Differential Privacy", ICML 2015,
        https://arxiv.org/abs/1311.0776, Theorem 3.3 and the dominating mechanism of Section 4.
    """

    p: float  # probability that a bit is flipped, at most 1/2
    n: int  # bits: coordinates times rounds

    def __post_init__(self) -> None:
        require("p", self.p, 0 < self.p <= 0.5, "in (0, 1/2]")
        require("n", self.n, self.n >= 1, ">= 1")

    @property
    def per_bit(self) -> float:
        """``L = ln((1-p)/p)``: the pure epsilon of one bit."""
        return math.log1p(-self.p) - math.log(self.p)

    @property
    def pure(self) -> float:
        """``n L``: epsilon at delta 0."""
        return self.n * self.per_bit

    @cached_property
    def _window(self) -> tuple[int, int, Floats, Floats]:
        """First ``k``, one past the last ``k``, and ``S_k`` and ``D_k`` in between."""
        from scipy.signal import lfilter  # a second of every start of fedbench, at the top

        mean = self.n * (1 - self.p)
        reach = 13 * math.sqrt(mean * self.p) + 60
        first = max(0, math.floor(mean - reach))
        last = min(self.n, math.ceil(mean + reach))
        k = np.arange(first, last, dtype=np.float64)
        # sums of logarithmic ratios, since gamma functions lose 5 digits at n of 5e9
        steps = np.log((self.n - k) / (k + 1)) + self.per_bit
        log_mass = np.concatenate([[0.0], np.cumsum(steps)])
        mass = np.exp(log_mass - log_mass.max())
        above = np.append(np.cumsum(mass[::-1] / mass.sum())[::-1], 0.0)
        shrink = math.exp(-2 * self.per_bit)
        fed = -math.expm1(-2 * self.per_bit) * above[:0:-1]
        exceed = np.append(lfilter([1.0], [1.0, -shrink], fed)[::-1], 0.0)
        return first, last + 1, above, exceed

    @property
    def _omitted(self) -> float:
        first, end, _, _ = self._window
        return 0.0 if first == 0 and end == self.n + 1 else OMITTED

    def delta(self, epsilon: npt.ArrayLike) -> Floats:
        """Return the least delta at every ``epsilon >= 0``, any shape."""
        eps = np.asarray(epsilon, dtype=np.float64)
        require("epsilon", epsilon, bool((eps >= 0).all()), ">= 0")
        if self.per_bit == 0:
            return np.zeros_like(eps)
        first, end, above, exceed = self._window
        bits = np.minimum(eps, self.pure) / self.per_bit
        k = np.clip(np.floor((bits + self.n) / 2) + 1, first, end).astype(np.int64)
        gap = np.maximum(self.per_bit * (2 * k - self.n) - eps, 0.0)
        value = np.exp(-gap) * exceed[k - first] - np.expm1(-gap) * above[k - first]
        return np.where(eps < self.pure, np.minimum(value + self._omitted, 1.0), 0.0)

    def epsilon(self, delta: npt.ArrayLike) -> Floats:
        """Return the least epsilon at every ``delta`` in (0, 1), any shape."""
        given = np.asarray(delta, dtype=np.float64)
        for value in given.ravel():
            check_delta(float(value))
        first, _, above, exceed = self._window
        room = given - self._omitted
        i = np.searchsorted(-exceed, -room)  # the first k with D_k <= delta
        i = np.minimum(i, len(exceed) - 2)
        share = np.maximum(above[i] - room, 0.0) / (above[i] - exceed[i])
        with np.errstate(divide="ignore"):
            eps = self.per_bit * (2 * (first + i) - self.n) + np.log(share)
        return np.where(room > 0, np.clip(eps, 0.0, self.pure), self.pure)
