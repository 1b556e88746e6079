"""Exact trade-off of two laws of a release, which no audit can exceed."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import gammaln, log_ndtr, xlog1py, xlogy

from fedbench.core.errors import require
from fedbench.privacy.conversion import Floats, bisect, check_delta, gdp_delta, gdp_epsilon


def epsilon_of(delta_of: Callable[[float], float], delta: float) -> float:
    """Return the least ``epsilon >= 0`` at which a decreasing ``delta_of`` is at most ``delta``.

    >>> round(epsilon_of(lambda epsilon: math.exp(-epsilon), 0.1), 6)  # ln 10
    2.302585
    """
    check_delta(delta)
    if delta_of(0.0) <= delta:
        return 0.0
    low, high = 0.0, 1.0
    while delta_of(high) > delta:
        low = high
        high = 2 * high
        if high > 1e9:
            return math.inf
    return bisect(lambda epsilon: delta_of(epsilon) <= delta, low, high, steps=60)[1]


class Law(ABC):
    """Two laws of a release, one for each of two neighbours."""

    @abstractmethod
    def delta(self, epsilon: float) -> float:
        """Return the least delta at which they are (epsilon, delta)-close, in both directions."""

    def epsilon(self, delta: float) -> float:
        """Return the least epsilon at which they are (epsilon, delta)-close."""
        return epsilon_of(self.delta, delta)


@dataclass(frozen=True)
class Bernoullis(Law):
    """Laws of ``k`` independent bits.

    Args:
        k: Number of bits.
        p: Probability of a 1 under the first input.
        q: Probability of a 1 under the second input.
    """

    k: int
    p: float
    q: float

    def __post_init__(self) -> None:
        require("k", self.k, self.k >= 1, ">= 1")
        for name in ("p", "q"):
            value = getattr(self, name)
            require(name, value, 0 <= value <= 1, "in [0, 1]")

    def delta(self, epsilon: float) -> float:
        """``sum_j (P[j] - e^eps Q[j])+`` over the number of ones, a sufficient statistic."""
        p, q = self._masses
        with np.errstate(over="ignore"):
            forth = np.exp(p) - np.exp(np.minimum(epsilon + q, 700.0))
            back = np.exp(q) - np.exp(np.minimum(epsilon + p, 700.0))
        return float(max(np.maximum(forth, 0).sum(), np.maximum(back, 0).sum()))

    @cached_property
    def _masses(self) -> tuple[Floats, Floats]:
        """Log probabilities ``(k + 1,)`` of each number of ones, under the two inputs."""
        j = np.arange(self.k + 1, dtype=np.float64)
        ways = gammaln(self.k + 1) - gammaln(j + 1) - gammaln(self.k - j + 1)
        p, q = (ways + xlogy(j, p) + xlog1py(self.k - j, -p) for p in (self.p, self.q))
        return p, q


@dataclass(frozen=True)
class Gaussians(Law):
    """Normal laws of any two means and standard deviations.

    For equal variances delta is `gdp_delta` of the distance of the means in standard deviations.
    Otherwise ``ln p - ln q`` is a parabola: it exceeds epsilon between two points, or outside them.

    Args:
        mean: Mean of the first law.
        std: Standard deviation of the first law.
        other: Mean of the second law.
        other_std: Standard deviation of the second law.

    References:
        Andrew et al., "One-Shot Empirical Privacy Estimation for Federated Learning", ICLR 2024,
        https://arxiv.org/abs/2302.03098, Section 3: epsilon of two Gaussians.
    """

    mean: float
    std: float = 1.0
    other: float = 0.0
    other_std: float = 1.0

    def __post_init__(self) -> None:
        for name in ("std", "other_std"):
            value = getattr(self, name)
            require(name, value, 0 < value < math.inf, "> 0 and finite")

    def delta(self, epsilon: float) -> float:
        """Return the larger delta of the two directions."""
        if self.std == self.other_std:
            return gdp_delta(abs(self.mean - self.other) / self.std, epsilon)
        p, q = (self.mean, self.std), (self.other, self.other_std)
        return max(one_way(p, q, epsilon), one_way(q, p, epsilon))

    def epsilon(self, delta: float) -> float:
        """Return the least epsilon, by the exact inverse where there is one."""
        if self.std == self.other_std:
            return gdp_epsilon(abs(self.mean - self.other) / self.std, delta)
        return super().epsilon(delta)


def one_way(p: tuple[float, float], q: tuple[float, float], epsilon: float) -> float:
    """``P[S] - e^eps Q[S]`` for the set ``S`` where ``ln p - ln q > eps``; (mean, std) of each law.

    With ``x = (y - mean_q) / std_q``, ``ln p - ln q = -ln s - (x - m)^2 / (2 s^2) + x^2 / 2``.
    """
    m = (p[0] - q[0]) / q[1]
    s = p[1] / q[1]
    a = s * s - 1
    b = 2 * m
    c = -m * m - 2 * s * s * (math.log(s) + epsilon)
    discriminant = b * b - 4 * a * c  # of a x^2 + b x + c > 0, which is the set S
    if discriminant <= 0:
        return 1.0 if a > 0 else 0.0  # S is everything only at epsilon < 0
    root = -(b + math.copysign(math.sqrt(discriminant), b)) / 2
    low, high = sorted((root / a, c / root))
    between = a < 0
    log_p = _log_mass((low - m) / s, (high - m) / s, between)
    log_q = _log_mass(low, high, between)
    return max(0.0, math.exp(log_p) - math.exp(min(epsilon + log_q, 0.0)))


def _log_mass(low: float, high: float, between: bool) -> float:
    """Log of a standard normal's mass between two points, or outside them."""
    if not between:
        return float(np.logaddexp(log_ndtr(low), log_ndtr(-high)))
    if low > 0:
        low, high = -high, -low  # the lower tail has more digits
    upper, lower = float(log_ndtr(high)), float(log_ndtr(low))
    gap = lower - upper
    return upper + math.log(-math.expm1(gap)) if gap < 0 else -math.inf
