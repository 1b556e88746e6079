"""Launches that recur are recorded as a CUDA graph and replayed: one call for all of a round.

A client's local training is some thousands of small kernels, which take longer to launch than to
run. Nothing in it depends on numbers that the processor would have to read
(`tests/test_recorded.py`): once recorded, they are those of every launch of that shape.
"""

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
Recording = tuple[Callable[[], None], Outputs]  # replays it; the memory of its results
Record = Callable[[Work, Inputs], Recording]

TOLERANCE = 1e-3  # of the largest number: how far a replay may be from the launch itself
AFTER = 2  # launches of a kind that run as written before it is recorded
KEPT = 4  # recordings
KNOWN = 256  # kinds of launches that are counted without a recording


def fixed(*things: object) -> bool:
    """Whether all are frozen dataclasses of their own that compare by value, as recordings need."""
    try:
        hash(things)
    except TypeError:
        return False
    parameters = [vars(type(thing)).get("__dataclass_params__") for thing in things]
    return all(found is not None and found.frozen and found.eq for found in parameters)


class Recorder:
    """Runs launches, and records and replays those that recur.

    A recording holds what Python decided when it was made. So ``key`` must cover all that a launch
    decides by, but for the shapes and types of its inputs. A recording is used only if its first
    replay gives what the launch gave; otherwise a warning says so and nothing more is recorded. The
    one not replayed for longest makes room for a launch that came `AFTER` times since then.
    """

    def __init__(self, record: Record, most: int = KEPT) -> None:
        self._record = record  # makes a recording on inputs whose memory will be written again
        self._most = most  # recordings at once; each holds its inputs, all share other memory
        self._works = True
        self._now = 0  # counts launches
        self._met: OrderedDict[Hashable, deque[int]] = OrderedDict()  # last launches of each kind
        self._kept: OrderedDict[Hashable, tuple[list[Tensor], Recording]] = OrderedDict()
        self._played: dict[Hashable, int] = {}  # last launch of each recording

    def __len__(self) -> int:
        """Number of launches that are recorded."""
        return len(self._kept)

    def play(self, key: Hashable, work: Work, inputs: Inputs) -> Outputs:
        """Return ``work(*inputs)``, which must be a function of ``key`` and the inputs."""
        leaves, form = pytree.tree_flatten(inputs)
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
        """Count a launch of this kind; return whether to record it now."""
        times = self._met[key] = self._met.pop(key, deque(maxlen=AFTER))
        times.append(self._now)
        if len(self._met) > KNOWN:
            self._met.popitem(last=False)
        full = len(self._kept) == self._most
        since = self._played[next(iter(self._kept))] if full else 0
        return len(times) == AFTER and times[0] > since

    def _keep(self, key: Hashable, work: Work, inputs: Inputs, expected: Outputs) -> None:
        """Record and replay a launch; keep the recording if the results are the same."""
        try:
            leaves, form = pytree.tree_flatten(inputs)
            places = [leaf.clone() for leaf in leaves]
            recording = (places, self._record(work, pytree.tree_unflatten(places, form)))
            same = agree(_replayed(recording, leaves), expected)
            reason = "its replay gave other numbers than the launch"
        except RuntimeError as error:  # torch's and CUDA's own: something in it cannot be recorded
            same = False
            reason = str(error).partition("\n")[0]
        if not same:
            self._works = False
            text = f"launches are no longer recorded: {reason}"
            warnings.warn(text, RuntimeWarning, stacklevel=2)
            return
        if len(self._kept) == self._most:
            self._played.pop(self._kept.popitem(last=False)[0])
        self._kept[key] = recording
        self._played[key] = self._now


def _replayed(recording: tuple[list[Tensor], Recording], leaves: list[Tensor]) -> Outputs:
    """Replay a recording for these inputs; return copies of the results."""
    places, (replay, results) = recording
    for place, leaf in zip(places, leaves, strict=True):
        place.copy_(leaf)
    replay()
    copied: Outputs = pytree.tree_map(torch.clone, results)
    return copied


def agree(a: object, b: object) -> bool:
    """Whether all numbers are equal up to rounding, with NaN in the same places."""
    pairs = zip(pytree.tree_leaves(a), pytree.tree_leaves(b), strict=True)
    return all(_close(x, y) for x, y in pairs)


def _close(x: Tensor, y: Tensor) -> bool:
    if not y.is_floating_point():
        return bool(torch.equal(x, y))
    largest = float(y[torch.isfinite(y)].abs().max()) if bool(torch.isfinite(y).any()) else 0.0
    return bool(torch.allclose(x, y, rtol=0.0, atol=TOLERANCE * largest, equal_nan=True))


def cuda_graphs() -> Record:
    """Make a recorder of CUDA graphs, in one pool of memory: results are copied at once."""
    pool = cache(torch.cuda.graph_pool_handle)

    def record(work: Work, inputs: Inputs) -> Recording:
        graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.current_stream()
        try:
            with torch.cuda.graph(graph, pool=pool(), capture_error_mode="thread_local"):
                results = work(*inputs)
        except RuntimeError as error:
            torch.cuda.set_stream(stream)  # a capture that fails leaves its own stream behind,
            with suppress(RuntimeError):  # and the allocator in its pool
                torch._C._cuda_endAllocateToPool(stream.device_index, pool())
            if isinstance(error.__context__, RuntimeError):  # the failure that stopped the capture
                raise error.__context__ from None
            raise
        return graph.replay, results

    return record
