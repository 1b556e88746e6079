"""Amplification by sampling: of any mechanism, and tighter of Gaussian noise.

It counts only if the adversary cannot see who took part. Poisson sampling and fixed sizes, and the
adjacency that goes with each, are different theorems (Lebeda et al.,
https://arxiv.org/abs/2405.20769); each function names its own. No bound exceeds the mechanism's: a
mixture ``q P + (1-q) R`` is no easier to tell from ``q P' + (1-q) R`` than ``P`` from ``P'``.

``z`` is always the standard deviation of Gaussian noise over the distance of two neighbouring sums:
the norm ``C`` that vectors are clipped to for add-remove and zero-out, ``2C`` for replace-one.
"""

import math
import warnings
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from scipy.special import gammaln, logsumexp

from fedbench.core.errors import require
from fedbench.privacy.conversion import Floats, check_delta, gdp_epsilon, gdp_rounds, rdp_to_dp

LARGEST = 1024  # above it, Opacus' binomial coefficients overflow
INTEGERS: Floats = np.append(np.arange(2.0, 64.0), np.round(np.geomspace(64, LARGEST, 21)))
# Small orders are the best for weak noise and many rounds.
FRACTIONS: Floats = np.array([1.1, 1.25, 1.5, 1.75, 2.2, 2.4, 2.7, 3.3, 3.6, 4.4, 5.5, 6.5, 8.5])
POINTS = 2**19  # largest grid of the numerical accountant: under a second


def rdp_rounds(rdp: Floats, rounds: int) -> Floats:
    """RDP of ``rounds`` rounds: the sum at each order, also when a round depends on the last."""
    require("rounds", rounds, rounds >= 1, ">= 1")
    return rounds * rdp


def check_sampling(rate: float, z: float = 1.0) -> None:
    """Check a probability to take part, and a noise multiplier, whose square must not underflow."""
    require("rate", rate, 0 < rate <= 1, "in (0, 1]")
    require("z", z, 1e-100 < z < math.inf, "> 1e-100 and finite")


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
    rate: float, rdp_at: Callable[[Floats], Floats], pure: float = math.inf, largest: int = 64
) -> tuple[Floats, Floats]:
    """Orders 2 to ``largest`` and RDP, both ``(k,)``, of a round of exactly ``rate N`` clients.

    The clients are drawn without replacement, anew in every round; neighbours differ in what one
    client sends (replace-one). With ``eps = rdp_at`` and ``q = rate``: ``e^((a-1) eps'(a)) <= 1 +
    q² C(a,2) min{4 (e^eps(2) - 1), e^eps(2) min{2, (e^pure - 1)²}} + sum_{j=3}^a q^j C(a,j)
    e^((j-1) eps(j)) min{2, (e^pure - 1)^j}``.

    ``rdp_at`` gives the RDP at orders ``(k,)`` of any two neighbouring runs of a round with the
    client, ``pure`` their largest privacy loss in nats.

    References:
        Wang, Balle, Kasiviswanathan, "Subsampled Rényi Differential Privacy and Analytical Moments
        Accountant", AISTATS 2019, https://arxiv.org/abs/1808.00087, Theorem 9.
    """
    check_sampling(rate)
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


def poisson_rdp(z: float, rate: float, steps: int = 1) -> tuple[Floats, Floats]:
    """Return the orders up to 1024, and the RDP of ``steps`` Gaussian sums at them, both ``(k,)``.

    Poisson sampling with probability ``rate`` in every step, of clients or of samples; add-remove
    or zero-out of one of them, with ``z`` relative to its clipping norm. Strong noise, ``z > 30``,
    needs no fractional orders, each of which costs Opacus up to 0.1 s.

    References:
        Mironov, Talwar, Zhang, "Rényi Differential Privacy of the Sampled Gaussian Mechanism",
        2019, https://arxiv.org/abs/1908.10530, Section 3; computed by Opacus.
    """
    check_sampling(rate, z)
    alpha, once = _poisson_step(z, rate)
    return alpha, rdp_rounds(once, steps)


@lru_cache(maxsize=256)
def _poisson_step(z: float, rate: float) -> tuple[Floats, Floats]:
    """Return the orders and the RDP of one step, cached: every round asks for the same few."""
    from opacus.accountants.analysis.rdp import compute_rdp

    alpha = INTEGERS if z > 30 else np.sort(np.append(INTEGERS, FRACTIONS))
    whole = alpha / (2 * z * z)
    if rate == 1 or z > 1e7:  # at such z Opacus' terms cancel to rounding errors
        return alpha, whole
    # Opacus needs integer orders as ints, and may round a small RDP to below 0
    orders = [int(a) if a.is_integer() else float(a) for a in alpha.tolist()]
    once = compute_rdp(q=rate, noise_multiplier=z, steps=1, orders=orders)
    return alpha, np.clip(np.nan_to_num(once, nan=np.inf), 0.0, whole)


def rough_epsilon(z: float, rate: float, steps: int, delta: float) -> float:
    """Return an upper bound on epsilon from orders 2 to 64 alone, in a millisecond.

    ``e^((a-1) eps(a)) = sum_k C(a,k) (1-q)^(a-k) q^k e^((k²-k)/(2z²))``, for integer orders.

    References:
        Mironov, Talwar, Zhang, 2019, https://arxiv.org/abs/1908.10530, Section 3.3.
    """
    check_sampling(rate, z)
    orders = k = np.arange(2.0, 65.0)
    if rate == 1:
        return rdp_to_dp(orders, rdp_rounds(orders / (2 * z * z), steps), delta)[0]
    log_out = math.log1p(-rate)
    log_in = math.log(rate)
    terms = (orders[:, None] - k) * log_out + k * log_in + k * (k - 1) / (2 * z * z)
    first_two = np.logaddexp(orders * log_out, np.log(orders) + (orders - 1) * log_out + log_in)
    total = np.maximum(np.logaddexp(first_two, log_binomial_sum(orders, terms)), 0.0)
    return rdp_to_dp(orders, rdp_rounds(total / (orders - 1), steps), delta)[0]


@lru_cache(maxsize=256)
def _prv(z: float, rate: float, steps: int, delta: float) -> float | None:
    """Opacus' upper bound by convolution; None where it would be slow or coarse, or fails."""
    from opacus.accountants import PRVAccountant

    alpha, rdp = poisson_rdp(z, rate)
    loose = delta / 1000  # the share of delta that the accountant reserves for its own errors
    reach = 3 + max(
        rdp_to_dp(alpha, rdp_rounds(rdp, steps), loose / 4)[0],
        rdp_to_dp(alpha, rdp, loose / (8 * steps))[0],
    )
    percent = rdp_to_dp(alpha, rdp_rounds(rdp, steps), delta)[0] / 100
    longest = 2 * reach * math.sqrt(steps * math.log(12 / loose) / 2) / POINTS
    error = max(min(max(percent, 1e-4), 0.01), longest)
    if error > 0.5 or delta < 1e-10 or z > 1e3:
        return None
    accountant = PRVAccountant()
    accountant.history = [(z, rate, steps)]
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        # Opacus warns of the orders that it chooses its grid with
        warnings.filterwarnings("ignore", message="Optimal order is the")
        try:
            epsilon = float(accountant.get_epsilon(delta, eps_error=error))
        except (ValueError, RuntimeError):  # "cannot compute epsilon", "errors will dominate"
            return None
    return max(0.0, epsilon) if math.isfinite(epsilon) else None


def poisson_epsilons(
    z: float, rate: float, steps: int, delta: float, numerical: bool = True
) -> dict[str, float]:
    """Epsilon at ``delta`` of `poisson_rdp`'s mechanism, by every accountant that applies.

    ``rdp`` is always there. ``prv`` is numerically exact up to an error that it includes; it takes
    up to a second, needs ``numerical``, and is left out where its grid would be too long (an
    epsilon of thousands), rounding counts (``delta`` below 1e-10), or Opacus takes seconds (``z``
    above 1000, which RDP describes well) or fails. At ``rate`` 1 the exact ``gdp`` replaces it.

    References:
        Gopi, Lee, Wutschitz, "Numerical Composition of Differential Privacy", NeurIPS 2021,
        https://arxiv.org/abs/2106.02848 (``prv``); Dong, Roth, Su, 2019,
        https://arxiv.org/abs/1905.02383, Corollaries 2.13 and 3.3 (``gdp``).
    """
    check_delta(delta)
    alpha, rdp = poisson_rdp(z, rate, steps)
    epsilons = {"rdp": rdp_to_dp(alpha, rdp, delta)[0]}
    if rate == 1:
        return {**epsilons, "gdp": gdp_epsilon(gdp_rounds(1 / z, steps), delta)}
    exact = _prv(z, rate, steps, delta) if numerical else None
    return epsilons if exact is None else {**epsilons, "prv": exact}


def _log_moments(j: Floats, v: float) -> Floats:
    """``ln E|e^(v Z - v²/2) - 1|^j``, ``Z`` standard normal, each ``j (m,)``, by quadrature."""
    # The integrand's peaks are between -sqrt j and j v + sqrt j, and at least 0.7 wide.
    most = float(j.max())
    x = np.arange(-math.sqrt(most) - 10, most * v + math.sqrt(most) + 10, 0.05)
    with np.errstate(divide="ignore"):
        size = np.log(np.abs(np.expm1(v * x - v * v / 2)))
    bell = -x * x / 2 + math.log(0.05 / math.sqrt(2 * math.pi))
    return np.array([logsumexp(k * size + bell) for k in j])


def fixed_size_rdp(z: float, rate: float) -> tuple[Floats, Floats]:
    """Orders and RDP, both ``(k,)``, of one Gaussian sum over exactly ``rate N`` clients.

    The clients are drawn without replacement; replace-one changes one client's vector, and ``z`` is
    relative to the distance ``2C`` of the two. With ``q = rate`` and ``M_j = E|e^(Z/z - 1/(2z²)) -
    1|^j``: ``e^((a-1) eps(a)) <= 1 + sum_{j=2}^a q^j C(a,j) min{4 M_j, 2 e^(j(j-1)/(2z²))}``. Of
    three laws that are neighbours of each other, ``E_R (|P-Q|/R)^j`` is at most 4 times the largest
    value for two (where ``P > Q``, ``P-Q`` is at most ``P-R`` if ``R <= Q``, and ``1/R < 1/Q`` if
    not), and the most distant laws are the worst. For odd ``j`` the theorem takes the geometric
    mean of the even neighbours of ``M_j``; here ``M_j`` is integrated.

    References:
        Wang, Balle, Kasiviswanathan, "Subsampled Rényi Differential Privacy and Analytical Moments
        Accountant", AISTATS 2019, https://arxiv.org/abs/1808.00087, Theorem 27.
    """
    check_sampling(rate, z)
    v = 1 / z
    whole = INTEGERS / (2 * z * z)
    if rate == 1:
        return INTEGERS, whole
    j = np.arange(2.0, LARGEST + 1)
    log_terms = math.log(2) + j * (j - 1) / (2 * z * z)
    log_terms[0] = min(math.log(4) + float(log_expm1(v * v)), log_terms[0])
    # for larger j, M_j is at least half of e^(j(j-1)/(2z²)), the other term of the minimum
    near = (j > 2) & (j * v * v < 10)
    if near.any():
        moments = math.log(4 + 1e-5) + _log_moments(j[near], v)
        log_terms[near] = np.minimum(log_terms[near], moments)
    total = log_binomial_sum(INTEGERS, j * math.log(rate) + log_terms)
    return INTEGERS, np.minimum(np.logaddexp(0.0, total) / (INTEGERS - 1), whole)
