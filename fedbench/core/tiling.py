"""Passes over many rows without a copy of them."""

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from fedbench.core.devices import accelerated

WIDEST, NARROWEST = 1 << 16, 1 << 12  # columns of a tile: every one costs some calls
TILE_NUMBERS = 1 << 19  # in a tile: in float64 they stay in cache


def tiles(*parts: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Cut ``(n, k)`` and ``(k,)`` tensors into the same columns; on a CPU they fit its cache."""
    rows = sum(len(part) if part.dim() > 1 else 1 for part in parts)
    narrow = not accelerated(parts[0].device)
    width = min(max(TILE_NUMBERS // max(rows, 1), NARROWEST), WIDEST) if narrow else WIDEST
    return zip(*(torch.split(part, width, dim=-1) for part in parts), strict=True)


def finite_rows(x: Tensor) -> Tensor:
    """Return ``(n,)`` bool: rows of ``(n, ...)`` without NaN and infinity; integers have none.

    One pass over their norms, without a copy; rows whose squares overflow are looked at again.
    """
    if not x.is_floating_point():
        return torch.ones(len(x), dtype=torch.bool, device=x.device)
    rows = x.reshape(len(x), math.prod(x.shape[1:]))
    if accelerated(x.device):  # a copy costs less there than to wait for the norms
        return torch.isfinite(rows).all(dim=1)
    finite = torch.isfinite(torch.linalg.vector_norm(rows, dim=1))
    if not bool(finite.all()):
        doubtful = (~finite).nonzero()[:, 0]
        finite[doubtful] = torch.isfinite(rows[doubtful]).all(dim=1)
    return finite


def all_finite(tensors: Sequence[Tensor]) -> bool:
    """Return True if no tensor of floating-point numbers, on one device, holds NaN or infinity.

    One pass over their norms, without a copy; where squares overflow they are looked at again.
    """
    if not tensors:
        return True
    norms = torch.stack([torch.linalg.vector_norm(x) for x in tensors])
    return bool(torch.isfinite(norms).all()) or all(bool(torch.isfinite(x).all()) for x in tensors)


def column_sums(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return ``(k,)`` sums of ``x (n, k)`` over its rows, added up in ``dtype``."""
    if x.dtype == torch.bool and not accelerated(x.device):
        sums = torch.zeros(x.shape[1], dtype=dtype)
        for some in torch.split(x.view(torch.uint8), 255):  # no more ones fit in a byte
            sums += some.sum(dim=0, dtype=torch.uint8)
        return sums
    out = torch.empty(x.shape[1], dtype=dtype, device=x.device)
    for tile, part in tiles(x, out):
        torch.sum(tile, dim=0, dtype=dtype, out=part)
    return out


def row_sums(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return ``(n,)`` sums of ``x (n, k)`` over its columns, added up in ``dtype``."""
    if x.dtype == torch.bool and not accelerated(x.device):
        return torch.tensor([np.count_nonzero(row) for row in x.numpy()], dtype=dtype)
    out = torch.zeros(len(x), dtype=dtype, device=x.device)
    for (tile,) in tiles(x):
        out += tile.sum(dim=1, dtype=dtype)
    return out
