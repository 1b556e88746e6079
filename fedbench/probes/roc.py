"""Measures of how well scores separate members from non-members."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from scipy.stats import rankdata
from torch import Tensor

from fedbench.core.rng import Key

SAMPLES = 400  # bootstrap samples
FEWEST = 1  # false positives that a rate must allow to be resolved


@dataclass(frozen=True)
class IntervalEstimate:
    """Estimate of a number, with its 95 % interval.

    Args:
        value: Value on the sample.
        low: 2.5 % quantile of the bootstrap.
        high: 97.5 % quantile of the bootstrap.
    """

    value: float
    low: float
    high: float


def auc(scores: Tensor, member: Tensor) -> float:
    """Probability that a member's score is above a non-member's; ties count one half.

    >>> auc(torch.tensor([3.0, 1.0, 2.0, 1.0]), torch.tensor([True, True, False, False]))
    0.625
    """
    inside = member.flatten()
    ranks = torch.from_numpy(rankdata(scores.flatten().numpy()))
    n = int(inside.sum())
    m = int((~inside).sum())
    if not n or not m:
        return 0.5
    return (float(ranks[inside].sum()) - n * (n + 1) / 2) / (n * m)


def tpr(scores: Tensor, member: Tensor, fpr: float) -> float | None:
    """Share of the members above the lowest threshold that at most ``fpr`` of the others exceed.

    None if fewer than `FEWEST` of the others may exceed it: too few to resolve such a rate.

    >>> scores = torch.tensor([5.0, 3.0, 2.0, 4.0, 1.0, 0.0])
    >>> member = torch.tensor([True, True, True, False, False, False])
    >>> tpr(scores, member, 0.4), tpr(scores, member, 0.3)
    (1.0, None)
    """
    others = scores[~member].sort(descending=True).values
    passing = int(fpr * len(others) + 1e-9)
    if passing < FEWEST:
        return None
    if passing >= len(others):
        return 1.0
    return float((scores[member] > others[passing]).double().mean())


def balanced_accuracy(scores: Tensor, member: Tensor) -> float:
    """Mean of the two rates at which "a member if its score is above 0" is right.

    >>> balanced_accuracy(torch.tensor([1.0, -1.0, -2.0]), torch.tensor([True, True, False]))
    0.75
    """
    positive = scores > 0
    return 0.5 * float(positive[member].double().mean() + (~positive)[~member].double().mean())


def bootstrap(
    measure: Callable[[Tensor, Tensor], float], scores: Tensor, member: Tensor, key: Key
) -> IntervalEstimate:
    """Return a measure of scores ``(S, N)``, and its interval over resampled examples.

    A drawn example comes with its scores in all shadows, since these depend on each other.
    """
    n = scores.shape[1]
    resampled = []
    for i in range(SAMPLES):
        drawn = (key.fold("bootstrap", i).uniform(n) * n).long()
        resampled.append(measure(scores[:, drawn], member[:, drawn]))
    low, high = torch.tensor(resampled).quantile(torch.tensor([0.025, 0.975])).tolist()
    return IntervalEstimate(measure(scores, member), low, high)
