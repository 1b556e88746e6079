"""Passes over many rows without a copy of them."""

from __future__ import annotations

import math

import torch
from torch import Tensor

TILE = 1 << 16  # columns at once


def finite_rows(x: Tensor) -> Tensor:
    """``(n,)`` bool: rows of ``(n, ...)`` that hold no NaN and no infinity; whole numbers do not.

    One pass over their norms, without a copy; who has a square too large for it is looked at again.
    """
    if not x.is_floating_point():
        return torch.ones(len(x), dtype=torch.bool, device=x.device)
    rows = x.reshape(len(x), math.prod(x.shape[1:]))
    finite = torch.isfinite(torch.linalg.vector_norm(rows, dim=1))
    if not bool(finite.all()):
        doubtful = (~finite).nonzero()[:, 0]
        finite[doubtful] = torch.isfinite(rows[doubtful]).all(dim=1)
    return finite


def column_sums(x: Tensor, dtype: torch.dtype) -> Tensor:
    """``(k,)`` sums of ``x (n, k)`` over its rows, added up in ``dtype``."""
    return torch.cat([tile.sum(dim=0, dtype=dtype) for tile in torch.split(x, TILE, dim=1)])


def row_sums(x: Tensor, dtype: torch.dtype) -> Tensor:
    """``(n,)`` sums of ``x (n, k)`` over its columns, added up in ``dtype``."""
    out = torch.zeros(len(x), dtype=dtype, device=x.device)
    for tile in torch.split(x, TILE, dim=1):
        out += tile.sum(dim=1, dtype=dtype)
    return out
