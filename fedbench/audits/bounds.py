"""Lower bounds on epsilon from scores under two inputs or guesses in one run, and what they say."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.special import betainc, betaincinv, expit

from fedbench.api import Adjacency
from fedbench.core.errors import require
from fedbench.privacy.conversion import Floats, bisect, check_delta

CHOOSING_SHARE = 0.25  # share of the scores that choose the test; the others are tested
MAX_THRESHOLDS = 256  # candidate thresholds from each set of scores
GUESSED_SHARES = (0.1, 0.25, 0.5, 0.9)  # shares of the canaries to guess, fixed in advance
MAX_EPSILON = 64.0  # largest epsilon of the search


Method = Literal["mechanism", "one-run", "one-shot", "one-shot, max"]


@dataclass(frozen=True)
class AuditFinding:
    """Measured epsilon of one audit, and the claim."""

    method: Method
    epsilon: float  # the lower bound, or the estimate
    claimed: float  # epsilon of the accountant for the same release
    delta: float  # of both
    unit: Literal["client", "example"]  # whose data the claim covers
    adjacency: Adjacency  # of the claim
    confidence: float | None  # probability that a lower bound is right; None for an estimate
    audited: str  # description of the release
    evidence: str  # description of the counts
    error: float | None = None  # standard error of an estimate
    exact: float | None = None  # epsilon of the pair of inputs that was compared, where known
    paper: float | None = None  # epsilon that the mechanism's own paper would claim, if it differs

    @property
    def is_bound(self) -> bool:
        """True for a lower bound, false for an estimate."""
        return self.confidence is not None

    @property
    def broken(self) -> bool:
        """True if the claim is refuted: it is below a lower bound."""
        return self.is_bound and self.epsilon > self.claimed


def check_confidence(confidence: float) -> None:
    """Check that ``confidence`` is strictly between 0 and 1."""
    require("confidence", confidence, 0 < confidence < 1, "in (0, 1)")


def clopper_pearson(successes: npt.ArrayLike, trials: int, level: float) -> tuple[Floats, Floats]:
    """Lower and upper bound on a probability, each wrong with probability at most ``level``.

    >>> low, high = clopper_pearson(0, 10, 0.05)
    >>> float(low), round(float(high), 4)  # 1 - 0.05^(1/10)
    (0.0, 0.2589)

    References:
        Clopper, Pearson, "The Use of Confidence or Fiducial Limits Illustrated in the Case of the
        Binomial", Biometrika 1934, https://doi.org/10.1093/biomet/26.4.404.
    """
    k = np.asarray(successes, dtype=np.float64)
    legal = trials >= 1 and bool(((k >= 0) & (k <= trials)).all())
    require("successes", successes, legal, f"in [0, trials = {trials}], of at least one trial")
    low = np.where(k > 0, betaincinv(np.maximum(k, 1), trials - k + 1, level), 0.0)
    high = np.where(k < trials, betaincinv(k + 1, np.maximum(trials - k, 1), 1 - level), 1.0)
    return low, high


@dataclass(frozen=True)
class Bound:
    """Lower bound on epsilon that scores prove, and the rates of those that did not choose it."""

    epsilon: float  # at least 0; right unless one of the two rates is outside its interval
    true: float  # rate of true alarms
    false: float  # rate of false alarms
    most: float  # bound that as many scores prove if no input is ever mistaken for the other
    below: bool  # small scores are a sign of the second input, not large ones of the first


def lower_bound(first: Floats, second: Floats, delta: float, confidence: float) -> Bound:
    """Return a bound from scores ``(N,)`` under each of two neighbours, right with ``confidence``.

    ``Pr[M(D) in S] <= e^eps Pr[M(D') in S] + delta`` for the set ``S`` of scores beyond a
    threshold, so ``eps >= ln((TPR - delta) / FPR)``. A quarter of the scores chooses the threshold
    and its direction; on the others both rates get a `clopper_pearson` bound at half of the error,
    ``TPR_lo`` and ``FPR_hi``. One test is made, so the error is not divided by the number of
    thresholds.

    Raises:
        ConfigError: ``delta`` or ``confidence`` is not in (0, 1), or there are fewer than 8 scores.

    References:
        Nasr et al., "Adversary Instantiation: Lower Bounds for Differentially Private Machine
        Learning", S&P 2021, https://arxiv.org/abs/2101.04535, Section 2; the two rates: Kairouz,
        Oh, Viswanath, ICML 2015, https://arxiv.org/abs/1311.0776, Theorem 2.1.
    """
    check_delta(delta)
    check_confidence(confidence)
    fewest = min(len(first), len(second))
    require("releases", fewest, fewest >= 8, ">= 8")
    level = (1 - confidence) / 2
    cuts = [math.ceil(CHOOSING_SHARE * len(scores)) for scores in (first, second)]
    threshold, below = _choice(first[: cuts[0]], second[: cuts[1]], delta, level)
    suspect, other = _directed(first[cuts[0] :], second[cuts[1] :], below)
    trials = len(suspect), len(other)
    true = int((suspect >= threshold).sum())
    false = int((other >= threshold).sum())
    epsilon, most = _proved([true, trials[0]], [false, 0], trials, delta, level).tolist()
    return Bound(epsilon, true / trials[0], false / trials[1], most, below)


def _directed(first: Floats, second: Floats, below: bool) -> tuple[Floats, Floats]:
    """Return the scores of which large ones raise a true alarm, and a false one."""
    return (-second, -first) if below else (first, second)


def _proved(
    true: npt.ArrayLike, false: npt.ArrayLike, trials: tuple[int, int], delta: float, level: float
) -> Floats:
    """``max(0, ln((TPR_lo - delta) / FPR_hi))`` of counts of alarms, any shape."""
    low, _ = clopper_pearson(true, trials[0], level)
    _, high = clopper_pearson(false, trials[1], level)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.log(np.maximum(low - delta, 0.0) / high)
    return np.asarray(np.maximum(np.nan_to_num(ratio, nan=0.0, neginf=0.0), 0.0))


def _choice(first: Floats, second: Floats, delta: float, level: float) -> tuple[float, bool]:
    """Return the threshold and the direction of the largest bound on these scores."""
    tests = []
    for below in (False, True):
        suspect, other = (np.sort(scores) for scores in _directed(first, second, below))
        thresholds = np.unique(np.concatenate([_tail(suspect), _tail(other)]))
        true = len(suspect) - np.searchsorted(suspect, thresholds)
        false = len(other) - np.searchsorted(other, thresholds)
        bounds = _proved(true, false, (len(suspect), len(other)), delta, level)
        at = int(np.argmax(bounds))
        tests.append((float(bounds[at]), float(thresholds[at]), below))
    _, threshold, below = max(tests, key=lambda test: test[0])
    return threshold, below


def _tail(ascending: Floats) -> Floats:
    """Return some of the values, more of the larger ones."""
    ranks = np.unique(np.geomspace(1, len(ascending), MAX_THRESHOLDS).astype(np.int64))
    return ascending[len(ascending) - ranks]


@dataclass(frozen=True)
class Guesses:
    """Guesses of an adversary about ``canaries`` coins, and how many were right."""

    canaries: int  # number ``m``, each present by its own fair coin
    made: int  # number of guesses, ``r``; the adversary abstains on the other canaries
    right: int  # number of right guesses, ``v``

    def __post_init__(self) -> None:
        require("canaries", self.canaries, self.canaries >= 1, ">= 1")
        legal = 0 <= self.right <= self.made <= self.canaries
        requirement = f"in [0, guesses = {self.made}], and guesses <= canaries = {self.canaries}"
        require("right", self.right, legal, requirement)

    def chance(self, epsilon: float, delta: float) -> float:
        """Bound the chance of this many right guesses under (epsilon, delta): a p-value.

        With ``q = e^eps / (1 + e^eps)``, ``beta = Pr[Bin(r, q) >= v]`` and ``alpha = max_i
        (Pr[Bin(r, q) >= v - i] - beta) / i``: ``beta + 2 m delta alpha``.

        References:
            Steinke, Nasr, Jagielski, "Privacy Auditing with One (1) Training Run", NeurIPS 2023,
            https://arxiv.org/abs/2305.08846, Algorithm 1, and Appendix D for the p-value.
        """
        r = self.made
        v = self.right
        if not v:
            return 1.0
        tails = at_least(v - np.arange(v + 1), r, float(expit(epsilon)))
        alpha = float(((tails[1:] - tails[0]) / np.arange(1, v + 1)).max())
        return min(1.0, float(tails[0]) + 2 * self.canaries * delta * alpha)

    def epsilon(self, delta: float, confidence: float) -> float:
        """Return the largest epsilon whose `chance` is at most ``1 - confidence``."""
        check_confidence(confidence)
        require("delta", delta, 0 <= delta < 1, "in [0, 1)")
        level = 1 - confidence
        if self.chance(0.0, delta) > level:
            return 0.0
        return bisect(
            lambda epsilon: self.chance(epsilon, delta) > level, 0.0, MAX_EPSILON, steps=60
        )[0]

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
    scores: Floats, present: npt.NDArray[np.bool_], delta: float, confidence: float
) -> tuple[float, Guesses]:
    """Return the best bound over the number of guesses, and its guesses.

    The ``r/2`` canaries of the largest scores are guessed present, the ``r/2`` of the least absent,
    for ``r`` each of `GUESSED_SHARES` of ``m``, with an equal part of the error. Ties are broken by
    position, which is independent of the coins. ``scores`` and ``present`` are ``(m,)``.
    """
    m = len(scores)
    require("canaries", m, m >= 2, ">= 2")
    order = np.argsort(scores, kind="stable")
    sides = sorted({max(1, math.floor(share * m / 2)) for share in GUESSED_SHARES})
    part = 1 - (1 - confidence) / len(sides)
    bounds = []
    for side in sides:
        right = int(present[order[-side:]].sum() + (~present[order[:side]]).sum())
        guesses = Guesses(m, 2 * side, right)
        bounds.append((guesses.epsilon(delta, part), guesses))
    return max(bounds, key=lambda bound: bound[0])
