"""Launches that come again are recorded as a CUDA graph and replayed: one call for all of a round.

A client's whole local training is some thousands of small kernels, and it takes the processor
longer to ask for them than an accelerator to run them. Nothing in it depends on numbers that the
processor would have to read (`tests/test_recorded.py`), so the kernels of one launch, once
recorded, are those of every launch of that shape.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from contextlib import suppress
from functools import cache

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from fedbench.api import Memory

Inputs = tuple[object, ...]  # tensors, in tuples and dictionaries
Outputs = tuple[Tensor, Memory]
Work = Callable[..., Outputs]
Recording = tuple[Callable[[], None], Outputs]  # plays it again; where the results then lie
Record = Callable[[Work, Inputs], Recording]

TOLERANCE = 1e-3  # of the largest number: how far a replay may be from the launch itself
AFTER = 2  # launches that are made as they are written before they are recorded
KEPT = 4  # recordings
KNOWN = 256  # launches that are remembered without


def fixed(*things: object) -> bool:
    """Whether all are frozen dataclasses that are equal by value: what was recorded stays true.

    Not so their subclasses that are no frozen dataclasses of their own.
    """
    return all(_frozen(thing) and _hashable(thing) for thing in things)


def _frozen(thing: object) -> bool:
    parameters = vars(type(thing)).get("__dataclass_params__")
    return parameters is not None and parameters.frozen and parameters.eq


def _hashable(thing: object) -> bool:
    try:
        hash(thing)
    except TypeError:
        return False
    return True


class Recorder:
    """Plays launches, and records those that come again.

    A recording holds what Python decided when it was made. So ``key`` must say all that a launch
    decides by, but for the shapes and types of its inputs, which are added to it here. It is used
    only if its first replay gives what the launch itself gave; where it does not, or where nothing
    can be recorded, a warning says so, and nothing more is recorded: launches go on as written.

    When there are enough recordings, the one that was not played for longest makes room for a
    launch that has come `AFTER` times since then: kinds that take turns do not drive each other
    out.

    Args:
        record: Records a launch on inputs whose memory will be written again.
        most: Recordings at once; each holds its inputs, and all share memory for what is between.
    """

    def __init__(self, record: Record, most: int = KEPT) -> None:
        self._record, self._most, self._works, self._now = record, most, True, 0
        self._met: OrderedDict[Hashable, deque[int]] = OrderedDict()  # when; oldest kind first
        self._kept: OrderedDict[Hashable, tuple[list[Tensor], Recording]] = OrderedDict()
        self._played: dict[Hashable, int] = {}  # when each of them was played last

    def __len__(self) -> int:
        """How many launches are recorded."""
        return len(self._kept)

    def play(self, key: Hashable, work: Work, inputs: Inputs) -> Outputs:
        """What ``work(*inputs)`` returns, which must be a function of ``key`` and the inputs."""
        leaves, form = _leaves(inputs)
        key = key, form, tuple((leaf.shape, leaf.dtype, leaf.device) for leaf in leaves)
        self._now += 1
        if key in self._kept:
            self._kept.move_to_end(key)
            self._played[key] = self._now
            return _replayed(self._kept[key], leaves)
        results = work(*inputs)
        if self._works and self._due(key):
            self._keep(key, work, inputs, results)
        return results

    def _due(self, key: Hashable) -> bool:
        """Note that it came; whether it is to be recorded now."""
        times = self._met[key] = self._met.pop(key, deque(maxlen=AFTER))
        times.append(self._now)
        if len(self._met) > KNOWN:
            self._met.popitem(last=False)
        full = len(self._kept) == self._most
        since = self._played[next(iter(self._kept))] if full else 0
        return len(times) == AFTER and times[0] > since

    def _keep(self, key: Hashable, work: Work, inputs: Inputs, expected: Outputs) -> None:
        """Record, replay, and keep it if the results are the same."""
        try:
            leaves, form = _leaves(inputs)
            places = [leaf.clone() for leaf in leaves]
            made = places, self._record(work, pytree.tree_unflatten(places, form))
            same = agree(_replayed(made, leaves), expected)
            reason = "its replay gave other numbers than the launch"
        except RuntimeError as error:  # torch's and CUDA's own: something in it cannot be recorded
            same, reason = False, str(error).partition("\n")[0]
        if not same:
            self._works = False
            text = f"launches are no longer recorded: {reason}"
            warnings.warn(text, RuntimeWarning, stacklevel=2)
            return
        if len(self._kept) == self._most:
            self._played.pop(self._kept.popitem(last=False)[0])
        self._kept[key], self._played[key] = made, self._now


def _leaves(thing: object) -> tuple[list[Tensor], pytree.TreeSpec]:
    return pytree.tree_flatten(thing)


def _replayed(made: tuple[list[Tensor], Recording], leaves: list[Tensor]) -> Outputs:
    """The results for these inputs, as tensors of their own."""
    places, (again, results) = made
    for place, leaf in zip(places, leaves, strict=True):
        place.copy_(leaf)
    again()
    copied: Outputs = pytree.tree_map(torch.clone, results)
    return copied


def agree(a: object, b: object) -> bool:
    """True if all numbers are equal but for rounding, and NaN where the others are."""
    pairs = zip(_leaves(a)[0], _leaves(b)[0], strict=True)
    return all(_close(x, y) for x, y in pairs)


def _close(x: Tensor, y: Tensor) -> bool:
    if not y.is_floating_point():
        return bool(torch.equal(x, y))
    largest = float(y[torch.isfinite(y)].abs().max()) if bool(torch.isfinite(y).any()) else 0.0
    return bool(torch.allclose(x, y, rtol=0.0, atol=TOLERANCE * largest, equal_nan=True))


def cuda_graphs() -> Record:
    """Records CUDA graphs, all in one pool of memory.

    One pool will do, for a replay's results are copied before anything else is replayed.
    """
    pool = cache(torch.cuda.graph_pool_handle)

    def record(work: Work, inputs: Inputs) -> Recording:
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        try:
            with torch.cuda.graph(graph, pool=pool(), capture_error_mode="thread_local"):
                results = work(*inputs)
        except RuntimeError as error:
            torch.cuda.set_stream(stream)  # a capture that fails leaves its own one behind,
            with suppress(RuntimeError):  # and the allocator in its pool
                torch._C._cuda_endAllocateToPool(stream.device_index, pool())
            if isinstance(error.__context__, RuntimeError):  # what happened before it could not end
                raise error.__context__ from None
            raise
        return graph.replay, results

    return record
