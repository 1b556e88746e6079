"""Membership scores by likelihood ratios, and how well scores separate members from others."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from scipy.stats import rankdata
from torch import Tensor

from fedbench.core.rng import Key
from fedbench.core.trees import Tree
from fedbench.models.network import Network

FEWEST_SHADOWS = 6  # without one pair, two in and two out are left to estimate a variance
SAMPLES = 400  # bootstrap samples
_LARGEST = 100.0  # largest confidence in nats


def halves(count: int, pairs: int, key: Key) -> Tensor:
    """``(2 pairs, count)`` bool: shadow ``2j`` has half of the examples, ``2j + 1`` the others.

    The pairs are independent of each other.
    """
    drawn = (key.fold("half", j).permutation(count) < count // 2 for j in range(pairs))
    return torch.stack([row for half in drawn for row in (half, ~half)])


def confidences(network: Network, model: Tree | list[Tree], x: Tensor, y: Tensor) -> Tensor:
    """``phi = ln(p / (1 - p))`` of the true class's probability, ``(N,)`` float64.

    ``1 - p`` is summed over the other classes, which is exact where ``p`` is nearly 1; an
    ensemble's probabilities are averaged. Confidences that are not finite become 0.

    References:
        Carlini et al., "Membership Inference Attacks From First Principles", S&P 2022,
        https://arxiv.org/abs/2112.03570, Algorithm 1: its logit scaling.
    """
    ensemble = [model] if isinstance(model, dict) else model
    with torch.no_grad():
        logs = [network.logits(tree, x).double().log_softmax(dim=1) for tree in ensemble]
    each = torch.stack(logs)  # (models, N, classes)
    chosen = torch.nn.functional.one_hot(y, each.shape[2]).bool().expand_as(each)
    right = each[chosen].reshape(len(each), -1).logsumexp(dim=0)
    wrong = each.masked_fill(chosen, -math.inf).logsumexp(dim=(0, 2))
    return (right - wrong).nan_to_num(0.0).clamp(-_LARGEST, _LARGEST).cpu()


def likelihood_ratios(phi: Tensor, member: Tensor) -> Tensor:
    """Return ``(S, N)``: log likelihood ratio of "in" to "out" for each score in ``phi (S, N)``.

    Each example has one Gaussian fitted to the shadows that have it and one to those that do not,
    without the evaluated shadow and its pair (`halves`): how many are left must not depend on the
    answer. Since shadows are few, the two variances are pooled over the examples, as in the paper,
    and an example's difference of means is shrunk towards the mean difference, which is ours.

    References:
        Carlini et al., https://arxiv.org/abs/2112.03570, Algorithm 1 (online attack), and their
        variant for few shadows, which estimates one variance for all examples.
    """
    scores = torch.empty_like(phi)
    for first in range(0, len(phi), 2):
        pair = slice(first, first + 2)
        rest = torch.ones(len(phi), dtype=torch.bool)
        rest[pair] = False
        inside, noise_in = _moments(phi[rest], member[rest])
        outside, noise_out = _moments(phi[rest], ~member[rest])
        count = int(rest.sum()) // 2
        half = shrunk(inside - outside, (noise_in + noise_out) / count) / 2
        middle = (inside + outside) / 2
        log_in = _log_density(phi[pair], middle + half, noise_in)
        scores[pair] = log_in - _log_density(phi[pair], middle - half, noise_out)
    return scores


def shrunk(x: Tensor, noise: Tensor) -> Tensor:
    """Shrink ``x (N,)`` to its mean by the share of its variance that is ``noise``.

    >>> shrunk(torch.tensor([0.0, 2.0, 4.0]), torch.tensor(2.0)).tolist()
    [1.0, 2.0, 3.0]
    """
    signal = (1 - noise / x.var().clamp_min(1e-24)).clamp(0, 1)
    return x.mean() + signal * (x - x.mean())


def _moments(phi: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Means ``(N,)`` of the ``chosen (S, N)`` of ``phi``, and the variance around them, pooled."""
    count = chosen.sum(dim=0)
    mean = (phi * chosen).sum(dim=0) / count
    residuals = (phi - mean).square() * chosen
    return mean, (residuals.sum() / (count - 1).sum()).clamp_min(1e-24)


def _log_density(x: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    return -0.5 * ((x - mean).square() / variance + variance.log())


def centred(scores: Tensor) -> Tensor:
    """Return ``scores (S, N)`` minus the median of each row."""
    return scores - scores.quantile(0.5, dim=1, keepdim=True)


@dataclass(frozen=True)
class IntervalEstimate:
    """Estimate of a number, with its 95 % interval by the bootstrap."""

    value: float
    low: float
    high: float


def auc(scores: Tensor, member: Tensor) -> float:
    """Return the probability that a member's score is above a non-member's; ties count one half.

    >>> auc(torch.tensor([3.0, 1.0, 2.0, 1.0]), torch.tensor([True, True, False, False]))
    0.625
    """
    inside = member.flatten()
    ranks = torch.from_numpy(rankdata(scores.flatten().numpy()))
    n = int(inside.sum())
    pairs = n * (len(inside) - n)
    return (float(ranks[inside].sum()) - n * (n + 1) / 2) / pairs if pairs else 0.5


def tpr(scores: Tensor, member: Tensor, fpr: float) -> float | None:
    """Share of the members above the lowest threshold that at most ``fpr`` of the others exceed.

    None if none of the others may exceed it: they are too few to resolve such a rate.

    >>> scores = torch.tensor([5.0, 3.0, 2.0, 4.0, 1.0, 0.0])
    >>> member = torch.tensor([True, True, True, False, False, False])
    >>> tpr(scores, member, 0.4), tpr(scores, member, 0.3)
    (1.0, None)
    """
    others = scores[~member].sort(descending=True).values
    passing = int(fpr * len(others) + 1e-9)
    if not passing:
        return None
    if passing >= len(others):
        return 1.0
    return float((scores[member] > others[passing]).double().mean())


def balanced_accuracy(scores: Tensor, member: Tensor) -> float:
    """Return the mean of the two rates at which "a member if its score is above 0" is right.

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
    drawn = ((key.fold("bootstrap", i).uniform(n) * n).long() for i in range(SAMPLES))
    resampled = [measure(scores[:, rows], member[:, rows]) for rows in drawn]
    low, high = torch.tensor(resampled).quantile(torch.tensor([0.025, 0.975])).tolist()
    return IntervalEstimate(measure(scores, member), low, high)
