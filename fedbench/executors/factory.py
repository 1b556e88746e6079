"""Executors by name, and the choice of the fastest one here.

Which one is fastest depends on the device, the network and the batch, so ``auto`` trains a few
clients each way for two steps, once, and caches the answer (`fedbench.executors.cached_answers`).
"""

import dataclasses
import time
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

import torch
from torch import Tensor

from fedbench.api import Protocol, Shared
from fedbench.core.choices import Precision
from fedbench.core.errors import ConfigError, Unavailable, require
from fedbench.core.rng import Key
from fedbench.data.augmentation import CropFlip
from fedbench.executors.cached_answers import machine, may_measure, store, stored
from fedbench.executors.training import Client, Executor, Loop, Schedule
from fedbench.executors.vmap import Recorded, Stacked

NAMES = ("auto", "loop", "stacked", "recorded")

MARGIN = 1.25  # how much faster another must be: a near tie goes to the loop, which is the oracle
MOST = 8  # clients of a measurement
STEPS = 2  # of a client on a CPU
RECORDED_STEPS = 16  # of a client on an accelerator, where one of them may be recorded
TURNS = 2
REVISION = 4  # of the executors: raised when one becomes faster, which voids old answers
HEAVY = 0.01  # seconds of a client's step on a CPU above which lock step gains nothing


class TrainingOptions(TypedDict):
    """Options of training that every executor has."""

    precision: Precision
    augment: CropFlip | None


def require_known(name: str) -> None:
    """Raise `ConfigError` unless the name is one of `NAMES`."""
    require("--executor", name, name in NAMES, ", ".join(NAMES[:-1]) + f" or {NAMES[-1]}")


def require_device(name: str, cuda: bool) -> None:
    """Raise `Unavailable` for an executor that this device does not have."""
    if name == "recorded" and not cuda:
        raise Unavailable("--executor recorded must have --device cuda, got cpu; use stacked")


def executor(
    name: str,
    protocol: Protocol[Any],
    shared: Shared,
    schedule: Schedule,
    chunk: int = 32,
    precision: Precision = "fp32",
    together: float = 1.0,
    augment: CropFlip | None = None,
) -> Executor:
    """Make the executor of that name; ``auto`` is the fastest one, see `choose`.

    ``chunk`` is how many clients are trained at once, by executors that do so, and ``together`` the
    answer of `crowd`. ``augment`` changes the images of every training step. `ConfigError` if there
    is no such executor, or not on this device.
    """
    require("--chunk", chunk, chunk >= 1, ">= 1")
    require_known(name)
    if name != "loop" and (why := shared.network.alone):
        if name != "auto":
            raise ConfigError(f"--executor must be auto or loop for a model {why}, got {name}")
        warnings.warn(f"clients train one after the other: the model {why}", stacklevel=2)
        name = "loop"
    require_device(name, shared.device.type == "cuda")
    training = (protocol, shared, schedule)
    options: TrainingOptions = {"precision": precision, "augment": augment}
    stacked = Stacked(*training, chunk, **options, padded=pads(shared.device))
    kind = choose(stacked, together) if name == "auto" else name
    if kind == "recorded":
        return Recorded(*training, chunk, **options)
    return stacked if kind == "stacked" else Loop(*training, **options)


def pads(device: torch.device) -> bool:
    """Whether clients of unequal length share a launch: not on a CPU, where padding costs more.

    There a step takes as long as its samples, also those after a client's end; on an accelerator
    small networks wait for launches (docs/performance.md, "Uneven clients").
    """
    return device.type == "cuda"


def crowd(sizes: Sequence[int], sampled: int, schedule: Schedule, padded: bool = False) -> float:
    """Number of clients of a round that share a launch, on average over the draws of a round.

    ``sizes`` are the samples of every client, of whom ``sampled`` take part. Clients of unequal
    length share none, or, ``padded``, all share one; a client that waits for the end of the longest
    one counts by its share of that one's steps.

    >>> crowd([8, 8, 8, 8], 2, Schedule(1, 4))
    2.0
    >>> round(crowd([4, 8, 12, 16], 2, Schedule(1, 4)), 2)  # all apart but for the same one twice
    1.14
    >>> round(crowd([4, 8, 12, 16], 2, Schedule(1, 4), padded=True), 2)  # 5 steps beside 2 * 3.125
    1.6
    """
    counts = sorted(Counter(map(schedule.steps, sizes)).items())
    if padded:
        shorter = 0
        longest = 0.0  # expected number of steps of the longest client
        for steps, count in counts:
            upto = shorter + count
            chance = (upto / len(sizes)) ** sampled - (shorter / len(sizes)) ** sampled
            longest += steps * chance
            shorter = upto
        mean = sum(steps * count for steps, count in counts) / len(sizes)
        return sampled * mean / longest
    launches = sum(1 - (1 - count / len(sizes)) ** sampled for _, count in counts)
    return sampled / launches


def choose(stacked: Stacked, together: float) -> str:
    """Name the fastest executor: ``loop``, ``stacked``, or on CUDA ``recorded``.

    On average ``together`` clients share a launch (see `crowd`). With ``FEDBENCH_PROBE=off``
    nothing is measured: ``loop`` on a CPU and ``stacked`` elsewhere.
    """
    device = stacked.shared.device.type
    if not may_measure():
        return "loop" if device == "cpu" else "stacked"
    training = (stacked.protocol, stacked.shared, stacked.schedule)
    options: TrainingOptions = {"precision": stacked.precision, "augment": stacked.augment}
    ways: dict[str, Executor] = {"loop": Loop(*training, **options), "stacked": stacked}
    if device == "cuda":
        ways["recorded"] = Recorded(*training, stacked.chunk, **options)
    clients = min(int(together), stacked.width, MOST)
    if clients < 2:
        return "loop"
    question = asked(stacked, clients, *ways)
    fits = ways.__contains__
    return stored(question, fits) or store(question, measured(ways, clients), fits)


def asked(engine: Executor, clients: int, *ways: str) -> str:
    """Text of the question: all that the answer depends on, and the executors to choose from."""
    network = engine.shared.network
    protocol = type(engine.protocol)
    augment = "" if engine.augment is None else f", {type(engine.augment).__name__}"
    parts = (
        f"{network.title} {dict(network.shapes)} for {network.image}",
        f"{protocol.__module__}.{protocol.__qualname__}",
        f"batch {engine.schedule.batch_size}, {engine.precision}{augment}, {clients} clients",
        " or ".join(ways),
        f"{machine(engine.shared.device)}, revision {REVISION}",
    )
    return "; ".join(parts)


def strangers(protocol: Protocol[Any], shared: Shared, n: int, samples: int) -> list[Client]:
    """Make ``n`` clients with random images, at the start of a first round."""
    sent = protocol.broadcast(shared, protocol.init(shared), [0], Key(0))
    tree = protocol.receive(shared, sent.take([0]))
    labels = torch.arange(samples, device=shared.device)
    return [
        Client(
            tree=tree,
            x=shared.network.examples(samples, Key(2).fold(i), shared.device),
            y=(labels + i) % shared.network.classes,
            key=Key(3).fold(i),
            memory=protocol.memory(shared),
        )
        for i in range(n)
    ]


def measured(ways: Mapping[str, Executor], clients: int) -> str:
    """Name the executor that trains so many clients fastest, by the least time of each in turns.

    The loop comes first; a later one must be `MARGIN` times as fast as the best before it.
    """
    loop = ways["loop"]
    schedule = Schedule(1, loop.schedule.batch_size)
    ways = {name: dataclasses.replace(way, schedule=schedule) for name, way in ways.items()}
    steps = RECORDED_STEPS if "recorded" in ways else STEPS
    group = strangers(loop.protocol, loop.shared, clients, steps * schedule.batch_size)
    seconds(ways["loop"], group[:1])
    warm = seconds(ways["loop"], group[:1])  # the first time was cold
    if loop.shared.device.type == "cpu" and warm > HEAVY * steps:
        return "loop"
    for way in list(ways.values())[1:]:
        seconds(way, group)  # cold
    turns = [[seconds(way, group) for way in ways.values()] for _ in range(TURNS)]
    least = {name: min(times) for name, times in zip(ways, zip(*turns, strict=True), strict=True)}
    best = "loop"
    for name in least:
        if least[best] > MARGIN * least[name]:
            best = name
    return best


def seconds(executor: Executor, clients: Sequence[Client]) -> float:
    """Seconds of wall clock that training takes, with the work of the device."""
    if executor.shared.device.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    updates: Tensor = executor.train(clients)[0]
    updates[0, 0].item()
    return time.perf_counter() - start
