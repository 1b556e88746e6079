"""How good a deployed model is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedbench.core.trees import Tree
from fedbench.data.dataset import Data
from fedbench.models.network import Network, is_weight

_BATCH = 1024


@dataclass(frozen=True, eq=False)
class Score:
    """Accuracy and loss on pooled samples, and the accuracy of each part.

    Args:
        accuracy: Share of correct answers over all samples.
        loss: Mean cross-entropy in nats; None if the model is not finite.
        parts: ``(len(parts),)`` float64 share of correct answers in each part.
        sparsity: Share of the weights that are exactly 0.
        success: Of a backdoor, see `share_taken_for`; None without one.
    """

    accuracy: float
    loss: float | None
    parts: Tensor
    sparsity: float
    success: float | None = None


def evaluate(
    network: Network, model: Tree | list[Tree], data: Data, parts: Sequence[Tensor]
) -> Score:
    """Judge a model, or an ensemble by its mean probability, on the samples of ``parts``.

    Scores that are not finite count as a wrong answer: argmax would call them class 0.
    """
    ensemble = [model] if isinstance(model, dict) else model
    rows = torch.cat(list(parts))
    right, losses = [], []
    with torch.no_grad():
        for batch in torch.split(rows, _BATCH):
            x, y = data.floats(batch), data.y[batch]
            chances = torch.stack([network.logits(m, x).softmax(dim=1) for m in ensemble])
            mean = chances.mean(dim=0)
            right.append((mean.argmax(dim=1) == y) & torch.isfinite(mean).all(dim=1))
            losses.append(-mean.gather(1, y[:, None])[:, 0].clamp_min(1e-30).log())
    correct, loss = torch.cat(right).to(torch.float64), torch.cat(losses)
    shares = [part.mean() for part in torch.split(correct, [len(part) for part in parts])]
    mean_loss = float(loss.mean())
    finite = mean_loss if math.isfinite(mean_loss) else None
    return Score(float(correct.mean()), finite, torch.stack(shares).cpu(), sparsity(ensemble))


def share_taken_for(
    network: Network, model: Tree | list[Tree], x: Tensor, label: int
) -> float | None:
    """Share of the images ``x (N, C, H, W)`` that are taken for ``label``; None without an image.

    Scores that are not finite are taken for nothing.
    """
    ensemble = [model] if isinstance(model, dict) else model
    taken = 0
    with torch.no_grad():
        for batch in torch.split(x, _BATCH):
            chances = torch.stack([network.logits(m, batch).softmax(dim=1) for m in ensemble])
            mean = chances.mean(dim=0)
            hits = (mean.argmax(dim=1) == label) & torch.isfinite(mean).all(dim=1)
            taken += int(hits.sum())
    return taken / len(x) if len(x) else None


def sparsity(ensemble: Sequence[Tree]) -> float:
    """Share of the weights that are exactly 0; biases and normalisation do not count.

    >>> sparsity([{"conv1": torch.tensor([[0.0, 2.0]]), "conv1.bias": torch.zeros(5)}])
    0.5
    """
    weights = [x for model in ensemble for name, x in model.items() if is_weight(name)]
    return sum(int((x == 0).sum()) for x in weights) / sum(x.numel() for x in weights)
