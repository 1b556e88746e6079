"""Gaussian weights, and normalisation and biases that do nothing yet."""

from __future__ import annotations

from collections.abc import Callable

import torch

from fedbench.core.rng import Key
from fedbench.core.trees import Tree
from fedbench.models.network import Network, is_weight


def gaussian_init(
    network: Network, std: Callable[[str], float], key: Key, device: torch.device | str
) -> Tree:
    """Weights ``N(0, std(name)**2)``; scales and variances are 1, shifts, means and biases 0."""
    tree: Tree = {}
    for name, shape in network.shapes.items():
        if is_weight(name):
            tree[name] = key.fold(name).normal(*shape, device=device) * std(name)
        else:
            neutral = float(name.endswith((".scale", ".var")))
            tree[name] = torch.full(shape, neutral, device=device)
    return tree
