"""Amplification by a hidden choice of the clients, for any mechanism.

It counts only if the adversary cannot see who took part: somebody trusted, or a secure aggregation,
stands between it and the messages. Coins and fixed sizes, and the relations of neighbours that go
with them, are different theorems (Lebeda et al., https://arxiv.org/abs/2405.20769); each function
says which it is. No bound here is above the mechanism's own: a mixture ``q P + (1-q) R`` against
``q P' + (1-q) R`` is no easier to tell apart than ``P`` against ``P'`` (joint quasi-convexity).
"""

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from scipy.special import gammaln, logsumexp

from fedbench.core.errors import require
from fedbench.privacy.conversion import Floats, check_orders

Rdp = Callable[[Floats], Floats]


def check_rate(rate: float) -> None:
    """``rate`` is the probability that a client takes part in a round."""
    require("rate", rate, 0 < rate <= 1, "in (0, 1]")


def log_binomial_sum(orders: Floats, log_terms: Floats) -> Floats:
    """``ln sum_{j=2}^a C(a, j) x_j`` per integer order, ``(k,)``, from ``ln x_j`` of ``j >= 2``.

    ``log_terms`` is ``(m,)`` or ``(k, m)``; terms beyond an order may be infinite.
    """
    a = orders[:, None]
    j = np.arange(2.0, log_terms.shape[-1] + 2)
    ways = gammaln(a + 1) - gammaln(j + 1) - gammaln(np.maximum(a - j, 0.0) + 1)
    return np.asarray(logsumexp(np.where(j <= a, ways + log_terms, -np.inf), axis=1))


def log_expm1(x: Floats | float) -> Floats:
    """``ln(e^x - 1)`` of ``x >= 0``, any shape: -inf at 0, and no overflow."""
    with np.errstate(divide="ignore"):
        return np.asarray(x + np.log(-np.expm1(-np.asarray(x, dtype=np.float64))))


def _unsampled(rdp_at: Rdp, pure: float, largest: int) -> tuple[Floats, Floats]:
    """Orders 2 to ``largest``, and the mechanism's own RDP at them."""
    require("pure", pure, pure >= 0, ">= 0")
    require("largest", largest, largest >= 2, ">= 2")
    orders = np.arange(2.0, largest + 1)
    eps = np.minimum(rdp_at(orders), pure)
    require("rdp_at", eps, bool(eps.shape == orders.shape and (eps >= 0).all()), ">= 0 per order")
    return orders, eps


def fixed_size(
    rate: float, rdp_at: Rdp, pure: float = math.inf, largest: int = 64
) -> tuple[Floats, Floats]:
    """Orders 2 to ``largest`` and RDP, both ``(k,)``, of a round of exactly ``rate N`` clients.

    The clients are drawn without replacement, anew in every round; neighbours differ in what one
    client sends (replace-one). ``rdp_at(orders)`` bounds any such two runs of a round that the
    client is in, ``pure`` their largest privacy loss. With ``eps = rdp_at`` and ``q = rate``:
    ``e^((a-1) eps'(a)) <= 1 + q² C(a,2) min{4 (e^eps(2) - 1), e^eps(2) min{2, (e^pure - 1)²}} +
    sum_{j=3}^a q^j C(a,j) e^((j-1) eps(j)) min{2, (e^pure - 1)^j}``.

    References:
        Wang, Balle, Kasiviswanathan, "Subsampled Rényi Differential Privacy and Analytical Moments
        Accountant", AISTATS 2019, https://arxiv.org/abs/1808.00087, Theorem 9.
    """
    check_rate(rate)
    orders, eps = _unsampled(rdp_at, pure, largest)
    if rate == 1:
        return orders, eps
    j = np.arange(3.0, largest + 1)
    # of j = 2, then of every j from 3 on
    second = min(
        math.log(4) + float(log_expm1(eps[0])),
        float(eps[0]) + min(math.log(2), 2 * float(log_expm1(pure))),
    )
    others = (j - 1) * eps[1:] + np.minimum(math.log(2), j * log_expm1(pure))
    log_terms = np.append(second, others) + np.append(2.0, j) * math.log(rate)
    bound = np.logaddexp(0.0, log_binomial_sum(orders, log_terms)) / (orders - 1)
    return orders, np.minimum(bound, eps)


def poisson(
    rate: float, rdp_at: Rdp, pure: float = math.inf, largest: int = 64
) -> tuple[Floats, Floats]:
    """Orders 2 to ``largest`` and RDP, both ``(k,)``, if every client throws a coin of its own.

    Neighbours: one client is there or not (add/remove), for a round whose number of messages is not
    seen; or its data are there or a dummy that also stands in for absent clients (zero-out).
    ``rdp_at(orders)`` bounds both directions of that pair, ``pure`` their largest privacy loss.
    With ``eps = rdp_at``, ``q = rate`` and ``B(l) = C(a,l) q^l (1-q)^(a-l)``: ``e^((a-1) eps'(a))
    <= B(0) + B(1) + B(2) e^eps(2) + 3 sum_{l=3}^a B(l) e^((l-1) eps(l))``, which is summed here as
    ``1 + B(2) (e^eps(2) - 1) + sum B(l) (3 e^((l-1) eps(l)) - 1)``. Also `pure_sampled` bounds it.

    References:
        Zhu, Wang, "Poisson Subsampled Rényi Differential Privacy", ICML 2019,
        https://proceedings.mlr.press/v97/zhu19c.html, Theorem 5.
    """
    check_rate(rate)
    orders, eps = _unsampled(rdp_at, pure, largest)
    if rate == 1:
        return orders, eps
    j = np.arange(3.0, largest + 1)
    grown = math.log(3) + (j - 1) * eps[1:]
    cost = np.append(log_expm1(eps[0]), grown + np.log1p(-np.exp(-grown)))
    power = np.append(2.0, j)
    absent = np.maximum(orders[:, None] - power, 0.0) * math.log1p(-rate)
    log_terms = power * math.log(rate) + absent + cost
    bound = np.logaddexp(0.0, log_binomial_sum(orders, log_terms)) / (orders - 1)
    return orders, np.minimum(bound, np.minimum(eps, pure_sampled(pure, rate)))


def pure_sampled(epsilon: float, rate: float) -> float:
    """``ln(1 + q (e^eps - 1))``: pure epsilon after sampling, with ``q`` the ``rate``.

    For coins and add/remove or zero-out, and for a fixed size and replace-one. Nothing overflows.

    >>> round(pure_sampled(1.0, 0.1), 4)
    0.1586

    References:
        Balle, Barthe, Gaboardi, "Privacy Amplification by Subsampling: Tight Analyses via Couplings
        and Divergences", NeurIPS 2018, https://arxiv.org/abs/1807.01647, Theorems 8 and 9.
    """
    check_rate(rate)
    require("epsilon", epsilon, epsilon >= 0, ">= 0")
    if rate == 1:
        return epsilon
    return float(np.logaddexp(0.0, math.log(rate) + log_expm1(epsilon)))


def between(orders: npt.ArrayLike, integers: Floats, rdp: Floats) -> Floats:
    """RDP at any ``orders (k,)``, from ``rdp (m,)`` at the ``integers (m,)``; inf above the last.

    ``(a-1) D_a(P || Q) = ln E_Q (P/Q)^a`` is convex in ``a`` (Hölder) and 0 at 1, so that for every
    pair its chords are above it, and chords through larger values are above those.

    References:
        Wang, Balle, Kasiviswanathan, 2019, https://arxiv.org/abs/1808.00087, Corollary 10.
    """
    alpha = check_orders(orders)
    known = np.isfinite(rdp)
    x, y = integers[known], rdp[known]
    points = np.append(1.0, x)
    heights = np.append(0.0, (x - 1) * y)
    return np.asarray(np.interp(alpha, points, heights, right=np.inf) / (alpha - 1))
