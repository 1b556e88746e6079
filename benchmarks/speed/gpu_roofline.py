"""Roofline of a local step: how long a device must take at least, from bytes and operations.

Two predictions stand beside a measured step. The *roofline* is what any code must do: multiply, and
move parameters and activations. The step *as written* moves the bytes and launches the kernels that
were counted while it ran. A step far above the second one waits for something else.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import by_hand
import torch
from paired import Work, timer
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from fedbench.executors.training import Client, Executor
from fedbench.models.network import ConvNet, saved_bytes

# Over a client's parameters in a step of SGD: read twice, gradient there and back, write.
PASSES = 5
KERNELS = 1000  # of one timing of a launch
FLOAT = 4  # bytes


@dataclass(frozen=True)
class Peaks:
    """Speeds of a device that no step can exceed, measured on it.

    Args:
        bytes: Bytes read and written in a second by a copy.
        flops: Operations in a second of a large matrix product in float32.
        launch: Seconds of a tiny kernel that Python launches.
        replay: Seconds of a tiny kernel in a CUDA graph; None where there are none.
    """

    bytes: float
    flops: float
    launch: float
    replay: float | None = None


@dataclass(frozen=True)
class Step:
    """Work of one local step of all clients.

    Args:
        flops: Floating-point operations.
        least: Bytes that any code must move.
        bytes: Bytes that the kernels were counted to move.
        kernels: Kernels that were counted.
    """

    flops: float
    least: float
    bytes: float
    kernels: float

    def roofline(self, peaks: Peaks) -> float:
        """Return the seconds of operations, then of bytes, as if nothing overlapped."""
        return self.flops / peaks.flops + self.least / peaks.bytes

    def as_written(self, peaks: Peaks, recorded: bool) -> float:
        """Return the seconds of the counted kernels, bound by launches or by bytes and operations.

        Args:
            peaks: Speeds of the device.
            recorded: The launches are replayed from a CUDA graph.
        """
        each = peaks.replay if recorded and peaks.replay is not None else peaks.launch
        return max(self.kernels * each, self.bytes / peaks.bytes + self.flops / peaks.flops)


class Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts kernels of a device and the bytes that they read and write; views are free.

    >>> a, b = torch.ones(2, 3), torch.ones(3, 4)
    >>> with Counter(a.device) as counter:
    ...     _ = (a @ b).T
    >>> counter.kernels, counter.bytes == 4 * (6 + 12 + 8)
    (1, True)
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.device = device
        self.kernels = 0
        self.bytes = 0

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Count one operation, and do it."""
        result = func(*args, **(kwargs or {}))
        leaves = pytree.tree_leaves((args, kwargs, result))
        tensors = [x for x in leaves if isinstance(x, Tensor) and x.device.type == self.device.type]
        if tensors and not is_view(func):
            self.kernels += 1
            self.bytes += sum(map(touched, tensors))
        return result


def is_view(func: Any) -> bool:
    """Whether an operation returns its argument in another form and computes nothing."""
    schema = func._schema
    reads = [a for a in schema.arguments if a.alias_info is not None]
    aliases = bool(reads) and not any(a.alias_info.is_write for a in reads)
    names = ("aten::_unsafe_view", "aten::detach", "aten::alias")
    return schema.name in names or (aliases and all(r.alias_info for r in schema.returns))


def touched(x: Tensor) -> int:
    """Return the bytes of a tensor that are in memory, once each.

    >>> touched(torch.ones(3, 1).expand(3, 5))
    12
    """
    sizes = (size for size, stride in zip(x.shape, x.stride(), strict=True) if stride)
    return math.prod(sizes) * x.element_size()


def counted(trains: Executor, clients: Sequence[Client], steps: int) -> Step:
    """Count a step of clients that take ``steps`` each: what twice as many cost more.

    Launches must run as written; those that are replayed are not seen.
    """
    longer = [
        dataclasses.replace(client, x=client.x.repeat(2, 1, 1, 1), y=client.y.repeat(2))
        for client in clients
    ]
    counters = []
    for group in (clients, longer):
        trains.train(group)  # whatever is prepared once is prepared
        with Counter(trains.shared.device) as counter:
            trains.train(group)
        counters.append(counter)
    once, twice = counters
    network = cast(ConvNet, trains.shared.network)
    batch = trains.schedule.batch_size
    return Step(
        flops=len(clients) * batch * 6.0 * by_hand.macs(network),
        least=float(len(clients) * least_bytes(network, batch)),
        bytes=(twice.bytes - once.bytes) / steps,
        kernels=(twice.kernels - once.kernels) / steps,
    )


def least_bytes(network: ConvNet, batch: int) -> int:
    """Return the bytes that a client's step must move, in float32.

    `PASSES` over the parameters; what is saved for the backward pass is written, and read again.
    """
    parameters = sum(math.prod(shape) for shape in network.shapes.values())
    return PASSES * FLOAT * parameters + 2 * batch * saved_bytes(network)


def measure_peaks(device: torch.device, flops: float, quick: bool) -> Peaks:
    """Measure a device; ``flops`` is what `paired.machine` found."""
    x = torch.ones(1 << (20 if quick else 28), device=device)
    y = torch.empty_like(x)
    small = torch.ones(256, device=device)

    def launches() -> None:
        for _ in range(KERNELS):
            small.neg_()  # stays finite however often it is called

    launch = seconds(launches) / KERNELS
    replay = None
    if device.type == "cuda":
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            launches()
        replay = seconds(graph.replay) / KERNELS
    copied = seconds(lambda: y.copy_(x))
    return Peaks(2 * x.nbytes / copied, flops, launch, replay)


def seconds(work: Work) -> float:
    """Return the median time of a call, the device's work included."""
    return timer(work).blocked_autorange(min_run_time=0.05).median
