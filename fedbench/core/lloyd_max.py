"""Lloyd-Max quantizer: the best one of a standard Gaussian."""

from functools import cache

import numpy as np
import torch
from torch import Tensor


@cache
def centroids(bits: int) -> Tensor:
    """``(2**bits,)`` float32, ascending: the Lloyd-Max quantizer of N(0, 1); 0 alone for no bits.

    A fixed point of Lloyd's iteration: every centroid is the mean of its cell, and cells end
    midway. It is computed in float64, so both ends of a wire round it to the same numbers.

    >>> [round(c, 4) for c in centroids(2).tolist()]
    [-1.5104, -0.4528, 0.4528, 1.5104]

    References:
        Lloyd, "Least Squares Quantization in PCM", IEEE Transactions on Information Theory 28(2),
        1982; Max, "Quantizing for Minimum Distortion", IRE Transactions on Information Theory 6(1),
        1960, Table I.
    """
    from scipy.special import ndtr, ndtri

    count = 1 << bits
    c = np.sqrt(3.0) * ndtri((np.arange(count) + 0.5) / count)  # the limit for many levels
    for _ in range(100_000):
        inner = (c[1:] + c[:-1]) / 2
        ends = np.concatenate([[-np.inf], inner, [np.inf]])
        density = np.exp(-(ends**2) / 2) / np.sqrt(2 * np.pi)
        moved = -np.diff(density) / np.diff(ndtr(ends))
        if np.abs(moved - c).max() < 1e-12:
            break
        c = moved
    c = (c - c[::-1]) / 2  # exactly odd
    return torch.from_numpy(c.astype(np.float32))


@cache
def edges(bits: int) -> Tensor:
    """``(2**bits - 1,)`` float32 borders of the cells, midway between their centroids."""
    c = centroids(bits)
    return (c[1:] + c[:-1]) / 2
