"""Membership inference by likelihood ratios."""

import math

import torch
from torch import Tensor

from fedbench.core.rng import Key
from fedbench.core.trees import Tree
from fedbench.models.network import Network

FEWEST_SHADOWS = 6  # without a pair, two in and two out are left for a variance
_LARGEST = 100.0  # nats


def halves(count: int, pairs: int, key: Key) -> Tensor:
    """``(2 pairs, count)`` bool: shadow ``2j`` has half of the examples, ``2j + 1`` the others.

    So each example is in half of the shadows, each shadow has as many examples as any other, and
    whether an example is in one pair's first shadow says nothing about other pairs.
    """
    rows = []
    for j in range(pairs):
        half = key.fold("half", j).permutation(count) < count // 2
        rows += [half, ~half]
    return torch.stack(rows)


def confidences(network: Network, model: Tree | list[Tree], x: Tensor, y: Tensor) -> Tensor:
    """``phi = ln(p / (1 - p))`` of the true class's probability, ``(N,)`` float64.

    ``1 - p`` is summed over the other classes, so that it is exact where ``p`` is nearly 1; an
    ensemble's probabilities are averaged. A model that is not finite says nothing, 0.

    References:
        Carlini et al., "Membership Inference Attacks From First Principles", S&P 2022,
        https://arxiv.org/abs/2112.03570, Algorithm 1: its logit scaling.
    """
    ensemble = [model] if isinstance(model, dict) else model
    with torch.no_grad():
        logs = [network.logits(one, x).double().log_softmax(dim=1) for one in ensemble]
    each = torch.stack(logs)  # (models, N, classes)
    chosen = torch.zeros_like(each, dtype=torch.bool).scatter_(
        2, y.expand(len(each), -1)[..., None], True
    )
    right = each[chosen].reshape(len(each), -1).logsumexp(dim=0)
    wrong = each.masked_fill(chosen, -math.inf).logsumexp(dim=(0, 2))
    return (right - wrong).nan_to_num(0.0).clamp(-_LARGEST, _LARGEST).cpu()


def likelihood_ratios(phi: Tensor, member: Tensor) -> Tensor:
    """``(S, N)``: log likelihood ratio of "in" to "out" of what each shadow shows, ``phi (S, N)``.

    For every example one Gaussian of the shadows that have it and one of those that do not. The
    shadow that is judged teaches nothing, nor does its pair (`halves`): how many shadows with and
    without the example are left must not depend on the answer. Few shadows know little of one
    example: the two variances are pooled over the examples, as in the paper, and, which is ours, an
    example's difference of means is drawn towards the mean difference by as much as it is noise
    (`shrunk`).

    References:
        Carlini et al., https://arxiv.org/abs/2112.03570, Algorithm 1 (online attack), and their
        variant for few shadows, which estimates one variance for all examples.
    """
    scores = torch.empty_like(phi)
    for first in range(0, len(phi), 2):
        judged = slice(first, first + 2)
        rest = torch.ones(len(phi), dtype=torch.bool)
        rest[judged] = False
        (inside, noise_in), (outside, noise_out) = (
            _moments(phi[rest], chosen) for chosen in (member[rest], ~member[rest])
        )
        count = int(rest.sum()) // 2
        half = shrunk(inside - outside, (noise_in + noise_out) / count) / 2
        middle = (inside + outside) / 2
        scores[judged] = _log_density(phi[judged], middle + half, noise_in) - _log_density(
            phi[judged], middle - half, noise_out
        )
    return scores


def shrunk(x: Tensor, noise: Tensor) -> Tensor:
    """``x (N,)``, drawn to its mean by the share of its variance that is ``noise``.

    >>> shrunk(torch.tensor([0.0, 2.0, 4.0]), torch.tensor(2.0)).tolist()
    [1.0, 2.0, 3.0]
    """
    kept = (1 - noise / x.var().clamp_min(1e-24)).clamp(0, 1)
    return x.mean() + kept * (x - x.mean())


def _moments(seen: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Means ``(N,)`` of the ``chosen (S, N)``, and the variance around them, pooled."""
    count = chosen.sum(dim=0)
    mean = (seen * chosen).sum(dim=0) / count
    residuals = (seen - mean).square() * chosen
    return mean, (residuals.sum() / (count - 1).sum()).clamp_min(1e-24)


def _log_density(x: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    return -0.5 * ((x - mean).square() / variance + variance.log())


def centred(scores: Tensor) -> Tensor:
    """``(S, N)``, each row minus its median: half of a shadow's examples are above 0."""
    return scores - scores.quantile(0.5, dim=1, keepdim=True)
