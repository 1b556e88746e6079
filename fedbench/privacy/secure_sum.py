"""Privacy of masks of which the server sees only the sum of each coordinate.

``S = X + Y`` with ``X`` the client's bit and ``Y`` the bits of ``n - 1`` other honest clients.

- *Extreme probabilities are the worst.* ``e^((a-1) D_a)`` is jointly convex in the two laws of
  ``S``, which are affine in the probability of each other client: no law of ``Y`` is worse than
  ``Bin(k, 1-p) + Bin(n-1-k, p)`` for some ``k``, with ``p = p(c)``.
- *The same extreme for all.* ``k = 0`` and its reflection ``k = n-1`` were the largest for every
  pair, order and ``n`` tried (`tests/test_secure_sum.py` tries all ``k``): observed, not proved.
- For ``k = 0``, ``Pr[S = s] = Bin(n, p)(s) (1 + (x-p) g(s))`` with ``g(s) = (s - np)/(np(1-p))``
  and ``x = Pr[X = 1] >= p``, so that ``e^((a-1) D_a) = E (1 + (x-p) g)^a (1 + (y-p) g)^(1-a)``
  under ``Bin(n, p)``: close to the divergence of one bit with ``h²/n`` in place of ``h²``.

Colluders do not count: ``n`` is the number of honest clients, this one included, and more of them
release less (a further bit is a post-processing). The bound holds for each coordinate whatever the
others are; as in `amplification`, ``d`` coordinates share ``Delta²``.

References:
    Chen, Özgür, Kairouz, "The Poisson Binomial Mechanism for Unbiased Federated Learning with
    Secure Aggregation", ICML 2022, https://arxiv.org/abs/2207.09916 (bits of equal bias).
"""

import math

import numpy as np
import numpy.typing as npt
from scipy.special import gammaln, logsumexp

from fedbench.core.errors import require
from fedbench.privacy.amplification import check_mask, cube, marginal, mask_rdp
from fedbench.privacy.conversion import Floats, check_orders
from fedbench.privacy.knapsack import concave_hull

SLACK = 5e-3  # relative enlargement of the hull, for what lies between two points of its grid
# Few, since the time for an order grows with n; neighbouring orders are within 2 % of epsilon.
SUM_ORDERS: Floats = np.concatenate(
    [
        [1.01, 1.05, 1.1, 1.2, 1.35, 1.5, 1.65, 1.8, 2, 2.2, 2.4, 2.7, 3, 3.4, 3.8, 4.3],
        [5, 6, 7, 8, 10, 12, 16, 20, 24, 32, 48, 64, 128, 1024],
    ]
)


def _binomial(n: int, p: float) -> tuple[Floats, Floats]:
    """``ln Bin(n, p)(s)`` and ``g(s) = (s - np)/(np(1-p))`` for all ``s``, both ``(n + 1, 1)``."""
    s = np.arange(n + 1.0)[:, None]
    ways = gammaln(n + 1) - gammaln(s + 1) - gammaln(n - s + 1)
    return ways + s * math.log(p) + (n - s) * math.log1p(-p), (s - n * p) / (n * p * (1 - p))


def _renyi(alpha: float, log_p: Floats, p: Floats, loss: Floats) -> Floats:
    """``D_a(P || Q)`` per column of ``ln P``, ``P`` and ``ln P - ln Q``, all ``(n + 1, m)``."""
    t = alpha - 1
    if t * loss.max() < 500:  # exact also near the diagonal
        return np.asarray(np.log1p((p * np.expm1(t * loss)).sum(axis=0)) / t)
    return np.asarray(logsumexp(log_p + t * loss, axis=0) / t)


def _largest(orders: Floats, h: Floats, n: int, sigma: float, c: float) -> Floats:
    """``(k, m)``: the largest ``D_a`` between sums whose changed client moves by ``h (m,)``."""
    floor = float(marginal(c, sigma, c))
    width = 1 - 2 * c
    near = np.geomspace(0.01 * floor, 0.5, math.ceil(math.log(50 / floor) / 0.2))
    u = np.unique(np.concatenate([[0.0], near, np.linspace(0, 0.5, 13)[1:]]))
    u = np.concatenate([u, 1 - u[-2::-1]])  # both halves: the others are all at the lower end
    log_b, g = _binomial(n, floor)
    result = np.empty((len(orders), len(h)))
    for i, step in enumerate(h):
        left = c + u * (width - step)
        x = marginal(left, sigma, c) - floor
        y = marginal(left + step, sigma, c) - floor
        log_p, log_q = (log_b + np.log1p(np.maximum(z, 0.0) * g) for z in (x, y))
        p = np.exp(log_p)
        q = np.exp(log_q)
        loss = log_p - log_q
        for row, alpha in enumerate(orders):
            forth = _renyi(alpha, log_p, p, loss)
            back = _renyi(alpha, log_q, q, -loss)
            result[row, i] = max(forth.max(), back.max())
    return result


def sum_rdp(
    orders: npt.ArrayLike,
    d: int,
    n: int,
    sigma: float,
    c: float,
    sensitivity: float | None = None,
) -> Floats:
    """RDP, ``(k,)``, of the sum of ``n`` honest clients' masks of ``d`` bits in one round.

    Neighbours: the probabilities of one client change by at most L2 ``sensitivity`` (None: to
    anything in the cube). Never above `mask_rdp`, of which a sum is a post-processing; equal to it
    for ``p(c)`` under 1e-6, which the grid does not reach. About 0.01 s per order at ``n = 100``.
    """
    check_mask(sigma, c)
    require("n", n, n >= 1, ">= 1")
    masks = mask_rdp(orders, d, sigma, c, sensitivity).epsilon
    alpha = check_orders(orders)
    width = 1 - 2 * c
    floor = float(marginal(c, sigma, c))
    if n == 1 or floor < 1e-6 or width < 0.05 * floor:
        return masks
    reach = cube(d, c) if sensitivity is None else min(sensitivity, cube(d, c))
    at = min(reach**2 / d, width**2)
    h = np.geomspace(1e-3 * floor, width, math.ceil(math.log(1e3 * width / floor) / 0.1))
    h = np.unique(np.append(h, max(math.sqrt(at), h[0])))
    sums = [concave_hull(h**2, row, at) for row in _largest(alpha, h, n, sigma, c)]
    return np.minimum(masks, d * (1 + SLACK) * np.array(sums))
