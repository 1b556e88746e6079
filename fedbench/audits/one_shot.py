"""Estimate of epsilon from one run: cosines of canaries against those of unused directions."""

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from fedbench.audits.laws import Gaussians
from fedbench.core.errors import require
from fedbench.privacy.conversion import Floats

GROUPS = 20  # groups of canaries in the jackknife


def from_final(cosines: Floats, d: int) -> Gaussians:
    """Fit the laws of a canary's cosine with the change of the model, with and without the canary.

    Without it the cosine of any vector of ``d`` coordinates and a random direction is nearly
    ``N(0, 1/d)``; with it, a Gaussian of the mean and standard deviation of the ``cosines (k,)``.
    An estimate: nothing bounds how far the laws are from Gaussian, nor how far ``k`` cosines are
    from their law. Few canaries bias it upwards, since the larger of two directions is taken: 100
    of true epsilon 10.0 give 11.3 on average.

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
    count = min(GROUPS, canaries)
    without = [laws(rows[rows % count != group]).epsilon(delta) for group in range(count)]
    return laws(rows).epsilon(delta), float(np.std(without)) * math.sqrt(count - 1)


def _fit(x: Floats) -> tuple[float, float]:
    """Mean and sample standard deviation."""
    require("canaries", len(x), len(x) >= 2, ">= 2, to have a standard deviation")
    return float(np.mean(x)), max(float(np.std(x, ddof=1)), 1e-12)
