"""Executors by name, and the choice of the fastest one here.

Which one is fastest depends on the device, the network and the batch, so ``auto`` trains a few
clients each way for two steps, once, and caches the answer (`fedbench.executors.cached_answers`).
"""

import dataclasses
import time
import warnings
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
from fedbench.executors.training import Client, Executor, Loop, Schedule
from fedbench.executors.vmap import Padded, Recorded, Stacked

NAMES = ("auto", "loop", "stacked", "padded", "recorded")
REMOTE = "ray"  # a cluster: ``ray`` or ``ray:NAME``, the executor of its processes
REMOTE_OPTION = f"--executor {REMOTE}"

MIN_SPEEDUP = 1.1  # of another one: a near tie goes to the loop, which is the oracle
MAX_PROBE_CLIENTS = 8
PROBE_STEPS = 2  # of each client
MAX_RECORDED_STEPS = 16  # the most where one of them may be recorded: as many as a launch has
TURNS = 2
REVISION = 5  # of the executors: raised when one becomes faster, which voids old answers
HEAVY_SECONDS = 0.01  # seconds of a client's step on a CPU above which lock step gains nothing


class TrainingOptions(TypedDict):
    """Options of training that every executor has."""

    precision: Precision
    augment: CropFlip | None


def require_known(name: str) -> None:
    """Raise `ConfigError` unless it is one of `NAMES`, ``ray`` or ``ray:NAME``."""
    exists = name in NAMES or name == REMOTE or remote_way(name) in NAMES[1:]
    require("--executor", name, exists, f"{', '.join(NAMES)}, {REMOTE} or {REMOTE}:padded")


def remote_way(name: str) -> str | None:
    """Return the executor that a cluster's processes use, "" for the default; None if no cluster.

    >>> remote_way("ray:padded"), remote_way("ray"), remote_way("loop")
    ('padded', '', None)
    """
    where, _, way = name.partition(":")
    return way if where == REMOTE else None


def require_one_place(name: str, isolate: bool) -> None:
    """Raise `ConfigError` for a cluster with isolated plug-ins, which run on this machine."""
    fits = not isolate or remote_way(name) is None
    requirement = "one of this machine with --isolate, whose plug-ins stay in processes here"
    require("--executor", name, fits, requirement)


def require_device(name: str, device: torch.device) -> None:
    """Raise `Unavailable` for an executor that this device does not have."""
    if "recorded" in (name, remote_way(name)) and not replays_graphs(device):
        raise Unavailable(
            f"--executor recorded must have --device cuda, got {device.type}; use padded"
        )


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
    sizes: Sequence[int] = (),
    augment: CropFlip | None = None,
) -> Executor:
    """Make the executor of that name; ``auto`` is the fastest one, see `choose`.

    ``chunk`` is how many clients are trained at once, by executors that do so. For ``auto``,
    ``sizes`` are the samples of the clients of a round (`typical_sizes`). ``augment`` changes the
    images of every training step. ``ray`` is the executor of each process of a cluster.
    `ConfigError` if there is no such executor, or not on this device.
    """
    require("--chunk", chunk, chunk >= 1, ">= 1")
    require_known(name)
    if (way := remote_way(name)) is not None:
        alone = shared.network.alone or not accelerated(shared.device)
        name = way or ("loop" if alone else "padded")  # not measured: every node does the same
    if name != "loop" and (why := shared.network.alone):
        if name != "auto":
            raise ConfigError(f"--executor must be auto or loop for a model that {why}, got {name}")
        warnings.warn(f"clients train one after the other: the model {why}", stacklevel=2)
        name = "loop"
    require_device(name, shared.device)
    require_precision(precision, shared.device)
    training = (protocol, shared, schedule)
    options: TrainingOptions = {"precision": precision, "augment": augment}
    padded = Padded(*training, chunk, **options)
    kind = choose(padded, sizes) if name == "auto" else name
    if kind == "loop":
        return Loop(*training, **options)
    engines: dict[str, type[Stacked]] = {"stacked": Stacked, "recorded": Recorded}
    return engines[kind](*training, chunk, **options) if kind in engines else padded


def typical_sizes(sizes: Sequence[int], sampled: int) -> list[int]:
    """Return the sizes of a typical round's clients: evenly spaced quantiles of all ``sizes``.

    >>> typical_sizes([9, 1, 5, 7, 3, 11], 3)
    [3, 7, 11]
    """
    ordered = sorted(sizes)
    return [ordered[(2 * i + 1) * len(ordered) // (2 * sampled)] for i in range(sampled)]


def choose(padded: Padded, sizes: Sequence[int]) -> str:
    """Name the fastest executor: ``loop``, ``padded``, or on CUDA ``recorded``.

    A round has clients with so many samples. With ``FEDBENCH_PROBE=off`` nothing is measured:
    ``loop`` on a CPU and ``padded`` elsewhere.
    """
    device = padded.shared.device
    if not may_measure():
        return "padded" if accelerated(device) else "loop"
    training = (padded.protocol, padded.shared, padded.schedule)
    options: TrainingOptions = {"precision": padded.precision, "augment": padded.augment}
    ways: dict[str, Executor] = {"loop": Loop(*training, **options), "padded": padded}
    if replays_graphs(device):
        ways["recorded"] = Recorded(*training, padded.chunk, **options)
    clients = min(len(sizes), padded.width, MAX_PROBE_CLIENTS)
    if clients < 2:
        return "loop"
    counts = list(map(padded.schedule.steps, sizes))
    tenths = max(1, round(10 * padded.useful(counts)))
    steps = min(max(1, *counts), MAX_RECORDED_STEPS) if "recorded" in ways else PROBE_STEPS
    question = question_of(padded, clients, *ways, tenths=tenths, steps=steps)
    fits = ways.__contains__
    best = stored(question, fits)
    return best or store(question, measured(ways, clients, tenths / 10, steps), fits)


def question_of(
    engine: Executor, clients: int, *ways: str, tenths: int = 10, steps: int = PROBE_STEPS
) -> str:
    """Return the question as text: all that the answer depends on, and the executors to compare."""
    network = engine.shared.network
    protocol = type(engine.protocol)
    augment = "" if engine.augment is None else f", {type(engine.augment).__name__}"
    parts = (
        f"{network.title} {dict(network.shapes)} for {network.image}",
        f"{protocol.__module__}.{protocol.__qualname__}",
        f"batch {engine.schedule.batch_size}, {engine.precision}{augment}, {clients} clients, "
        f"{tenths} tenths of steps needed",
        f"{' or '.join(ways)} over {steps} steps",
        f"{machine(engine.shared.device)}, revision {REVISION}",
    )
    return "; ".join(parts)


def untrained_clients(
    protocol: Protocol[Any], shared: Shared, n: int, samples: int
) -> list[Client]:
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


def measured(
    ways: Mapping[str, Executor], clients: int, share: float = 1.0, steps: int = PROBE_STEPS
) -> str:
    """Name the executor that trains this many clients fastest, by the least time of each in turns.

    The loop comes first; a later one must be `MIN_SPEEDUP` times as fast as the best before it.
    Clients of equal length are measured; in lock step the time counts as if they needed only a
    ``share`` of their steps, though a launch costs less than in proportion to its clients.
    """
    loop = ways["loop"]
    schedule = Schedule(1, loop.schedule.batch_size)
    ways = {name: dataclasses.replace(way, schedule=schedule) for name, way in ways.items()}
    group = untrained_clients(loop.protocol, loop.shared, clients, steps * schedule.batch_size)
    seconds(ways["loop"], group[:1])
    warm = seconds(ways["loop"], group[:1])  # the first time was cold
    if not accelerated(loop.shared.device) and warm > HEAVY_SECONDS * steps:
        return "loop"
    for way in list(ways.values())[1:]:
        seconds(way, group)  # cold
    turns = [[seconds(way, group) for way in ways.values()] for _ in range(TURNS)]
    least = {name: min(times) for name, times in zip(ways, zip(*turns, strict=True), strict=True)}
    least |= {name: seconds / share for name, seconds in least.items() if name != "loop"}
    best = "loop"
    for name in least:
        if least[best] > MIN_SPEEDUP * least[name]:
            best = name
    return best


def seconds(executor: Executor, clients: Sequence[Client]) -> float:
    """Return the seconds of wall clock that training takes, with the work of the device."""
    finish(executor.shared.device)
    start = time.perf_counter()
    updates: Tensor = executor.train(clients)[0]
    updates[0, 0].item()
    return time.perf_counter() - start
