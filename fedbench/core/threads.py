"""Threads over independent rows, as many as torch may use."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

Row = TypeVar("Row")
Answer = TypeVar("Answer")


def each(work: Callable[[Row], Answer], rows: Iterable[Row]) -> list[Answer]:
    """Return ``[work(row) for row in rows]``, computed by `torch.get_num_threads` threads.

    Of rows that raise, the first one's exception is raised. It gains where ``work`` spends its time
    in calls that release the GIL, as NumPy's loops do; ``tobytes`` and the coders of constriction
    hold it. ``work`` should not compute in torch, which would start threads of its own in each.
    """
    listed = list(rows)
    threads = min(torch.get_num_threads(), len(listed))
    if threads <= 1:
        return [work(row) for row in listed]
    with ThreadPoolExecutor(threads) as pool:  # a kept one would be dead in a forked process
        return list(pool.map(work, listed))
