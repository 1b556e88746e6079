"""Order statistics: of a coordinate over the clients, of a client over its coordinates."""

from collections.abc import Callable
from functools import cache

import numpy as np
import torch
from torch import Tensor

from fedbench.core.devices import accelerated
from fedbench.core.tiling import WIDEST, all_finite, row_sums

_ROWS = 32  # up to here the network is as fast as NumPy's sort


def tile_width(device: torch.device) -> int:
    """Return how many columns are sorted at once: on a CPU ``n`` rows of them stay in cache.

    Sums of floats round alike wherever columns are cut at its multiples.
    """
    return WIDEST if accelerated(device) else 1 << 13


@cache
def batcher(n: int) -> tuple[tuple[int, int], ...]:
    """Return the pairs of rows to compare and exchange to sort ``n`` rows, whatever they hold.

    References:
        Batcher, "Sorting Networks and their Applications", AFIPS 1968; as Knuth, The Art of
        Computer Programming 3, section 5.2.2, Algorithm M (merge exchange).

    >>> batcher(3)
    ((0, 2), (0, 1), (1, 2))
    """
    pairs = []
    top = p = 1 << max((n - 1).bit_length() - 1, 0)
    while p > 0:
        q, r, d = top, 0, p
        while True:
            pairs += [(i, i + d) for i in range(n - d) if i & p == r]
            if q == p:
                break
            d, q, r = q - p, q >> 1, p
        p >>= 1
    return tuple(pairs)


@cache
def selector(n: int, ranks: range) -> tuple[tuple[int, int], ...]:
    """Return the pairs of `batcher` that these ranks of ``n`` rows depend on.

    >>> selector(3, range(1))  # of ((0, 2), (0, 1), (1, 2))
    ((0, 2), (0, 1))
    """
    pairs = []
    read = set(ranks)
    for i, j in reversed(batcher(n)):
        if i in read or j in read:
            pairs.append((i, j))
            read |= {i, j}
    return tuple(reversed(pairs))


def _network(x: Tensor, ranks: range) -> Tensor:
    """Return these ranks of every column by a sorting network, in NumPy, whose calls cost less."""
    spare, *rows = np.empty((len(x) + 1, x.shape[1]), dtype=x.numpy().dtype)
    for row, value in zip(rows, x.numpy(), strict=True):
        row[:] = value
    for i, j in selector(len(x), ranks):
        low, spare = spare, rows[i]
        np.minimum(rows[i], rows[j], out=low)
        np.maximum(rows[i], rows[j], out=rows[j])
        rows[i] = low
    return torch.from_numpy(np.stack([rows[rank] for rank in ranks]))


def sorted_tile(x: Tensor, ranks: range) -> Tensor:
    """Return the rows ``ranks`` of the sorted columns of ``x (n, t)``; may be transposed."""
    rows = slice(ranks.start, ranks.stop)
    if accelerated(x.device) or x.dtype not in (torch.float32, torch.float64, torch.int32):
        return x.sort(dim=0).values[rows]
    if len(x) > _ROWS:
        columns = x.T.clone(memory_format=torch.contiguous_format)
        columns.numpy().sort(axis=1)
        return columns.T[rows]
    if x.is_floating_point() and not bool(torch.isfinite(x.sum())):
        return x.sort(dim=0).values[rows]  # minimum and maximum would spread a NaN over both rows
    return _network(x, ranks)


def by_tiles(
    x: Tensor, f: Callable[[Tensor], Tensor], rows: Tensor | None = None, ranks: range | None = None
) -> Tensor:
    """Apply ``f`` to the sorted columns of ``x (n, k)``, or to ``rows`` of them (indices or bool).

    ``f`` turns ``(n, t)``, or those ``ranks`` of it, into ``(t,)`` or ``(t, m)``, tile by tile.
    """
    out = torch.empty(0)
    start = 0
    for tile in torch.split(x, tile_width(x.device), dim=1):
        tile = tile if rows is None else tile[rows]
        part = f(sorted_tile(tile, range(len(tile)) if ranks is None else ranks))
        if not start:  # all of it at once: parts kept between tiles would leave holes in memory
            out = part.new_empty(x.shape[1], *part.shape[1:])
        out[start : start + len(part)] = part
        start += len(part)
    return out


def sorted_rows(x: Tensor, ranks: range | None = None) -> Tensor:
    """Return ``x (n, k)`` with every column ascending, NaN last, or these rows of that, as a copy.

    On a CPU in tiles, by a sorting network or NumPy's vectorized sort; elsewhere by torch's.
    """
    ranks = range(len(x)) if ranks is None else ranks
    if accelerated(x.device):
        return x.sort(dim=0).values[ranks.start : ranks.stop]
    out = x.new_empty(len(ranks), x.shape[1])
    width = tile_width(x.device)
    for start in range(0, x.shape[1], width):
        tile = x[:, start : start + width]
        out[:, start : start + width] = sorted_tile(tile, ranks)
    return out


def nth_largest(x: Tensor, count: int) -> Tensor:
    """Return the ``count``-th largest value of each row of ``x (n, k)``, ``(n, 1)``, without NaN.

    >>> nth_largest(torch.tensor([[1.0, 3.0, 1.0, 2.0, 1.0]]), 2).tolist()
    [[2.0]]
    """
    if len(x) and not accelerated(x.device) and x.dtype in (torch.float32, torch.float64):
        at = x.shape[1] - count  # NumPy's partition, row by row, is faster than topk
        ends = [np.partition(row, at)[at] for row in x.numpy()]
        return torch.from_numpy(np.stack(ends))[:, None]
    # On an accelerator `torch.kthvalue` is one block of threads.
    return x.topk(count, dim=1, sorted=False).values.amin(dim=1, keepdim=True)


def largest(x: Tensor, count: int) -> Tensor:
    """Return ``(n, k)`` bool: the ``count`` largest of each row of ``x (n, k)``, without a sort.

    Exactly so many: among equals the lowest index, and NaN counts as infinity.

    >>> largest(torch.tensor([[1.0, 3.0, 1.0, 2.0, 1.0]]), 3).int().tolist()
    [[1, 1, 0, 1, 0]]
    >>> largest(torch.tensor([[1.0, torch.nan, 2.0, torch.inf]]), 2).int().tolist()
    [[0, 1, 0, 1]]
    """
    if not count:
        return torch.zeros(x.shape, dtype=torch.bool, device=x.device)
    # on an accelerator a copy costs less than to wait for the answer
    if x.is_floating_point() and (accelerated(x.device) or not all_finite([x])):
        x = x.nan_to_num(nan=torch.inf, posinf=torch.inf, neginf=-torch.inf)
    last = nth_largest(x, count)
    best = x >= last
    if bool((row_sums(best, torch.int64) == count).all()):
        return best  # no other is equal to the last one
    above = x > last
    ties = x == last
    missing = count - above.sum(dim=1, keepdim=True)
    return above | (ties & (ties.cumsum(dim=1) <= missing))
