"""Privacy of bits whose odds depend on the data: sampled masks, and signs under noise (`sign_rdp`).

Of a mask's ``theta`` in ``[c, 1-c]^d`` only ``m ~ Bern(clip(theta + sigma N(0, I), c, 1-c))`` is
released. Given ``theta`` the bits are independent, and bit ``i`` is ``Bern(p(theta_i))`` with
`marginal` ``p``. Bounds, with ``Delta`` the L2 sensitivity of ``theta``:

- *whole cube* (Theorem A): any two admissible Bernoullis are a post-processing of randomized
  response with ``q = p(c)``, and the corners of the cube attain it. So ``n = d T`` bits are exactly
  `RandomizedResponse` ``(q, n)``, also when a bit depends on earlier ones, and whatever clients
  remember between rounds.
- *logit* (B1): ``A = ln(1 + e^x)`` has ``A'' <= 1/4``, so ``D_a = (A(a u + (1-a) v) - a A(u) -
  (1-a) A(v)) / (a-1) <= (a/8)(u - v)²`` for logits ``u, v``: ``K_l Delta²/2``-zCDP.
- *probit* (B2): ``Bern(p) = 1{Phi^-1(p) + N(0, 1) > 0}``, a post-processing of a Gaussian mechanism
  on probits: ``sqrt(K_u) Delta``-GDP.
- *envelope* (B3): the most that ``d`` coordinates release together that share ``Delta²``.

Assumed: fresh noise per coordinate and round, one sample of it, and a clip that is enforced.

References:
    Imola, Chaudhuri, "Privacy Amplification Via Bernoulli Sampling", 2021,
    https://arxiv.org/abs/2105.10594; Isik et al., "Sparse Random Networks for
    Communication-Efficient Federated Learning" (FedPM), ICLR 2023,
    https://arxiv.org/abs/2209.15328, Section 2.4 and Appendix C, Equation 13.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy.special import erf, erfcx, log_ndtr, ndtr, ndtri

from fedbench.api import Adjacency
from fedbench.core.errors import require
from fedbench.privacy.conversion import Floats, check_orders

# Relative enlargement of the envelopes, for what lies between two points of their grids
SLACK = 1e-3
SIGN_SLACK = 5e-3


def check_mask(sigma: float, c: float) -> None:
    """Check the noise ``sigma`` on a probability, and the distance ``c`` of its clip to 0 and 1."""
    require("sigma", sigma, 0 <= sigma < math.inf, ">= 0 and finite")
    require("c", c, 0 < c < 0.5, "in (0, 1/2)")


def marginal(theta: npt.ArrayLike, sigma: float, c: float) -> Floats:
    """``p(theta) = E clip(theta + sigma Z, c, 1-c)``, any shape: the chance that a bit is 1.

    With ``a = (c-theta)/sigma`` and ``b = (1-c-theta)/sigma``, for ``theta <= 1/2`` a sum of terms
    >= 0: ``c + (theta-c) Phi(-a) + (1-c-theta) Phi(-b) + sigma (phi(a) - phi(b))``, where the last
    difference is ``-phi(a) expm1(-(1-2c)(1-2theta)/(2 sigma²))``. Above 1/2, ``1 - p(1-theta)``.

    References:
        FedPM, Appendix C, the expectation after Equation 13, whose last line prints
        ``-2(c-theta)-1`` as the exponent; this is the corrected one (erratum E2).
    """
    check_mask(sigma, c)
    given = np.asarray(theta, dtype=np.float64)
    if sigma < 1e-300:
        return given + 0.0
    low = np.minimum(given, 1 - given)
    with np.errstate(over="ignore"):
        a = (c - low) / sigma
        b = (1 - c - low) / sigma
        exponent = (1 - 2 * c) / sigma * ((1 - 2 * low) / sigma) / 2
        bell = np.exp(-a * a / 2) / math.sqrt(2 * math.pi)
    p = c + (low - c) * ndtr(-a) + (1 - c - low) * ndtr(-b) - sigma * bell * np.expm1(-exponent)
    return np.where(given > 0.5, 1 - p, p)


def inverse_marginal(p: npt.ArrayLike, sigma: float, c: float) -> Floats:
    """Return the ``theta`` in ``[c, 1-c]`` of which ``p`` is the `marginal`, any shape.

    ``p`` is clipped to ``[p(c), 1-p(c)]``, where means of few masks fall outside. The answer is
    linear between 65 535 points of the curve or more, which are closer by the clip: good to 1e-8 if
    ``sigma <= 1``, else to ``1e-15 sigma / (1-2c)``, which is nothing beside the noise of ``p``
    itself. Of a mean over clients it is exact only if they all share ``theta`` (Jensen).

    References:
        FedPM, Appendix C, bias correction, with the expectation after Equation 13 corrected
        (erratum E2).
    """
    check_mask(sigma, c)
    given = np.asarray(p, dtype=np.float64)
    layer = c + sigma * np.linspace(0.0, 10.0, 20_001)
    theta = np.unique(np.concatenate([np.linspace(c, 0.5, 2**15), layer[layer < 0.5]]))
    below = marginal(theta, sigma, c)
    points = np.concatenate([below, 1 - below[-2::-1]])
    return np.asarray(np.interp(given, points, np.concatenate([theta, 1 - theta[-2::-1]])))


def marginal_slope(theta: npt.ArrayLike, sigma: float, c: float) -> Floats:
    """``p'(theta) = Phi(b) - Phi(a)``, any shape: the chance of not being clipped."""
    check_mask(sigma, c)
    given = np.asarray(theta, dtype=np.float64)
    if sigma < 1e-300:
        return np.ones_like(given)
    width = sigma * math.sqrt(2)
    with np.errstate(over="ignore"):
        return np.asarray((erf((1 - c - given) / width) + erf((given - c) / width)) / 2)


def renyi_bernoulli(
    alpha: float, log_p: tuple[Floats, Floats], log_q: tuple[Floats, Floats]
) -> Floats:
    """``D_a(Bern(p) || Bern(q))`` from the logarithms of ``(p, 1-p)`` and of ``(q, 1-q)``."""
    t = alpha - 1
    ones, zeros = log_p[0] - log_q[0], log_p[1] - log_q[1]
    if t * max(np.max(ones), np.max(zeros)) < 500:  # exact also near the diagonal and near order 1
        moment = np.exp(log_p[0]) * np.expm1(t * ones) + np.exp(log_p[1]) * np.expm1(t * zeros)
        return np.asarray(np.log1p(moment) / t)
    return np.asarray(np.logaddexp(log_p[0] + t * ones, log_p[1] + t * zeros) / t)


def r_alpha(orders: npt.ArrayLike, c: float) -> Floats:
    """``ln(c^a (1-c)^(1-a) + (1-c)^a c^(1-a)) / (a-1)`` per order, ``(k,)``, in nats.

    At ``c`` it is the papers' bound per coordinate (FedPM, Section 2.4); at ``p(c)`` it is exact.
    """
    require("c", c, 0 < c <= 0.5, "in (0, 1/2]")
    t = check_orders(orders) - 1
    gap = math.log1p(-c) - math.log(c)
    # ln((1-c) e^(t gap) + c e^(-t gap)), whose larger term is the first
    small = t * gap < 1
    near = np.where(small, t * gap, 0.0)
    moment = (1 - c) * np.expm1(near) + c * np.expm1(-near)
    far = t * gap + math.log1p(-c) + np.log1p(np.exp(-2 * t * gap - gap))
    return np.where(small, np.log1p(moment), far) / t


def _supremum(f: Callable[[Floats], Floats], sigma: float, c: float) -> float:
    """Maximise ``f`` over ``[c, 1/2]``: a grid at the scales of ``c`` and ``sigma``, four zooms."""
    grids = (
        np.linspace(c, 0.5, 2001),
        c + np.geomspace(1e-6 * c, 0.5 - c, 1001),
        c + sigma * np.linspace(0, 8, 801),
    )
    theta = np.unique(np.clip(np.concatenate(grids), c, 0.5))
    best = 0.0
    with np.errstate(over="ignore"):
        for _ in range(4):
            values = f(theta)
            at = int(np.argmax(values))
            best = max(best, float(values[at]))
            theta = np.linspace(theta[max(at - 1, 0)], theta[min(at + 1, len(theta) - 1)], 201)
    return best * (1 + 1e-9)


def logit_constant(sigma: float, c: float) -> float:
    """``K_l = sup (logit p)'²/4`` (B1): masks are ``K_l Delta²/2``-zCDP."""
    check_mask(sigma, c)

    def squared_slope(theta: Floats) -> Floats:
        p = marginal(theta, sigma, c)
        return np.asarray((marginal_slope(theta, sigma, c) / (2 * p * (1 - p))) ** 2)

    return _supremum(squared_slope, sigma, c)


@lru_cache(maxsize=32)
def probit_constant(sigma: float, c: float) -> float:
    """``K_u = sup (Phi^-1 p)'²`` (B2), at most ``1/sigma²``: a mask is ``sqrt(K_u) Delta``-GDP."""
    check_mask(sigma, c)

    def squared_slope(theta: Floats) -> Floats:
        u = ndtri(marginal(theta, sigma, c))
        bell = np.exp(-u * u / 2) / math.sqrt(2 * math.pi)
        return np.asarray((marginal_slope(theta, sigma, c) / bell) ** 2)

    return _supremum(squared_slope, sigma, c)


def concave_hull(x: Floats, y: Floats, at: float) -> float:
    """Return the concave hull of the origin and the points ``(x, y)`` at ``at``, ``x (k,)`` rising.

    If one coordinate of cost ``x`` releases at most ``y(x)``, ``d`` coordinates of mean cost ``at``
    release at most ``d`` times the hull (Jensen), which is tight up to one coordinate (Shapley,
    Folkman). Beyond the last point the largest ``y`` counts: no coordinate can cost more.
    """
    require("at", at, at >= 0, ">= 0")
    x = np.append(0.0, x)
    y = np.append(0.0, y)
    before = x <= at
    after = x > at
    if not after.any():
        return float(y.max())
    share = (at - x[before][:, None]) / (x[after] - x[before][:, None])
    return float(((1 - share) * y[before][:, None] + share * y[after]).max())


def envelope(orders: npt.ArrayLike, squared: float, sigma: float, c: float) -> Floats:
    """B3 per coordinate: the concave hull over ``h²`` of ``G_a(h)``, at ``squared = Delta²/d``.

    ``G_a(h)`` is the largest ``D_a(Bern(p(theta)) || Bern(p(theta')))`` of probabilities ``h``
    apart, in both directions; ``sum h_i² <= Delta²``. The supremum is over a grid of relative steps
    of 4 % and 8 %, enlarged by `SLACK`: numerical, where the other bounds are proofs. It is
    infinite where the grid does not reach: for ``p(c)`` under 1e-6, and for a cube whose sides are
    shorter than a thousandth of ``p(c)``.
    """
    check_mask(sigma, c)
    require("squared", squared, squared >= 0, ">= 0")
    alpha = check_orders(orders)
    width = 1 - 2 * c
    floor = float(marginal(c, sigma, c))
    if floor < 1e-6 or width < 1e-3 * floor:
        return np.full(alpha.shape, np.inf)
    at = min(squared, width**2)
    h = np.geomspace(1e-4 * floor, width, math.ceil(math.log(1e4 * width / floor) / 0.04))
    h = np.unique(np.append(h, max(math.sqrt(at), h[0])))
    near = np.geomspace(1e-3 * floor, 0.5, math.ceil(math.log(500 / floor) / 0.08))
    # the reflection theta -> 1-theta swaps the directions, so the left half is enough
    u = np.concatenate([[0.0], near, np.linspace(0.0, 0.5, 41)[1:-1]])[:, None]
    left = c + u * (width - h)
    right = left + h
    p = np.log(marginal(left, sigma, c)), np.log(marginal(1 - left, sigma, c))
    q = np.log(marginal(right, sigma, c)), np.log(marginal(1 - right, sigma, c))
    result = np.empty_like(alpha)
    for i, a in enumerate(alpha):
        largest = np.maximum(renyi_bernoulli(a, p, q), renyi_bernoulli(a, q, p)).max(axis=0)
        result[i] = concave_hull(h**2, largest, at)
    return result * (1 + SLACK)


@dataclass(frozen=True, eq=False)
class MaskRdp:
    """Bounds on the RDP of one round of bits, by name, ``(k,)`` each."""

    terms: dict[str, Floats]

    @property
    def epsilon(self) -> Floats:
        """``(k,)``: the least bound at every order."""
        least: Floats = np.stack(list(self.terms.values())).min(axis=0)
        return least


def cube(d: int, c: float) -> float:
    """``(1-2c) sqrt(d)``, the diagonal of ``[c, 1-c]^d``: no L2 sensitivity is larger."""
    require("d", d, d >= 1, ">= 1")
    return (1 - 2 * c) * math.sqrt(d)


def mask_rdp(
    orders: npt.ArrayLike, d: int, sigma: float, c: float, sensitivity: float | None = None
) -> MaskRdp:
    """Every bound on the RDP of one round of ``d`` masks, of L2 ``sensitivity`` (None: the cube).

    Take the minimum at each order, before adding rounds.
    """
    check_mask(sigma, c)
    reach = cube(d, c) if sensitivity is None else sensitivity
    require("sensitivity", sensitivity, 0 < reach < math.inf, "None or > 0 and finite")
    alpha = check_orders(orders)
    reach = min(reach, cube(d, c))
    half = alpha * reach**2 / 2
    noise = 1 / sigma**2 if sigma > 1e-150 else math.inf
    terms = {
        "randomized-response": d * r_alpha(alpha, float(marginal(c, sigma, c))),
        "envelope": d * envelope(alpha, reach**2 / d, sigma, c),
        "logit": half * logit_constant(sigma, c),
        "probit": half * probit_constant(sigma, c),
        "gaussian": half * noise,
    }
    return MaskRdp(terms)


def paper_rdp(
    orders: npt.ArrayLike, d: int, sigma: float, c: float, sensitivity: float | None = None
) -> Floats:
    """``min{a Delta²/(2 sigma²), d r_a(c)}`` per order: FedPM's own bound (Section 2.4)."""
    check_mask(sigma, c)
    reach = min(cube(d, c), math.inf if sensitivity is None else sensitivity)
    alpha = check_orders(orders)
    noise = 1 / sigma**2 if sigma > 1e-150 else math.inf
    return np.minimum(alpha * reach**2 / 2 * noise, d * r_alpha(alpha, c))


def _hazard(t: float) -> float:
    """``phi(t)/Phi(-t)``, without a quotient of two zeros."""
    scaled = float(erfcx(t / math.sqrt(2)))
    return math.sqrt(2 / math.pi) / scaled if scaled > 0 else math.inf


def sign_constant(z: float) -> float:
    """``K_l s² = (r(1/z) + r(-1/z))²/4``: a sign is ``K_l Delta²/2``-zCDP (B1), of noise ``s``.

    >>> [round(sign_constant(z), 3) for z in (100, 2, 1, 0.5)]
    [0.637, 0.681, 0.822, 1.474]
    """
    require("z", z, 1e-60 < z < math.inf, "> 1e-60 and finite")
    return ((_hazard(1 / z) + _hazard(-1 / z)) / 2) ** 2


def _renyi_signs(alpha: float, t: Floats, other: Floats) -> Floats:
    """``D_a`` between signs of means ``t`` and ``other``, in the worse direction, any shape."""
    p, q = ((log_ndtr(x), log_ndtr(-x)) for x in (t, other))
    return np.maximum(renyi_bernoulli(alpha, p, q), renyi_bernoulli(alpha, q, p))


def _pairs(b: float, at: float, zero_out: bool) -> tuple[Floats, Floats, Floats]:
    """Costs ``w (m,)``, and ``t`` and ``t'`` in ``[-b, b]`` that cost it, ``(angles, m)``."""
    least = max(1e-3 * min(b, 1.0), 1e-5)  # below it divergences are proportional to w
    size = np.geomspace(least, b, math.ceil(math.log(b / least) / 0.04) + 1)
    size = np.unique(np.append(size, min(max(math.sqrt(at), least), b)))
    if zero_out:
        return size**2, size[None], np.zeros((1, len(size)))
    # by the symmetry t, t' -> -t', -t half of the half plane t > t' is enough; first is t' = -t
    angle = np.append(0.0, np.geomspace(0.01, 1.0, 24))[:, None] * math.pi / 2 - math.pi / 4
    radius = size * math.sqrt(2)
    return size**2, np.minimum(radius * np.cos(angle), b), np.maximum(radius * np.sin(angle), -b)


def sign_rdp(
    orders: npt.ArrayLike, d: int, z: float, adjacency: Adjacency = "replace-one"
) -> MaskRdp:
    """Every bound on the RDP of one release of ``d`` signs, with ``z = s/C`` the noise multiplier.

    Take the minimum at each order, before adding rounds. ``randomized-response`` and ``envelope``
    are left out where float64 cannot resolve them, for ``z`` below 1e-6 or above 1e4.

    Of ``g`` with ``|g|_2 <= C`` only the signs of ``g + N(0, s² I)`` are released: sign ``i`` is
    positive with probability ``Phi(g_i/s)``. In units of ``s``: ``t = g/s`` of norm at most ``b =
    C/s = 1/z``. Neighbours are any two such vectors, at most ``2b`` apart (replace-one), or one of
    them is 0, whose signs are fair coins (zero-out). Bounds, with ``Delta`` their distance:

    - *gaussian*: signs are a post-processing of the noisy vector: ``a Delta²/2``. This is also the
      probit bound (B2).
    - *logit* (B1): ``a K_l Delta²/2`` with ``4 K_l = sup (logit Phi)'²``. ``(logit Phi)'(t) = r(t)
      + r(-t)`` with ``r = phi/Phi(-.)`` the hazard rate, which is convex (Sampford, 1953): the sum
      is even and convex, and the supremum is at ``t = b``.
    - *randomized-response*: no coordinate is beyond ``b``: ``d`` times the divergence of the ends.
    - *envelope*: coordinates share the norm. A coordinate of values ``t`` and ``t'`` costs ``w =
      (t² + t'²)/2`` (zero-out: ``t' = 0`` and ``w = t²``); the costs add up to at most ``b²``, and
      `concave_hull` at ``b²/d`` bounds what ``d`` coordinates release.

    References:
        Jin et al., "Stochastic-Sign SGD for Federated Learning with Theoretical Guarantees", 2020,
        https://arxiv.org/abs/2002.10940 (the mechanism); "Noisy SIGNSGD Is More Differentially
        Private Than You (Might) Think", ICML 2025, PMLR 267 (more private than the noisy vector).
    """
    require("d", d, d >= 1, ">= 1")
    require("adjacency", adjacency, adjacency in ("replace-one", "zero-out"), "one of the two")
    alpha = check_orders(orders)
    constant = sign_constant(z)
    b = 1 / z
    zero_out = adjacency == "zero-out"
    half = alpha * (b if zero_out else 2 * b) ** 2 / 2
    terms = {"logit": half * constant, "gaussian": half}
    if 1e-4 < b < 1e6:
        at = b * b / d
        costs, t, s = _pairs(b, at, zero_out)
        hulls = [concave_hull(costs, _renyi_signs(a, t, s).max(axis=0), at) for a in alpha]
        edge = np.array([b])
        other = np.array([0.0 if zero_out else -b])
        ends = np.array([float(_renyi_signs(a, edge, other)[0]) for a in alpha])
        terms["randomized-response"] = d * ends
        terms["envelope"] = d * (1 + SIGN_SLACK) * np.array(hulls)
    return MaskRdp(terms)
