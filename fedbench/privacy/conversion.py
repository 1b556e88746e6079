"""Conversion of Rényi, zero-concentrated and Gaussian differential privacy to (epsilon, delta).

Logarithms are natural. Every epsilon is clamped at 0, where a conversion formula may go below it.
"""

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from scipy.special import erfcx, log_ndtr

from fedbench.core.errors import require

Floats = npt.NDArray[np.float64]

# Millions of bits are best near 1, strong noise near 1024; the steps cost under 0.1 % of epsilon.
ORDERS: Floats = np.append(1 + np.geomspace(1e-6, 1000, 319), 1024.0)

LEAST_DELTA = 1e-100  # smallest delta of a claim; its square does not underflow


def check_delta(delta: float) -> None:
    """Check that ``delta`` is strictly between 0 and 1."""
    require("delta", delta, 0 < delta < 1, "in (0, 1)")


def check_claim(delta: float) -> None:
    """Check the ``delta`` of a claim, so that no number derived from it underflows."""
    require("--delta", delta, LEAST_DELTA <= delta < 1, f"in [{LEAST_DELTA:g}, 1)")


def check_orders(orders: npt.ArrayLike) -> Floats:
    """Return the orders as floats, ``(k,)``, each finite and > 1."""
    alpha = np.asarray(orders, dtype=np.float64)
    legal = bool(alpha.size and np.isfinite(alpha).all() and (alpha > 1).all())
    require("orders", orders, legal, "finite and > 1, at least one")
    return alpha


def rdp_to_dp(orders: npt.ArrayLike, rdp: npt.ArrayLike, delta: float) -> tuple[float, float]:
    """Return the least ``eps(a) + ln((a-1)/a) - (ln delta + ln a)/(a-1)``, and its order ``a``.

    ``orders`` and ``rdp`` are ``(k,)``; orders with an infinite ``rdp`` are ignored.

    >>> rdp_to_dp([2.0, 10.0], [0.2, 1.0], 1e-5)  # the second: 1 + ln(.9) - ln(1e-4) / 9
    (1.9180..., 10.0)

    References:
        Canonne, Kamath, Steinke, "The Discrete Gaussian for Differential Privacy", NeurIPS 2020,
        https://arxiv.org/abs/2004.00010, Proposition 12; the same bound: Balle et al., "Hypothesis
        Testing Interpretations and Rényi Differential Privacy", AISTATS 2020,
        https://arxiv.org/abs/1905.09982, Theorem 21.
    """
    alpha = check_orders(orders)
    check_delta(delta)
    gain = np.log1p(-1 / alpha) - (math.log(delta) + np.log(alpha)) / (alpha - 1)
    epsilons = np.asarray(rdp, dtype=np.float64) + gain
    at = int(np.argmin(epsilons))
    return max(0.0, float(epsilons[at])), float(alpha[at])


def gdp_delta(mu: float, epsilon: float) -> float:
    """Return the delta of ``mu``-GDP: ``Phi(x) - e^eps Phi(y)``, for ``eps >= 0``.

    ``x = -eps/mu + mu/2`` and ``y = -eps/mu - mu/2``. Since ``e^eps phi(y) = phi(x)``, the second
    term is computed as ``exp(-x²/2) erfcx(-y/sqrt 2)/2``, which does not overflow.

    References:
        Dong, Roth, Su, "Gaussian Differential Privacy", 2019, https://arxiv.org/abs/1905.02383,
        Corollary 2.13; Balle, Wang, ICML 2018, https://arxiv.org/abs/1805.06530, Theorem 8.
    """
    require("mu", mu, mu >= 0, ">= 0")
    require("epsilon", epsilon, epsilon >= 0, ">= 0")
    if mu == 0 or math.isinf(mu) or math.isinf(epsilon):
        return 1.0 if math.isinf(mu) else 0.0
    x = -epsilon / mu + mu / 2
    y = -epsilon / mu - mu / 2
    first = float(log_ndtr(x))
    tail = float(erfcx(-y / math.sqrt(2)))
    second = -x * x / 2 + math.log(tail / 2) if tail > 0 else -math.inf
    return -math.exp(first) * math.expm1(min(0.0, second - first)) if first > -745 else 0.0


def bisect(
    holds: Callable[[float], bool], low: float, high: float, steps: int = 200
) -> tuple[float, float]:
    """Narrow ``low``, where ``holds`` is false, and ``high``, where it is true, to neighbours."""
    for _ in range(steps):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (low, middle) if holds(middle) else (middle, high)
    return low, high


def gdp_epsilon(mu: float, delta: float) -> float:
    """Return the epsilon of ``mu``-GDP at ``delta``, by bisection of `gdp_delta`.

    >>> round(gdp_epsilon(1.0, 1e-5), 3)
    4.377
    """
    check_delta(delta)
    require("mu", mu, mu >= 0, ">= 0")
    if math.isinf(mu) or gdp_delta(mu, 0.0) <= delta:
        return math.inf if math.isinf(mu) else 0.0
    most = mu * mu / 2 + mu * math.sqrt(-2 * math.log(delta))  # by Phi(-t) <= exp(-t²/2)
    return bisect(lambda epsilon: gdp_delta(mu, epsilon) <= delta, 0.0, most)[1]


def gdp_rounds(mu: float, rounds: int) -> float:
    """``mu sqrt(rounds)``: the GDP of ``rounds`` rounds, each of which may depend on the last.

    References:
        Dong, Roth, Su, 2019, https://arxiv.org/abs/1905.02383, Corollary 3.3.
    """
    require("rounds", rounds, rounds >= 1, ">= 1")
    require("mu", mu, mu >= 0, ">= 0")
    return mu * math.sqrt(rounds)
