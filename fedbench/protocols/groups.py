"""Groups of weights that share a gate, whose threshold their magnitude must pass.

A group is a filter of a convolution ``(out, in, k, k)``, or the weights of one input unit of a
fully-connected layer ``(out, in)``.
"""

import math
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from fedbench.core.trees import Layout, Tree
from fedbench.payload.gated import Gating, Governor

_THRESHOLD = ".threshold"
_START = math.log(0.99 / 0.01)  # logit of the initial theta


def group_axis(shape: Sequence[int]) -> int:
    """Axis of a layer along which groups are counted.

    >>> group_axis((32, 16, 3, 3)), group_axis((128, 64))
    (0, 1)
    """
    return 1 if len(shape) == 2 else 0


def group_norms(w: Tensor) -> Tensor:
    """``||w_g||_2`` of each group of a layer."""
    axis = group_axis(w.shape)
    norms: Tensor = torch.linalg.vector_norm(w, dim=[i for i in range(w.ndim) if i != axis])
    return norms


def along(z: Tensor, w: Tensor) -> Tensor:
    """Reshape ``z``, a number for each group, to be multiplied with the layer ``w``."""
    shape = [1] * w.ndim
    shape[group_axis(w.shape)] = len(z)
    return z.reshape(shape)


def initial_threshold(norms: Tensor, temperature: float) -> Tensor:
    """``v`` such that ``theta = sigmoid((||w_g|| - softplus(v_g)) / T) = 0.99``, group by group.

    A softplus cannot be negative: where ``||w_g|| <= 4.595 T`` no threshold gives 0.99 (S6), and
    ``T / 1000`` comes within 0.001 of the largest possible logit. A group of zeros, or of no
    weights, starts at ``theta = 1/2``.
    """
    tau = (norms.double() - temperature * _START).clamp_min(temperature / 1000)
    return (tau + torch.log(-torch.expm1(-tau))).to(norms)  # the inverse of softplus


@lru_cache(maxsize=8)
def gates_of(weights: Layout, output: bool) -> Layout:
    """Layout of one threshold a group of each layer, of the last layer only if ``output``."""
    layers = list(zip(weights.names, weights.shapes, strict=True))[: None if output else -1]
    return Layout.of({name + _THRESHOLD: (shape[group_axis(shape)],) for name, shape in layers})


@lru_cache(maxsize=8)
def gating(weights: Layout, output: bool) -> Gating:
    """Map from the weights to the gates of `gates_of` that govern them."""
    layers: list[tuple[tuple[int, ...], tuple[Governor, ...]]] = []
    gated = gates_of(weights, output).names
    start = 0
    for name, shape in zip(weights.names, weights.shapes, strict=True):
        axis = group_axis(shape)
        layers.append((shape, ((axis, start, 1),) if name + _THRESHOLD in gated else ()))
        start += shape[axis]
    return tuple(layers)


def layer_of(threshold: str) -> str:
    """Name of the layer that a threshold's name belongs to."""
    return threshold.removesuffix(_THRESHOLD)


def split_tree(tree: Tree) -> tuple[Tree, Tree]:
    """Split a tree into parameters of the network and thresholds."""
    v = {name: x for name, x in tree.items() if name.endswith(_THRESHOLD)}
    return {name: x for name, x in tree.items() if name not in v}, v
