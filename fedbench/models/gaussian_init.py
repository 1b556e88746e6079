"""Gaussian initial weights, beside neutral normalisation and biases."""

import math
from collections.abc import Callable

import torch

from fedbench.core.rng import Key
from fedbench.core.trees import Tree
from fedbench.models.network import Network, is_weight


def gaussian_init(
    network: Network, std: Callable[[str], float], key: Key, device: torch.device | str
) -> Tree:
    """Draw weights ``N(0, std(name)**2)``; scales and variances 1, shifts, means and biases 0."""
    tree: Tree = {}
    for name, shape in network.shapes.items():
        if is_weight(name):
            tree[name] = key.fold(name).normal(*shape, device=device) * std(name)
        else:
            neutral = float(name.endswith((".scale", ".var")))
            tree[name] = torch.full(shape, neutral, device=device)
    return tree


def kaiming_normal(network: Network, key: Key, device: torch.device | str) -> Tree:
    """Draw weights ``N(0, 2 / fan_in)``, the rest as in `gaussian_init`.

    References:
        He et al., "Delving Deep into Rectifiers", ICCV 2015, https://arxiv.org/abs/1502.01852,
        eq. 10.
    """
    return gaussian_init(network, lambda name: math.sqrt(2 / network.fan_in(name)), key, device)
