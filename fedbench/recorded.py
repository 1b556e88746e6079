"""Launches that come again are recorded as a CUDA graph and replayed: one call for all of a round.

A client's whole local training is some thousands of small kernels, and it takes the processor
longer to ask for them than an accelerator to run them. Nothing in it depends on numbers that the
processor would have to read (`tests/test_recorded.py`), so the kernels of one launch, once
recorded, are those of every launch of that shape.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import lru_cache

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from fedbench.api import Memory

Inputs = tuple[object, ...]  # tensors, in tuples and dictionaries
Outputs = tuple[Tensor, Memory]
Work = Callable[..., Outputs]
Recording = tuple[
    Callable[[], None], Outputs
]  # what plays it again, and where the results then lie
Record = Callable[[Work, Inputs], Recording]

TOLERANCE = 1e-3  # of the largest number: how far a replay may be from the launch itself
AFTER = 2  # launches that are made as they are written before the next one is recorded
KEPT = 8  # recordings
KNOWN = 1024  # launches that are remembered, with recordings or without


def fixed(*things: object) -> bool:
    """Whether all are hashable frozen dataclasses: what was recorded of them stays true."""
    return all(_frozen(thing) and _hashable(thing) for thing in things)


def _frozen(thing: object) -> bool:
    parameters = getattr(thing, "__dataclass_params__", None)
    return parameters is not None and bool(parameters.frozen)


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
    can be recorded, launches go on as they are written, and a warning says so once.

    Args:
        record: Records a launch on inputs whose memory will be written again.
        most: Recordings at once; each holds its inputs, and all share memory for what is between.
    """

    def __init__(self, record: Record, most: int = KEPT) -> None:
        self._record, self._most = record, most
        self._met: OrderedDict[Hashable, int] = OrderedDict()
        self._kept: OrderedDict[Hashable, tuple[list[Tensor], Recording]] = OrderedDict()

    def play(self, key: Hashable, work: Work, inputs: Inputs) -> Outputs:
        """What ``work(*inputs)`` returns, which must be a function of ``key`` and the inputs."""
        leaves, form = _leaves(inputs)
        key = key, form, tuple((leaf.shape, leaf.dtype, leaf.device) for leaf in leaves)
        if key in self._kept:
            self._kept.move_to_end(key)
            return _replayed(self._kept[key], leaves)
        results = work(*inputs)
        met = self._met[key] = self._met.pop(key, 0) + 1
        if len(self._met) > KNOWN:
            self._met.popitem(last=False)
        if met == AFTER:
            self._keep(key, work, inputs, results)
        return results

    def _keep(self, key: Hashable, work: Work, inputs: Inputs, expected: Outputs) -> None:
        """Record, replay, and keep it if the results are the same."""
        leaves, form = _leaves(inputs)
        places = [leaf.clone() for leaf in leaves]
        if len(self._kept) == self._most:
            self._kept.popitem(last=False)
        try:
            made = places, self._record(work, pytree.tree_unflatten(places, form))
            results = _replayed(made, leaves)
        except RuntimeError as error:  # torch's and CUDA's own: something in it cannot be recorded
            reason = str(error).partition("\n")[0]
            warnings.warn(f"a launch is not recorded: {reason}", RuntimeWarning, stacklevel=2)
            return
        if agree(results, expected):
            self._kept[key] = made
        else:
            text = "a launch is not recorded: its replay gave other numbers than the launch"
            warnings.warn(text, RuntimeWarning, stacklevel=2)


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


@lru_cache
def cuda_recorder() -> Recorder:
    """Of this process: CUDA graphs, with one pool of memory.

    One pool will do, for a replay's results are copied before anything else is replayed.
    """
    pool = torch.cuda.graph_pool_handle()

    def record(work: Work, inputs: Inputs) -> Recording:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            results = work(*inputs)
        return graph.replay, results

    return Recorder(record)
