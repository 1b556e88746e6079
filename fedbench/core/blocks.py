"""Vectors in blocks that share a scale: layers, buckets, the blocks of a rotation."""

from functools import lru_cache
from itertools import groupby

import torch
from torch import Tensor


@lru_cache(maxsize=256)
def block_sizes(d: int, largest: int) -> tuple[int, ...]:
    """Powers of two, as few as possible and the largest first, that add up to ``d``.

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
    """Views ``(n, count, size)`` of ``x (n, d)``, one for each run of equal sizes."""
    counted = runs(sizes)
    parts = torch.split(x, [count * size for count, size in counted], dim=1)
    return [p.reshape(len(x), c, s) for p, (c, s) in zip(parts, counted, strict=True)]


def spread(x: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """``(n, d)``: repeat the value ``x (n, blocks)`` of each block for all its coordinates."""
    counted = runs(sizes)
    parts = torch.split(x, [count for count, _ in counted], dim=1)
    wide = [p[:, :, None].expand(-1, -1, s) for p, (_, s) in zip(parts, counted, strict=True)]
    return torch.cat([p.flatten(1) for p in wide] or [x], dim=1)


def block_sums(x: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """``(n, blocks)`` float64 sums of ``x (n, d)`` over each block."""
    parts = [part.sum(dim=2, dtype=torch.float64) for part in by_block(x, sizes)]
    return torch.cat(parts or [x.double()], dim=1)


def block_norms(x: Tensor, sizes: tuple[int, ...], order: float = 2) -> Tensor:
    """``(n, blocks)`` float64 norms of that order of each block of ``x (n, d)``."""
    norm = torch.linalg.vector_norm
    parts = [norm(part, order, dim=2, dtype=torch.float64) for part in by_block(x, sizes)]
    return torch.cat(parts or [x.double()], dim=1)
