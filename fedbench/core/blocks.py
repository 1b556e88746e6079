"""Vectors in blocks: sums, randomized Hadamard rotations, and the quantizer of a Gaussian."""

import math
from functools import cache, lru_cache
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from fedbench.core.rng import Key

_FACTOR = 64  # H is a Kronecker product: a few products with matrices of at most this size


@lru_cache(maxsize=256)
def block_sizes(d: int, largest: int) -> tuple[int, ...]:
    """Return powers of two up to ``largest`` that add up to ``d``, as few as possible, descending.

    >>> block_sizes(2 * 4096 + 21, 4096)
    (4096, 4096, 16, 4, 1)
    """
    sizes = [largest] * (d // largest)
    rest = d % largest
    return (*sizes, *(1 << k for k in reversed(range(rest.bit_length())) if rest >> k & 1))


def runs(sizes: tuple[int, ...]) -> list[tuple[int, int]]:
    """Group neighbours of equal size: ``(count, size)``, in order."""
    return [(len(list(run)), size) for size, run in groupby(sizes)]


def by_block(x: Tensor, sizes: tuple[int, ...]) -> list[Tensor]:
    """Return the views ``(n, count, size)`` of ``x (n, d)``, one for each run of equal sizes."""
    counted = runs(sizes)
    parts = torch.split(x, [count * size for count, size in counted], dim=1)
    return [p.reshape(len(x), c, s) for p, (c, s) in zip(parts, counted, strict=True)]


def spread(x: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """Repeat the value ``x (n, blocks)`` of each block for all of its coordinates, ``(n, d)``."""
    counted = runs(sizes)
    parts = torch.split(x, [count for count, _ in counted], dim=1)
    wide = [p[:, :, None].expand(-1, -1, s) for p, (_, s) in zip(parts, counted, strict=True)]
    return torch.cat([p.flatten(1) for p in wide] or [x], dim=1)


def block_sums(x: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """Return ``(n, blocks)`` float64 sums of ``x (n, d)`` over each block."""
    parts = [part.sum(dim=2, dtype=torch.float64) for part in by_block(x, sizes)]
    return torch.cat(parts or [x.double()], dim=1)


def block_norms(x: Tensor, sizes: tuple[int, ...], order: float = 2) -> Tensor:
    """Return ``(n, blocks)`` float64 norms of that order of each block of ``x (n, d)``."""
    norm = torch.linalg.vector_norm
    parts = [norm(part, order, dim=2, dtype=torch.float64) for part in by_block(x, sizes)]
    return torch.cat(parts or [x.double()], dim=1)


@lru_cache(maxsize=64)
def _matrix(size: int, dtype: torch.dtype, device: str) -> Tensor:
    """Return Sylvester's orthonormal and symmetric Hadamard matrix ``(size, size)``."""
    matrix = torch.ones(1, 1, dtype=dtype)
    while len(matrix) < size:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return (matrix / math.sqrt(size)).to(device)


def hadamard(x: Tensor) -> Tensor:
    """Return ``H x / sqrt(size)`` along the last axis ``(..., size)``, a power of two.

    It is its own inverse.

    >>> hadamard(torch.tensor([1.0, 0.0, 0.0, 1.0])).tolist()
    [1.0, 0.0, 0.0, 1.0]
    """
    shape = x.shape
    size = shape[-1]
    right = 1
    while right < size:
        factor = min(_FACTOR, size // right)
        matrix = _matrix(factor, x.dtype, str(x.device))
        # A product for each vector: in one for all of them the order of a sum follows from how
        # many there are, and a message would depend on those that are decoded beside it.
        x = x.reshape(-1, size // factor, factor) if right == 1 else x.reshape(-1, factor, right)
        every = matrix.expand(len(x), -1, -1)
        x = x @ every if right == 1 else every @ x
        right *= factor
    return x.reshape(shape)


def _keys(seeds: Tensor) -> list[Key]:
    return [Key(seed % 2**64) for seed in seeds[:, 0].tolist()]


def signs(seeds: Tensor, d: int, device: torch.device | str = "cpu") -> Tensor:
    """Draw ``(n, d)`` of -1 and +1 from ``seeds (n, 1)`` int64: each client's diagonal matrix."""
    rows = [key.flips(d, device=device) for key in _keys(seeds)]
    return torch.stack(rows) if rows else torch.zeros(0, d, device=device)


def offsets(seeds: Tensor, d: int) -> list[int]:
    """Draw each client's shift of coordinates, so that none is always in the short last blocks."""
    return [int(key.fold("offset").uniform(1)[0] * d) for key in _keys(seeds)]


def _shifted(x: Tensor, by: list[int]) -> Tensor:
    return torch.stack([row.roll(shift) for row, shift in zip(x, by, strict=True)]) if by else x


def rotate(x: Tensor, seeds: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """Return ``R x (n, d)``: shifted, times signs, then Hadamard's transform of each block.

    ``R`` is orthogonal, so norms and inner products stay, but it is only approximately a uniform
    rotation: a block is close to Gaussian where many of its coordinates carry its norm.
    """
    d = x.shape[1]
    seeds = seeds.cpu()  # read once
    shifted = _shifted(x, [-offset for offset in offsets(seeds, d)])
    return _transformed(shifted * signs(seeds, d, x.device).to(x), sizes)


def unrotate(y: Tensor, seeds: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """Return ``R^-1 y (n, d)``, the inverse of `rotate`."""
    d = y.shape[1]
    seeds = seeds.cpu()  # read once
    return _shifted(_transformed(y, sizes) * signs(seeds, d, y.device).to(y), offsets(seeds, d))


def _transformed(x: Tensor, sizes: tuple[int, ...]) -> Tensor:
    parts = [hadamard(part).flatten(1) for part in by_block(x, sizes)]
    return torch.cat(parts or [x], dim=1)


@cache
def centroids(bits: int) -> Tensor:
    """Return the Lloyd-Max quantizer of N(0, 1), ``(2**bits,)`` float32; 0 alone for no bits.

    Every centroid is the mean of its cell, and cells end midway. It is computed in float64, so both
    ends of a wire round it to the same numbers.

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
    """Return ``(2**bits - 1,)`` float32 borders of the cells, midway between their centroids."""
    c = centroids(bits)
    return (c[1:] + c[:-1]) / 2
