"""Samples that attacks rehearse with."""

import torch
from torch import Tensor

from fedbench.core.rng import Key

SAMPLES = 256  # that a round is rehearsed with


def balanced(y: Tensor, key: Key) -> Tensor:
    """Return 256 positions in the labels ``y (N,)``, of every class equally many, within one.

    Its clients' labels are skewed: what hurts on them as they are may not hurt everybody's.
    """
    order = key.permutation(len(y)).to(y.device)
    by_class = [order[y[order] == label] for label in sorted(set(y.tolist()))]
    drawn = []
    for i in range(SAMPLES):
        rows = by_class[i % len(by_class)]
        drawn.append(rows[i // len(by_class) % len(rows)])
    return torch.stack(drawn)
