"""Order statistics: of a coordinate over the clients, of a client over its coordinates."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

_TILE = 1 << 14  # columns at once: n rows of them stay in cache


@cache
def batcher(n: int) -> tuple[tuple[int, int], ...]:
    """Compare-exchange pairs that sort ``n`` rows, whatever they hold.

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


def sorted_rows(x: Tensor) -> Tensor:
    """``x (n, k)`` with every column ascending, NaN last; ``x`` is left as it was.

    On a CPU, with up to 64 rows, a sorting network of row minima and maxima in column tiles;
    otherwise torch's sort.
    """
    n, k = x.shape
    if x.device.type != "cpu" or n > 64:
        return x.sort(dim=0).values
    if x.is_floating_point() and not bool(torch.isfinite(x.sum())):
        return x.sort(dim=0).values  # minimum and maximum would spread a NaN over both rows
    out = x.clone()
    spare = torch.empty(min(k, _TILE), dtype=x.dtype)
    for start in range(0, k, _TILE):
        rows = list(out[:, start : start + _TILE].unbind(0))
        low = spare[: len(rows[0])]
        for i, j in batcher(n):
            torch.minimum(rows[i], rows[j], out=low)
            torch.maximum(rows[i], rows[j], out=rows[j])
            rows[i].copy_(low)
    return out


def largest(x: Tensor, kept: int) -> Tensor:
    """``(n, k)`` bool: the ``kept`` largest of each row of ``x (n, k)``, without sorting it.

    Exactly so many: among equals the lowest index, and NaN counts as infinity.

    >>> largest(torch.tensor([[1.0, 3.0, 1.0, 2.0, 1.0]]), 3).int().tolist()
    [[1, 1, 0, 1, 0]]
    """
    if not kept:
        return torch.zeros(x.shape, dtype=torch.bool, device=x.device)
    x = x.nan_to_num(nan=torch.inf, posinf=torch.inf, neginf=-torch.inf)
    last = x.topk(kept, dim=1, sorted=False).values.amin(dim=1, keepdim=True)
    above, ties = x > last, x == last
    missing = kept - above.sum(dim=1, keepdim=True)
    return above | (ties & (ties.cumsum(dim=1) <= missing))
