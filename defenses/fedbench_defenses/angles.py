"""Angles of rows from the middle of their alphabet, in column tiles and float64."""

import torch
from torch import Tensor

from fedbench.core.tiling import tiles

from .distances import combine


def inner(x: Tensor, origin: Tensor, other: Tensor) -> Tensor:
    """Return the inner products ``(n,)`` of rows with ``other (k,)``, both about the origin."""
    out = torch.zeros(len(x), dtype=torch.float64, device=x.device)
    for tile, centre, column in tiles(x, origin, other):
        middle = centre.to(torch.float64)
        out += (tile.to(torch.float64) - middle) @ (column.to(torch.float64) - middle)
    return out


def cosines(products: Tensor) -> Tensor:
    """Return the cosines ``(n, n)`` of inner products: 0 for a zero row, 1 on the diagonal."""
    norms = products.diagonal().sqrt()
    norms = torch.where(norms > 0, norms, torch.inf)
    cosine = products / norms[:, None] / norms[None, :]
    return ((cosine + cosine.T) / 2).clamp_(-1, 1).fill_diagonal_(1)


def clipped_mean(x: Tensor, origin: Tensor, norms: Tensor, chosen: Tensor, limit: Tensor) -> Tensor:
    """Return the mean ``(k,)`` of the chosen rows, each no longer than ``limit``."""
    clip = (limit / norms.clamp_min(1e-300)).clamp_max(1)
    share = torch.where(chosen, clip, 0.0) / chosen.sum().clamp_min(1)
    return combine(share, x, origin)
