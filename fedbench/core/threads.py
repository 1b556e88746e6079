"""Cores of this process, and threads over independent rows, as many as torch may use."""

import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import torch

MIN_ROW_SECONDS = 1e-3  # seconds of a row below which a thread for it costs more than it gains

Row = TypeVar("Row")
Answer = TypeVar("Answer")


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    many = os.cpu_count() or 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else many


def each(work: Callable[[Row], Answer], rows: Iterable[Row]) -> list[Answer]:
    """Return ``[work(row) for row in rows]``, computed by `torch.get_num_threads` threads.

    The first row is done here; where it takes less than `MIN_ROW_SECONDS`, all are. Of rows that
    raise, the first one's exception is raised. Threads gain where ``work`` spends its time in
    calls that release the interpreter's lock, as NumPy's loops do; ``tobytes`` and the coders of
    constriction hold it. In each thread torch has one thread, or there would be the square of
    that number.
    """
    listed = list(rows)
    most = torch.get_num_threads()
    threads = min(most, len(listed) - 1)
    if threads <= 1:
        return [work(row) for row in listed]
    start = time.thread_time()
    answers = [work(listed[0])]
    if time.thread_time() - start < MIN_ROW_SECONDS:
        return answers + [work(row) for row in listed[1:]]
    try:
        alone = partial(torch.set_num_threads, 1)
        with ThreadPoolExecutor(threads, initializer=alone) as pool:  # a fork would lose a kept one
            return answers + list(pool.map(work, listed[1:]))
    finally:
        torch.set_num_threads(most)
