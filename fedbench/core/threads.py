"""Threads over independent rows, as many as torch may use."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import torch

Row = TypeVar("Row")
Answer = TypeVar("Answer")


def each(work: Callable[[Row], Answer], rows: Iterable[Row]) -> list[Answer]:
    """Return ``[work(row) for row in rows]``, computed by `torch.get_num_threads` threads.

    Of rows that raise, the first one's exception is raised. It gains where ``work`` spends its time
    in calls that release the GIL, as NumPy's loops do; ``tobytes`` and the coders of constriction
    hold it. In each thread torch has one thread, or there would be the square of that number.
    """
    listed = list(rows)
    most = torch.get_num_threads()
    threads = min(most, len(listed))
    if threads <= 1:
        return [work(row) for row in listed]
    try:
        alone = partial(torch.set_num_threads, 1)
        with ThreadPoolExecutor(threads, initializer=alone) as pool:  # a fork would lose a kept one
            return list(pool.map(work, listed))
    finally:
        torch.set_num_threads(most)
