"""Lengths and angles of rows from the middle of their alphabet, in column tiles and float64."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

_TILE = 1 << 16


def _tiles(x: Tensor, origin: Tensor, rows: Tensor | slice = slice(None)) -> Iterator[Tensor]:
    """``(n, <= 2**16)`` of ``x - origin``, for some of the rows."""
    for tile, middle in zip(torch.split(x, _TILE, dim=1), torch.split(origin, _TILE), strict=True):
        yield tile[rows].to(torch.float64) - middle.to(torch.float64)


def gram(x: Tensor, origin: Tensor) -> Tensor:
    """``(n, n)`` inner products of the rows; whatever is of a row that is not finite is not."""
    out = torch.zeros(len(x), len(x), dtype=torch.float64, device=x.device)
    for rows in _tiles(x, origin):
        out += rows @ rows.T
    return out


def lengths(x: Tensor, origin: Tensor) -> Tensor:
    """``(n,)`` norms; infinite for a row that is not finite."""
    squares = torch.zeros(len(x), dtype=torch.float64, device=x.device)
    for rows in _tiles(x, origin):
        squares += rows.square().sum(dim=1)
    return squares.sqrt().nan_to_num(nan=torch.inf, posinf=torch.inf)


def inner(x: Tensor, origin: Tensor, other: Tensor) -> Tensor:
    """``(n,)`` inner products with ``other (1, k)``, as measured from the origin as the rows."""
    out = torch.zeros(len(x), dtype=torch.float64, device=x.device)
    for rows, one in zip(_tiles(x, origin), _tiles(other, origin), strict=True):
        out += rows @ one[0]
    return out


def cosines(products: Tensor) -> Tensor:
    """``(n, n)`` from a Gram matrix: 0 for a row that is zero or not finite, 1 on the diagonal."""
    norms = products.diagonal().sqrt()
    norms = torch.where(torch.isfinite(norms) & (norms > 0), norms, torch.inf)
    cosine = (products / norms[:, None] / norms[None, :]).nan_to_num(0.0, 0.0, 0.0)
    return ((cosine + cosine.T) / 2).clamp_(-1, 1).fill_diagonal_(1)


def middle(x: Tensor) -> Tensor:
    """The median of ``x (n,)``, with an even ``n`` the mean of the two middle values."""
    n = len(x)
    return x.sort().values[(n - 1) // 2 : n // 2 + 1].mean()


def combined(x: Tensor, origin: Tensor, factors: Tensor) -> Tensor:
    """``(k,)`` of ``origin + sum_i factors_i (x_i - origin)``; rows of factor 0 are not read.

    Float64 if the values are integers, otherwise float32.
    """
    rows = factors != 0
    parts = [factors[rows] @ tile for tile in _tiles(x, origin, rows)]
    out = origin.to(torch.float64) + torch.cat(parts)
    return out.to(torch.float32) if x.is_floating_point() else out


def clipped_mean(x: Tensor, origin: Tensor, norms: Tensor, kept: Tensor, limit: Tensor) -> Tensor:
    """``(k,)`` mean of the ``kept`` rows, each no longer than ``limit``."""
    clip = (limit / norms.clamp_min(1e-300)).clamp_max(1)
    factors = torch.where(kept, clip, 0.0) / kept.sum().clamp_min(1)
    return combined(x, origin, factors)
