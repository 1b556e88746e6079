"""Privacy of the signs of a clipped vector under Gaussian noise.

The mechanism: ``g`` with ``|g|_2 <= C``, and only the signs of ``g + N(0, s² I)`` are released, so
that sign ``i`` is positive with probability ``Phi(g_i/s)``. In units of ``s``: ``t = g/s`` of norm
at most ``b = C/s = 1/z``. Neighbours are any two such vectors, at most ``2b`` apart (replace-one),
or one of them is 0, whose signs are fair coins (zero-out). Bounds, with ``Delta`` the distance of
the two in units of ``s``:

- *gaussian*: signs are a post-processing of the noisy vector: ``a Delta²/2``. This is also the
  probit bound (B2) of `amplification`.
- *logit* (B1 there): ``a K_l Delta²/2`` with ``4 K_l = sup (logit Phi)'²``. ``(logit Phi)'(t) =
  r(t) + r(-t)`` with ``r = phi/Phi(-.)`` the hazard rate, which is convex (Sampford, 1953): the sum
  is even and convex, and the supremum is at ``t = b``.
- *randomized-response*: no coordinate is beyond ``b``: ``d`` times the divergence of the extremes.
- *envelope*: coordinates share the norm. A coordinate of values ``t`` and ``t'`` costs ``w = (t² +
  t'²)/2`` (zero-out: ``t' = 0`` and ``w = t²``); the costs add up to at most ``b²``, and
  `concave_hull` at ``b²/d`` bounds what ``d`` coordinates release.

References:
    Jin et al., "Stochastic-Sign SGD for Federated Learning with Theoretical Guarantees", 2020,
    https://arxiv.org/abs/2002.10940 (the mechanism); "Noisy SIGNSGD Is More Differentially Private
    Than You (Might) Think", ICML 2025, PMLR 267 (signs are more private than the noisy vector).
"""

import math
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.special import erfcx, log_ndtr

from fedbench.core.errors import require
from fedbench.privacy.amplification import MaskRdp, concave_hull, renyi_bernoulli
from fedbench.privacy.conversion import Floats, check_orders

SLACK = 5e-3  # relative enlargement of the hull, for what lies between two points of its grid


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


def _renyi(alpha: float, t: Floats, other: Floats) -> Floats:
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
    orders: npt.ArrayLike,
    d: int,
    z: float,
    adjacency: Literal["replace-one", "zero-out"] = "replace-one",
) -> MaskRdp:
    """Every bound on the RDP of one release of ``d`` signs, with ``z = s/C`` the noise multiplier.

    Take the minimum at each order, before adding rounds. ``randomized-response`` and ``envelope``
    are left out where float64 cannot resolve them, for ``z`` below 1e-6 or above 1e4.
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
        hulls = [concave_hull(costs, _renyi(a, t, s).max(axis=0), at) for a in alpha]
        edge = np.array([b])
        other = np.array([0.0 if zero_out else -b])
        ends = np.array([float(_renyi(a, edge, other)[0]) for a in alpha])
        terms["randomized-response"] = d * ends
        terms["envelope"] = d * (1 + SLACK) * np.array(hulls)
    return MaskRdp(terms)
