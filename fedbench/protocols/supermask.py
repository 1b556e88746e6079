"""Masks over a random network that is never trained, differentiable straight through."""

import math
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedbench.api import Shared
from fedbench.core.trees import Tree


@lru_cache(maxsize=2)
def random_network(shared: Shared) -> Tree:
    """Weights ``+-sqrt(2 / fan_in)`` with random signs from the seed; the rest as built.

    Kaiming-normal weights have this standard deviation. Do not write to it.

    References:
        Ramanujan et al., "What's Hidden in a Randomly Weighted Neural Network?", CVPR 2020,
        https://arxiv.org/abs/1911.13299, section 5.4, "signed Kaiming constant".
    """
    built = shared.network.init(shared.key.fold("init"), shared.device)
    return built | {
        name: shared.key.fold("weights", name).signs(*shape, device=shared.device)
        * math.sqrt(2 / shared.network.fan_in(name))
        for name, shape in zip(shared.weights.names, shared.weights.shapes, strict=True)
    }


def masked_network(shared: Shared, network: Tree, mask: Tensor) -> Tree:
    """Return the network with its weights multiplied by ``mask (d,)``, floats."""
    masks = shared.weights.unflatten(mask)
    return network | {name: network[name] * mask for name, mask in masks.items()}


def mask_rows(scores: Tensor, count: int) -> Tensor:
    """Float 0/1 mask of the ``count`` largest of each row ``(n, d)``; among equals higher indices.

    The last ``count`` edges of a stable argsort, by a threshold instead of a sort: from a partition
    on a CPU, from radix select on an accelerator.
    """
    if scores.device.type != "cpu":
        return mask_without_asking(scores, count)
    t = scores.shape[1] - count
    threshold = torch.from_numpy(np.partition(scores.numpy(), t, axis=1)[:, t : t + 1])
    mask = scores >= threshold
    surplus = torch.from_numpy(np.count_nonzero(mask.numpy(), axis=1)[:, None]) - count
    if bool(surplus.any()):
        mask &= ~_surplus(scores, threshold, surplus)
    return mask.to(scores.dtype)


def mask_without_asking(scores: Tensor, count: int) -> Tensor:
    """`mask_rows` without reading whether there are ties: a CUDA graph cannot record that."""
    t = scores.shape[1] - count
    threshold = torch.kthvalue(scores, t + 1, dim=1, keepdim=True).values
    mask = scores >= threshold
    surplus = mask.sum(dim=1, keepdim=True) - count
    return (mask & ~_surplus(scores, threshold, surplus)).to(scores.dtype)


def _surplus(scores: Tensor, threshold: Tensor, surplus: Tensor) -> Tensor:
    """The first ``surplus (n, 1)`` of the scores that equal the threshold in each row."""
    ties = scores == threshold
    return ties & (ties.cumsum(dim=1) <= surplus)


class _TopMask(torch.autograd.Function):
    """`mask_rows` forward, identity backward; ``stacked`` dimensions, of ``vmap``, come first."""

    @staticmethod
    def forward(scores: Tensor, count: int, stacked: int) -> Tensor:
        rows = scores.detach().reshape(math.prod(scores.shape[:stacked]), -1)
        return mask_rows(rows, count).reshape(scores.shape)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, None, None]:
        return grads[0], None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int, ...], scores: Tensor, count: int, stacked: int
    ) -> tuple[Tensor, int]:
        clients_first = scores.movedim(in_dims[0], 0)
        masks: Tensor = _TopMask.apply(clients_first, count, stacked + 1)  # type: ignore[no-untyped-call]
        return masks, 0


def top_mask(scores: Tensor, count: int) -> Tensor:
    """0/1 mask of the ``count`` largest of a layer, whose gradient passes to ``scores`` unchanged.

    References:
        Ramanujan et al., https://arxiv.org/abs/1911.13299, equation 4; FSL paper, Algorithm 1
        lines 11 to 15, whose ``m <- sort(theta)`` loses the positions (F2).

    >>> top_mask(torch.tensor([0.3, 0.3, 0.3, 0.2]), 2).tolist()
    [0.0, 1.0, 1.0, 0.0]
    """
    mask: Tensor = _TopMask.apply(scores, count, 0)  # type: ignore[no-untyped-call]
    return mask
