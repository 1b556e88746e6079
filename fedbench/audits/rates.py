"""A lower bound on epsilon from scores of two neighbouring inputs: nothing but counting."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import betaincinv

from fedbench.core.errors import require
from fedbench.privacy.conversion import Floats, check_delta

CHOOSING = 0.25  # share of the scores that choose the test; the others are tested
THRESHOLDS = 256  # that are looked at, from each side


def check_confidence(confidence: float) -> None:
    """A ``confidence`` is a probability, and neither 0 nor 1."""
    require("confidence", confidence, 0 < confidence < 1, "in (0, 1)")


def clopper_pearson(successes: npt.ArrayLike, trials: int, level: float) -> tuple[Floats, Floats]:
    """Lower and upper bound on a chance, each of which is wrong with probability <= ``level``.

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
class Alarm:
    """Raised if the score is at least ``threshold``, or if it is at most that and ``below``.

    Args:
        threshold: Of a score.
        below: Does a small score speak for what is suspected?
    """

    threshold: float
    below: bool

    def counts(self, first: Floats, second: Floats) -> tuple[int, int]:
        """How often it is raised: truly, and falsely; ``below`` suspects the second input."""
        if self.below:
            return int((second <= self.threshold).sum()), int((first <= self.threshold).sum())
        return int((first >= self.threshold).sum()), int((second >= self.threshold).sum())


@dataclass(frozen=True)
class Bound:
    """Lower bound that the scores prove.

    Args:
        epsilon: At least that, unless one of the two rates is outside its interval; 0 or more.
        alarm: That was chosen.
        true: How often it is true, among the scores that had no part in the choice.
        false: How often it is false.
        most: What so many scores prove of two inputs that are never mistaken for each other.
    """

    epsilon: float
    alarm: Alarm
    true: float
    false: float
    most: float


def log_ratio(true: npt.ArrayLike, false: npt.ArrayLike, delta: float) -> Floats:
    """``ln((true - delta) / false)``, and at least 0: what (epsilon, delta) allows at most."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.log(np.maximum(np.subtract(true, delta), 0.0) / np.asarray(false))
    return np.asarray(np.maximum(np.nan_to_num(ratio, nan=0.0, neginf=0.0), 0.0))


def lower_bound(first: Floats, second: Floats, delta: float, confidence: float) -> Bound:
    """A bound from scores ``(N,)`` under each of two neighbours, right with that confidence.

    ``Pr[M(D) in S] <= e^eps Pr[M(D') in S] + delta`` for the set ``S`` of scores beyond a
    threshold, so ``eps >= ln((TPR - delta) / FPR)``. A quarter of the scores chooses the threshold
    and which of the two inputs is suspected; on the others both rates get a `clopper_pearson` bound
    at half of the error, ``TPR_lo`` and ``FPR_hi``: one test is made, so nothing is divided by the
    number of thresholds.

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
    cuts = [math.ceil(CHOOSING * len(scores)) for scores in (first, second)]
    alarm = _choice(first[: cuts[0]], second[: cuts[1]], delta, level)
    kept = first[cuts[0] :], second[cuts[1] :]
    totals = (len(kept[1]), len(kept[0])) if alarm.below else (len(kept[0]), len(kept[1]))

    def proved(true: int, false: int) -> float:
        low, _ = clopper_pearson(true, totals[0], level)
        _, high = clopper_pearson(false, totals[1], level)
        return float(log_ratio(low, high, delta))

    true, false = alarm.counts(*kept)
    rates = true / totals[0], false / totals[1]
    return Bound(proved(true, false), alarm, *rates, most=proved(totals[0], 0))


def _choice(first: Floats, second: Floats, delta: float, level: float) -> Alarm:
    """The alarm whose bound on these scores is the largest."""
    best = -1.0
    alarm = Alarm(math.inf, below=False)
    for below in (False, True):
        suspect, other = (-second, -first) if below else (first, second)
        suspect, other = np.sort(suspect), np.sort(other)
        thresholds = np.unique(np.concatenate([_tail(suspect), _tail(other)]))
        true = len(suspect) - np.searchsorted(suspect, thresholds, side="left")
        false = len(other) - np.searchsorted(other, thresholds, side="left")
        low, _ = clopper_pearson(true, len(suspect), level)
        _, high = clopper_pearson(false, len(other), level)
        bounds = log_ratio(low, high, delta)
        at = int(np.argmax(bounds))
        if bounds[at] > best:
            best, threshold = float(bounds[at]), float(thresholds[at])
            alarm = Alarm(-threshold if below else threshold, below)
    return alarm


def _tail(ascending: Floats) -> Floats:
    """Some of the values, the closer together the larger they are."""
    ranks = np.unique(np.geomspace(1, len(ascending), THRESHOLDS).astype(np.int64))
    return ascending[len(ascending) - ranks]
