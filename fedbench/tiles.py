"""Sums in a wider type, without a wider copy of what is summed."""

from __future__ import annotations

import torch
from torch import Tensor

TILE = 1 << 16  # columns at once


def column_sums(x: Tensor, dtype: torch.dtype) -> Tensor:
    """``(k,)`` sums of ``x (n, k)`` over its rows, added up in ``dtype``."""
    return torch.cat([tile.sum(dim=0, dtype=dtype) for tile in torch.split(x, TILE, dim=1)])


def row_sums(x: Tensor, dtype: torch.dtype) -> Tensor:
    """``(n,)`` sums of ``x (n, k)`` over its columns, added up in ``dtype``."""
    out = torch.zeros(len(x), dtype=dtype, device=x.device)
    for tile in torch.split(x, TILE, dim=1):
        out += tile.sum(dim=1, dtype=dtype)
    return out
