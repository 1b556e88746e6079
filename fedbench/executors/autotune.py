"""Choice of the fastest executor here: one client at a time or many in lock step.

It depends on the device, the network and the batch, so ``auto`` trains a few clients each way for
two steps, once, and caches the answer (`fedbench.executors.cached_answers`).
"""

import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedbench.api import Protocol, Shared
from fedbench.core.choices import Precision
from fedbench.core.rng import Key
from fedbench.executors.cached_answers import machine, may_measure, store, stored
from fedbench.executors.cuda_graphs import AFTER
from fedbench.executors.training import Client, Executor, Loop, Schedule
from fedbench.executors.vmap import Recorded, Stacked

MARGIN = 1.25  # how much faster another must be: a near tie goes to the loop, which is the oracle
MOST = 8  # clients of a measurement
STEPS = 2
TURNS = 2
REVISION = 3  # of the executors: raised when one becomes faster, which voids old answers
HEAVY = 0.01  # seconds of a client's step on a CPU above which lock step gains nothing


def crowd(sizes: Sequence[int], sampled: int, schedule: Schedule) -> float:
    """Number of clients of a round that share a launch, on average over the draws of a round.

    ``sizes`` are the samples of every client, of whom ``sampled`` take part.

    >>> crowd([8, 8, 8, 8], 2, Schedule(1, 4))
    2.0
    >>> round(crowd([4, 8, 12, 16], 2, Schedule(1, 4)), 2)  # all apart but for the same one twice
    1.14
    """
    counts: dict[int, int] = {}
    for size in sizes:
        steps = schedule.steps(size)
        counts[steps] = counts.get(steps, 0) + 1
    launches = sum(1 - (1 - count / len(sizes)) ** sampled for count in counts.values())
    return sampled / launches


def choose(
    protocol: Protocol[Any],
    shared: Shared,
    schedule: Schedule,
    chunk: int,
    precision: Precision,
    together: float,
) -> str:
    """Name the fastest executor: ``loop``, ``stacked``, or on CUDA ``recorded``.

    At most ``chunk`` clients share a launch, on average ``together`` (see `crowd`). With
    ``FEDBENCH_PROBE=off`` nothing is measured: ``loop`` on a CPU and ``stacked`` elsewhere.
    """
    accelerated = shared.device.type != "cpu"
    if not may_measure():
        return "stacked" if accelerated else "loop"
    stacked = Stacked(protocol, shared, schedule, chunk, precision=precision)
    ways: dict[str, Executor] = {
        "loop": Loop(protocol, shared, schedule, precision=precision),
        "stacked": stacked,
    }
    if shared.device.type == "cuda" and not schedule.coins:  # with coins no shape comes again
        ways["recorded"] = Recorded(protocol, shared, schedule, chunk, precision=precision)
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
    parts = (
        f"{type(network).__name__} {dict(network.shapes)} for {network.image}",
        f"{protocol.__module__}.{protocol.__qualname__}",
        f"batch {engine.schedule.batch_size}, {engine.precision}, {clients} clients",
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
            x=Key(2).fold(i).normal(samples, *shared.network.image, device=shared.device),
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
    group = strangers(loop.protocol, loop.shared, clients, STEPS * schedule.batch_size)
    seconds(ways["loop"], group[:1])
    warm = seconds(ways["loop"], group[:1])  # the first time was cold
    if loop.shared.device.type == "cpu" and warm > HEAVY * STEPS:
        return "loop"
    for way in list(ways.values())[1:]:
        for _ in range(AFTER + 1):  # a launch is recorded at its second time
            seconds(way, group)
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
