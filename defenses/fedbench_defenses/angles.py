"""Angles of rows from the middle of their alphabet, in column tiles and float64."""

import torch
from torch import Tensor

from fedbench.core.tiling import tiles

from .distances import combine


def inner(x: Tensor, origin: Tensor, other: Tensor) -> Tensor:
    """``(n,)`` inner products with ``other (k,)``, as measured from the origin as the rows."""
    out = torch.zeros(len(x), dtype=torch.float64, device=x.device)
    for tile, centre, one in tiles(x, origin, other):
        middle = centre.to(torch.float64)
        out += (tile.to(torch.float64) - middle) @ (one.to(torch.float64) - middle)
    return out


def cosines(products: Tensor) -> Tensor:
    """``(n, n)`` from inner products: 0 for a row that is zero, 1 on the diagonal."""
    norms = products.diagonal().sqrt()
    norms = torch.where(norms > 0, norms, torch.inf)
    cosine = products / norms[:, None] / norms[None, :]
    return ((cosine + cosine.T) / 2).clamp_(-1, 1).fill_diagonal_(1)


def clipped_mean(x: Tensor, origin: Tensor, norms: Tensor, kept: Tensor, limit: Tensor) -> Tensor:
    """``(k,)`` mean of the ``kept`` rows, each no longer than ``limit``."""
    clip = (limit / norms.clamp_min(1e-300)).clamp_max(1)
    share = torch.where(kept, clip, 0.0) / kept.sum().clamp_min(1)
    return combine(share, x, origin)
