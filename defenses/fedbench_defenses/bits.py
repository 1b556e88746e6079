"""Bits as votes: counts, shares and deviations."""

import torch
from torch import Tensor

from fedbench.core.tiling import column_sums
from fedbench.payload import BinaryMasks, Payload, SignBits

from .distances import middle
from .mean import exact_mean


def bits_of(received: Payload) -> Tensor:
    """Return the bits ``(n, d)`` bool of masks or signs."""
    if isinstance(received, SignBits):
        return received.positive
    assert isinstance(received, BinaryMasks)
    return received.mask


def ones_of(received: Payload) -> Tensor:
    """Return how many of the rows say 1, ``(d,)`` float64."""
    return column_sums(bits_of(received), torch.int32).to(torch.float64)


def as_values(theta: Tensor, received: Payload) -> Tensor:
    """Return ``(k,)`` values of the probabilities ``theta (d,)`` of a 1, and the mean of floats."""
    if isinstance(received, SignBits):
        return 2 * theta - 1
    assert isinstance(received, BinaryMasks)
    rest = exact_mean(received.rest).to(theta)
    return torch.cat([2 * theta - 1 if received.signed else theta, rest])


def deviation(x: Tensor, floor: float) -> tuple[Tensor, Tensor]:
    """Return the distances ``(n,)`` above the median, and their median size, at least ``floor``."""
    from_middle = x - middle(x)
    return from_middle, middle(from_middle.abs()).clamp_min(floor)
