"""Exact trade-off of two laws of a release, which no audit can exceed, and fits of such laws."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy.special import gammaln, log_ndtr, xlog1py, xlogy

from fedbench.core.errors import require
from fedbench.privacy.conversion import Floats, bisect, check_delta, gdp_delta, gdp_epsilon

JACKKNIFE_GROUPS = 20  # groups of canaries in the jackknife


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


@dataclass(frozen=True)
class Bernoullis:
    """Laws of ``k`` independent bits under each of two inputs."""

    k: int
    p: float  # probability of a 1 under the first input
    q: float  # under the second input

    def __post_init__(self) -> None:
        require("k", self.k, self.k >= 1, ">= 1")
        for name, value in (("p", self.p), ("q", self.q)):
            require(name, value, 0 <= value <= 1, "in [0, 1]")

    def delta(self, epsilon: float) -> float:
        """``sum_j (P[j] - e^eps Q[j])+`` over the number of ones, the larger of both directions."""
        p, q = self._masses
        with np.errstate(over="ignore"):
            forth = np.exp(p) - np.exp(np.minimum(epsilon + q, 700.0))
            back = np.exp(q) - np.exp(np.minimum(epsilon + p, 700.0))
        return float(max(np.maximum(forth, 0).sum(), np.maximum(back, 0).sum()))

    def epsilon(self, delta: float) -> float:
        """Return the least epsilon at which the two laws are (epsilon, delta)-close."""
        return epsilon_of(self.delta, delta)

    @cached_property
    def _masses(self) -> tuple[Floats, Floats]:
        """Log probabilities ``(k + 1,)`` of each number of ones, under the two inputs."""
        j = np.arange(self.k + 1, dtype=np.float64)
        ways = gammaln(self.k + 1) - gammaln(j + 1) - gammaln(self.k - j + 1)
        p, q = (ways + xlogy(j, p) + xlog1py(self.k - j, -p) for p in (self.p, self.q))
        return p, q


@dataclass(frozen=True)
class Gaussians:
    """Normal laws of any two means and standard deviations.

    For equal variances delta is `gdp_delta` of the distance of the means in standard deviations.
    Otherwise ``ln p - ln q`` is a parabola: it exceeds epsilon between two points, or outside them.

    References:
        Andrew et al., "One-Shot Empirical Privacy Estimation for Federated Learning", ICLR 2024,
        https://arxiv.org/abs/2302.03098, Section 3: epsilon of two Gaussians.
    """

    mean: float
    std: float = 1.0
    other: float = 0.0  # mean of the second law
    other_std: float = 1.0

    def __post_init__(self) -> None:
        for name, value in (("std", self.std), ("other_std", self.other_std)):
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
        return epsilon_of(self.delta, delta)


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
    """Return the log of a standard normal's mass between two points, or outside them."""
    if not between:
        return float(np.logaddexp(log_ndtr(low), log_ndtr(-high)))
    if low > 0:
        low, high = -high, -low  # the lower tail has more digits
    upper, lower = float(log_ndtr(high)), float(log_ndtr(low))
    gap = lower - upper
    return upper + math.log(-math.expm1(gap)) if gap < 0 else -math.inf


Law = Bernoullis | Gaussians


def from_final(cosines: Floats, d: int) -> Gaussians:
    """Fit the laws of a canary's cosine with the change of the model, with and without the canary.

    Without it the cosine of any vector of ``d`` coordinates and a random direction is nearly
    ``N(0, 1/d)``; with it, a Gaussian of the mean and standard deviation of the ``cosines (k,)``.
    Few canaries bias the estimate upwards, since the larger of two directions is taken: 100 of true
    epsilon 10.0 give 11.3 on average.

    References:
        Andrew et al., "One-Shot Empirical Privacy Estimation for Federated Learning", ICLR 2024,
        https://arxiv.org/abs/2302.03098, Algorithm 2.
    """
    require("d", d, d >= 2, ">= 2")
    return Gaussians(*_fit(cosines), 0.0, 1 / math.sqrt(d))


def from_all(largest: Floats, unobserved: Floats) -> Gaussians:
    """Fit the laws of the largest cosine over rounds, for an adversary that sees every model.

    Without the canary that law has no simple form, so it is fitted to the ``unobserved (k,)``
    cosines of as many unused directions; ``largest (k,)`` are those of canaries.

    References:
        Andrew et al., ICLR 2024, https://arxiv.org/abs/2302.03098, Algorithm 3.
    """
    return Gaussians(*_fit(largest), *_fit(unobserved))


def estimate(
    laws: Callable[[npt.NDArray[np.int64]], Gaussians], canaries: int, delta: float
) -> tuple[float, float]:
    """Epsilon of ``laws`` of all canaries, and its standard error by a jackknife over groups.

    The error covers the choice of canaries, not the distance to the truth.

    References:
        Quenouille, "Notes on Bias in Estimation", Biometrika 1956, as the jackknife of groups.
    """
    require("--canaries", canaries, canaries >= 4, ">= 4")
    rows = np.arange(canaries)
    count = min(JACKKNIFE_GROUPS, canaries)
    without = [laws(rows[rows % count != group]).epsilon(delta) for group in range(count)]
    return laws(rows).epsilon(delta), float(np.std(without)) * math.sqrt(count - 1)


def _fit(x: Floats) -> tuple[float, float]:
    """Mean and sample standard deviation."""
    require("canaries", len(x), len(x) >= 2, ">= 2, to have a standard deviation")
    return float(np.mean(x)), max(float(np.std(x, ddof=1)), 1e-12)
