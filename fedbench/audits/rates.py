"""Lower bound on epsilon from counts of scores under two neighbouring inputs."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import betaincinv

from fedbench.core.errors import require
from fedbench.privacy.conversion import Floats, check_delta

CHOOSING = 0.25  # share of the scores that choose the test; the others are tested
THRESHOLDS = 256  # candidate thresholds from each set of scores


def check_confidence(confidence: float) -> None:
    """Check that ``confidence`` is strictly between 0 and 1."""
    require("confidence", confidence, 0 < confidence < 1, "in (0, 1)")


def clopper_pearson(successes: npt.ArrayLike, trials: int, level: float) -> tuple[Floats, Floats]:
    """Lower and upper bound on a probability, each wrong with probability at most ``level``.

    ``successes`` has any shape, as has each bound.

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
    """Test that accepts the first input at scores >= ``threshold``; if ``below``, the second at <=.

    Args:
        threshold: Threshold of the score.
        below: True if a small score is a sign of the second input.
    """

    threshold: float
    below: bool

    def counts(self, first: Floats, second: Floats) -> tuple[int, int]:
        """Count true and false alarms in the scores ``(N,)`` of the two inputs."""
        if self.below:
            return int((second <= self.threshold).sum()), int((first <= self.threshold).sum())
        return int((first >= self.threshold).sum()), int((second >= self.threshold).sum())


@dataclass(frozen=True)
class Bound:
    """Lower bound on epsilon that the scores prove.

    Args:
        epsilon: The bound, at least 0, right unless one of the two rates is outside its interval.
        alarm: The chosen test.
        true: Rate of true alarms, among the scores that had no part in the choice.
        false: Rate of false alarms, among the same scores.
        most: Bound that as many scores prove if no input is ever mistaken for the other.
    """

    epsilon: float
    alarm: Alarm
    true: float
    false: float
    most: float


def log_ratio(true: npt.ArrayLike, false: npt.ArrayLike, delta: float) -> Floats:
    """``max(0, ln((true - delta) / false))``, any shape: the epsilon that these rates need."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.log(np.maximum(np.subtract(true, delta), 0.0) / np.asarray(false))
    return np.asarray(np.maximum(np.nan_to_num(ratio, nan=0.0, neginf=0.0), 0.0))


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
    cuts = [math.ceil(CHOOSING * len(scores)) for scores in (first, second)]
    alarm = _choice(first[: cuts[0]], second[: cuts[1]], delta, level)
    first, second = first[cuts[0] :], second[cuts[1] :]
    positives, negatives = (len(second), len(first)) if alarm.below else (len(first), len(second))

    def proved(true: int, false: int) -> float:
        low, _ = clopper_pearson(true, positives, level)
        _, high = clopper_pearson(false, negatives, level)
        return float(log_ratio(low, high, delta))

    true, false = alarm.counts(first, second)
    most = proved(positives, 0)
    return Bound(proved(true, false), alarm, true / positives, false / negatives, most)


def _choice(first: Floats, second: Floats, delta: float, level: float) -> Alarm:
    """Return the alarm with the largest bound on these scores."""
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
    """Return some of the values, more of the larger ones."""
    ranks = np.unique(np.geomspace(1, len(ascending), THRESHOLDS).astype(np.int64))
    return ascending[len(ascending) - ranks]
