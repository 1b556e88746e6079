"""An estimate of epsilon from one run: how far canaries stand out from directions nobody took."""

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from fedbench.audits.laws import Gaussians
from fedbench.core.errors import require
from fedbench.privacy.conversion import Floats

GROUPS = 20  # of canaries, one of which is left out at a time


def from_final(cosines: Floats, d: int) -> Gaussians:
    """The laws of a canary's cosine with the change of the model: with it, and without.

    Without it the cosine of any vector of ``d`` coordinates and a random direction is nearly
    ``N(0, 1/d)``; with it, a Gaussian of the mean and standard deviation of the ``cosines (k,)``.
    An estimate: nothing bounds how far the laws are from Gaussian, nor how far k of them are from
    their law. With few canaries it errs upwards, for the larger of two directions is taken: of 100
    that cost 10.0 it says 11.3 on average.

    References:
        Andrew et al., "One-Shot Empirical Privacy Estimation for Federated Learning", ICLR 2024,
        https://arxiv.org/abs/2302.03098, Algorithm 2.
    """
    require("d", d, d >= 2, ">= 2")
    return Gaussians(*_fit(cosines), 0.0, 1 / math.sqrt(d))


def from_all(largest: Floats, unobserved: Floats) -> Gaussians:
    """The same for an adversary that sees the model of every round: `largest` over rounds.

    The largest of several cosines has no simple law, so one is fitted to as many directions that
    nobody took, ``unobserved (k,)``.

    References:
        Andrew et al., ICLR 2024, https://arxiv.org/abs/2302.03098, Algorithm 3.
    """
    return Gaussians(*_fit(largest), *_fit(unobserved))


def estimate(
    laws: Callable[[npt.NDArray[np.int64]], Gaussians], canaries: int, delta: float
) -> tuple[float, float]:
    """Epsilon of ``laws`` of all canaries, and its standard error by a jackknife over groups.

    The error says how much other canaries would have changed it, not how far it is from the truth.

    References:
        Quenouille, "Notes on Bias in Estimation", Biometrika 1956, as the jackknife of groups.
    """
    require("--canaries", canaries, canaries >= 4, ">= 4")
    every = np.arange(canaries)
    count = min(GROUPS, canaries)
    without = [laws(every[every % count != g]).epsilon(delta) for g in range(count)]
    return laws(every).epsilon(delta), float(np.std(without)) * math.sqrt(count - 1)


def _fit(x: Floats) -> tuple[float, float]:
    """Mean and sample standard deviation."""
    require("canaries", len(x), len(x) >= 2, ">= 2, to have a standard deviation")
    return float(np.mean(x)), max(float(np.std(x, ddof=1)), 1e-12)
