"""Amplification by a hidden choice of the clients, for any mechanism.

It counts only if the adversary cannot see who took part: a trusted party or a secure aggregation
stands between it and the messages. Poisson sampling and fixed sizes, and the adjacency that goes
with each, are different theorems (Lebeda et al., https://arxiv.org/abs/2405.20769); each function
names its own. No bound exceeds the mechanism's: a mixture ``q P + (1-q) R`` against ``q P' + (1-q)
R`` is no easier to tell apart than ``P`` against ``P'`` (joint quasi-convexity).
"""

import math
from collections.abc import Callable

import numpy as np
from scipy.special import gammaln, logsumexp

from fedbench.core.errors import require
from fedbench.privacy.conversion import Floats

Rdp = Callable[[Floats], Floats]


def check_rate(rate: float) -> None:
    """Check ``rate``, the probability that a client takes part in a round."""
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


def fixed_size(
    rate: float, rdp_at: Rdp, pure: float = math.inf, largest: int = 64
) -> tuple[Floats, Floats]:
    """Orders 2 to ``largest`` and RDP, both ``(k,)``, of a round of exactly ``rate N`` clients.

    The clients are drawn without replacement, anew in every round; neighbours differ in what one
    client sends (replace-one). With ``eps = rdp_at`` and ``q = rate``: ``e^((a-1) eps'(a)) <= 1 +
    q² C(a,2) min{4 (e^eps(2) - 1), e^eps(2) min{2, (e^pure - 1)²}} + sum_{j=3}^a q^j C(a,j)
    e^((j-1) eps(j)) min{2, (e^pure - 1)^j}``.

    Args:
        rate: Share of the clients in a round, ``q`` in (0, 1].
        rdp_at: RDP at orders ``(k,)`` of any two neighbouring runs of a round with the client.
        pure: Largest privacy loss of these two runs, in nats.
        largest: Largest order.

    References:
        Wang, Balle, Kasiviswanathan, "Subsampled Rényi Differential Privacy and Analytical Moments
        Accountant", AISTATS 2019, https://arxiv.org/abs/1808.00087, Theorem 9.
    """
    check_rate(rate)
    require("pure", pure, pure >= 0, ">= 0")
    require("largest", largest, largest >= 2, ">= 2")
    orders = np.arange(2.0, largest + 1)
    eps = np.minimum(rdp_at(orders), pure)
    require("rdp_at", eps, bool(eps.shape == orders.shape and (eps >= 0).all()), ">= 0 per order")
    if rate == 1:
        return orders, eps
    j = orders[1:]
    second = min(
        math.log(4) + float(log_expm1(eps[0])),
        float(eps[0]) + min(math.log(2), 2 * float(log_expm1(pure))),
    )
    others = (j - 1) * eps[1:] + np.minimum(math.log(2), j * log_expm1(pure))
    log_terms = np.append(second, others) + orders * math.log(rate)
    bound = np.logaddexp(0.0, log_binomial_sum(orders, log_terms)) / (orders - 1)
    return orders, np.minimum(bound, eps)
