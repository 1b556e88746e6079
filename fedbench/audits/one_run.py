"""Lower bound on epsilon from one run with many canaries, by the number of right guesses."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import betainc, expit

from fedbench.audits.rates import check_confidence
from fedbench.core.errors import require
from fedbench.privacy.conversion import Floats, bisect

SHARES = (0.1, 0.25, 0.5, 0.9)  # shares of the canaries to guess, fixed in advance
MOST = 64.0  # largest epsilon of the search


@dataclass(frozen=True)
class Guesses:
    """Guesses of an adversary about ``canaries`` coins, and how many were right.

    Args:
        canaries: Number of canaries, ``m``, each present by its own fair coin.
        made: Number of guesses, ``r``; the adversary abstains on the other canaries.
        right: Number of right guesses, ``v``.
    """

    canaries: int
    made: int
    right: int

    def __post_init__(self) -> None:
        require("canaries", self.canaries, self.canaries >= 1, ">= 1")
        legal = 0 <= self.right <= self.made <= self.canaries
        rule = f"in [0, guesses = {self.made}], and guesses <= canaries = {self.canaries}"
        require("right", self.right, legal, rule)

    def chance(self, epsilon: float, delta: float) -> float:
        """Bound the chance of so many right guesses under (epsilon, delta): a p-value.

        With ``q = e^eps / (1 + e^eps)``, ``beta = Pr[Bin(r, q) >= v]`` and ``alpha = max_i
        (Pr[Bin(r, q) >= v - i] - beta) / i``: ``beta + 2 m delta alpha``.

        References:
            Steinke, Nasr, Jagielski, "Privacy Auditing with One (1) Training Run", NeurIPS 2023,
            https://arxiv.org/abs/2305.08846, Algorithm 1, and Appendix D for the p-value.
        """
        r, v = self.made, self.right
        if not v:
            return 1.0
        q = float(expit(epsilon))
        tails = at_least(v - np.arange(v + 1), r, q)
        alpha = float(((tails[1:] - tails[0]) / np.arange(1, v + 1)).max())
        return min(1.0, float(tails[0]) + 2 * self.canaries * delta * alpha)

    def epsilon(self, delta: float, confidence: float) -> float:
        """Return the largest epsilon whose `chance` is at most ``1 - confidence``."""
        check_confidence(confidence)
        require("delta", delta, 0 <= delta < 1, "in [0, 1)")
        level = 1 - confidence
        if self.chance(0.0, delta) > level:
            return 0.0
        return bisect(lambda epsilon: self.chance(epsilon, delta) > level, 0.0, MOST, steps=60)[0]

    def best(self, confidence: float) -> float:
        """Return the bound at delta 0 if all guesses are right: ``logit q`` with ``q^r = p``.

        >>> round(Guesses(100, 100, 0).best(0.95), 3)
        3.493
        """
        log_q = math.log(1 - confidence) / self.made
        return log_q - math.log(-math.expm1(log_q))


def at_least(counts: npt.ArrayLike, trials: int, chance: float) -> Floats:
    """``Pr[Bin(trials, chance) >= count]`` for counts, any shape.

    >>> at_least([0, 1, 2], 2, 0.5).tolist()
    [1.0, 0.75, 0.25]
    """
    k = np.asarray(counts, dtype=np.float64)
    return np.where(k <= 0, 1.0, betainc(np.maximum(k, 1), trials - k + 1, chance))


def best_guesses(
    scores: Floats, there: npt.NDArray[np.bool_], delta: float, confidence: float
) -> tuple[float, Guesses]:
    """Return the best bound over the number of guesses, and its guesses.

    The ``r/2`` canaries of the largest scores are guessed present, the ``r/2`` of the least absent,
    for ``r`` each of `SHARES` of ``m``, with an equal part of the error. Ties are broken by
    position, which is independent of the coins. ``scores`` and ``there`` are ``(m,)``.
    """
    m = len(scores)
    require("canaries", m, m >= 2, ">= 2")
    order = np.argsort(scores, kind="stable")
    sides = sorted({max(1, math.floor(share * m / 2)) for share in SHARES})
    bounds = []
    for side in sides:
        right = int(there[order[-side:]].sum() + (~there[order[:side]]).sum())
        guesses = Guesses(m, 2 * side, right)
        bounds.append((guesses.epsilon(delta, 1 - (1 - confidence) / len(sides)), guesses))
    return max(bounds, key=lambda bound: bound[0])
