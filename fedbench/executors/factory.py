"""Executors by name, and the choice of the fastest one here.

Which one is fastest depends on the device, the network and the batch, so ``auto`` trains a few
clients each way for two steps, once, and caches the answer (`fedbench.executors.cached_answers`).
"""

import dataclasses
import os
import time
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

import torch
from torch import Tensor

from fedbench.api import Protocol, Shared
from fedbench.core.choices import Precision
from fedbench.core.devices import accelerated, finish, multiplies_in_tf32, replays_graphs
from fedbench.core.errors import ConfigError, Unavailable, require
from fedbench.core.rng import Key
from fedbench.data.augmentation import CropFlip
from fedbench.executors.cached_answers import machine, may_measure, store, stored
from fedbench.executors.cuda_graphs import AFTER
from fedbench.executors.multi_run import Together, recorder
from fedbench.executors.process_pool import Forked
from fedbench.executors.training import Client, Executor, Loop, Schedule
from fedbench.executors.vmap import Recorded, Stacked

NAMES = ("auto", "loop", "stacked", "recorded", "forked")

MARGIN = 1.25  # how much faster another must be: a near tie goes to the loop, which is the oracle
MOST = 8  # clients of a measurement
STEPS = 2
TURNS = 2
REVISION = 3  # of the executors: raised when one becomes faster, which voids old answers
HEAVY = 0.01  # seconds of a client's step on a CPU above which lock step gains nothing


class TrainingOptions(TypedDict):
    """Options of training that every executor has."""

    precision: Precision
    augment: CropFlip | None


def require_known(name: str) -> None:
    """Raise `ConfigError` unless the name is one of `NAMES`."""
    require("--executor", name, name in NAMES, ", ".join(NAMES[:-1]) + f" or {NAMES[-1]}")


def require_device(name: str, device: torch.device) -> None:
    """Raise `Unavailable` for an executor that this device does not have."""
    if name == "recorded" and not replays_graphs(device):
        raise Unavailable(
            f"--executor recorded must have --device cuda, got {device.type}; use stacked"
        )
    if name == "forked" and not hasattr(os, "fork"):
        raise Unavailable("--executor forked needs a system with fork, as Linux; use loop")


def require_precision(precision: Precision, device: torch.device) -> None:
    """Raise `Unavailable` for TF32 on a device that has no such products."""
    if precision == "tf32" and not multiplies_in_tf32(device):
        raise Unavailable(
            f"--precision tf32 must have --device cuda, got {device.type}; use fp32 or bf16"
        )


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

    ``chunk`` is how many clients are trained at once, by executors that do so. Workers that play
    several runs ask for "together" (`fedbench.executors.multi_run`), which is not in `NAMES`.
    ``augment`` changes the images of every training step. `ConfigError` if there is no such
    executor, or not on this device.
    """
    require("--chunk", chunk, chunk >= 1, ">= 1")
    if name != "together":
        require_known(name)
    if name != "loop" and (why := shared.network.alone):
        if name in ("stacked", "recorded"):
            raise ConfigError(
                f"--executor must be auto, loop or forked for a model {why}, got {name}"
            )
        if name != "forked":
            warnings.warn(f"clients train one after the other: the model {why}", stacklevel=2)
            name = "loop"
    require_device(name, shared.device)
    require_precision(precision, shared.device)
    beside = accelerated(shared.device)
    training = (protocol, shared, schedule)
    options: TrainingOptions = {"precision": precision, "augment": augment}
    stacked = Stacked(*training, chunk, **options)
    kind = choose(stacked, together) if name == "auto" or (name == "together" and beside) else name
    if name == "together":
        tape = recorder() if kind == "recorded" else None
        return Together(*training, chunk, **options, recorder=tape)
    if kind == "recorded":
        return Recorded(*training, chunk, **options)
    looped = Forked if kind == "forked" else Loop
    return stacked if kind == "stacked" else looped(*training, **options)


def crowd(sizes: Sequence[int], sampled: int, schedule: Schedule) -> float:
    """Number of clients of a round that share a launch, on average over the draws of a round.

    ``sizes`` are the samples of every client, of whom ``sampled`` take part.

    >>> crowd([8, 8, 8, 8], 2, Schedule(1, 4))
    2.0
    >>> round(crowd([4, 8, 12, 16], 2, Schedule(1, 4)), 2)  # all apart but for the same one twice
    1.14
    """
    counts = Counter(map(schedule.steps, sizes))
    launches = sum(1 - (1 - count / len(sizes)) ** sampled for count in counts.values())
    return sampled / launches


def choose(stacked: Stacked, together: float) -> str:
    """Name the fastest executor: ``loop``, ``stacked``, or on CUDA ``recorded``.

    On average ``together`` clients share a launch (see `crowd`). With ``FEDBENCH_PROBE=off``
    nothing is measured: ``loop`` on a CPU and ``stacked`` elsewhere.
    """
    device = stacked.shared.device
    if not may_measure():
        return "stacked" if accelerated(device) else "loop"
    training = (stacked.protocol, stacked.shared, stacked.schedule)
    options: TrainingOptions = {"precision": stacked.precision, "augment": stacked.augment}
    ways: dict[str, Executor] = {"loop": Loop(*training, **options), "stacked": stacked}
    if replays_graphs(device) and not stacked.schedule.coins:  # with coins no shape comes again
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
    group = strangers(loop.protocol, loop.shared, clients, STEPS * schedule.batch_size)
    seconds(ways["loop"], group[:1])
    warm = seconds(ways["loop"], group[:1])  # the first time was cold
    if not accelerated(loop.shared.device) and warm > HEAVY * STEPS:
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
    finish(executor.shared.device)
    start = time.perf_counter()
    updates: Tensor = executor.train(clients)[0]
    updates[0, 0].item()
    return time.perf_counter() - start
