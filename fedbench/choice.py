"""Which executor is faster here, one client at a time or many in lock step: measured, and kept.

It depends on the device, the network and the batch, so ``auto`` trains a few clients both ways for
two steps, once; the answer lies in a folder of the user's, one small file for each question. The
first process that answers a question answers it for all, so that runs of one machine are alike.
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedbench.api import Protocol, Shared
from fedbench.lockstep import Stacked
from fedbench.rng import Key
from fedbench.training import Client, Executor, Loop, Precision, Schedule

MARGIN = 1.25  # so much faster must lock step be: a near tie goes to the loop, which is the oracle
MOST = 8  # clients of a measurement
STEPS = 2
TURNS = 2
REVISION = 2  # of the executors: raised when one becomes faster, for then old answers are none
HEAVY = 0.01  # seconds of a client's step on a CPU, from which on lock step gains nothing there


def crowd(sizes: Sequence[int], sampled: int, schedule: Schedule) -> float:
    """How many clients of a round share a launch: on average, by their numbers of steps.

    Args:
        sizes: Samples of every client.
        sampled: Clients of a round.
        schedule: How often they see them.

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
    """``loop`` or ``stacked``.

    With ``FEDBENCH_PROBE=off`` nothing is measured: it loops on a CPU and stacks elsewhere.

    Args:
        protocol: What clients train.
        shared: Network and device.
        schedule: Of which the size of a batch counts.
        chunk: The most clients of a launch.
        precision: Of the products.
        together: Clients that share a launch, see `crowd`.
    """
    accelerated = shared.device.type != "cpu"
    if os.environ.get("FEDBENCH_PROBE") == "off":
        return "stacked" if accelerated else "loop"
    both = (
        Loop(protocol, shared, schedule, precision=precision),
        Stacked(protocol, shared, schedule, chunk, precision=precision),
    )
    clients = min(int(together), both[1].width, MOST)
    if clients < 2:
        return "loop"
    question = asked(both[1], clients)
    known = answer(question)
    if known is None:
        known = kept(question, measured(*both, clients))
    return known


def asked(engine: Stacked, clients: int) -> str:
    """What the answer depends on."""
    device = engine.shared.device
    where = f"{torch.get_num_threads()} threads of {processor()}"
    if device.type == "cuda":
        where = torch.cuda.get_device_name(device)
    network, protocol = engine.shared.network, type(engine.protocol)
    what = (
        f"{type(network).__name__} {dict(network.shapes)} for {network.image}",
        f"{protocol.__module__}.{protocol.__qualname__}",
        f"batch {engine.schedule.batch_size}, {engine.precision}, {clients} clients",
        f"torch {torch.__version__}, {where}, revision {REVISION}",
    )
    return "; ".join(what)


def processor() -> str:
    """As it calls itself."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def strangers(protocol: Protocol[Any], shared: Shared, n: int, samples: int) -> list[Client]:
    """``n`` clients with so many random images each, at the start of a first round."""
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


def measured(loop: Loop, lockstep: Stacked, clients: int) -> str:
    """Which one trains so many clients faster, in turns; the least of each counts."""
    schedule = Schedule(1, loop.schedule.batch_size)
    one, many = (dataclasses.replace(engine, schedule=schedule) for engine in (loop, lockstep))
    group = strangers(loop.protocol, loop.shared, clients, STEPS * schedule.batch_size)
    seconds(one, group[:1])
    start = seconds(one, group[:1])  # the first one was cold
    if loop.shared.device.type == "cpu" and start > HEAVY * STEPS:
        return "loop"
    seconds(many, group)
    turns = [(seconds(one, group), seconds(many, group)) for _ in range(TURNS)]
    apart, together = (min(times) for times in zip(*turns, strict=True))
    return "stacked" if apart > MARGIN * together else "loop"


def seconds(executor: Executor, clients: Sequence[Client]) -> float:
    """Of the clock, with the work of the device."""
    if executor.shared.device.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    updates: Tensor = executor.train(clients)[0]
    updates[0, 0].item()
    return time.perf_counter() - start


def folder() -> Path:
    """Where answers lie: ``fedbench/executors`` in the user's folder of caches."""
    given = os.environ.get("XDG_CACHE_HOME")
    return (Path(given) if given else Path.home() / ".cache") / "fedbench" / "executors"


def _file(question: str) -> Path:
    return folder() / f"{sha256(question.encode()).hexdigest()[:16]}.json"


def answer(question: str) -> str | None:
    """What was measured here before; None if nothing was, or nobody can read it."""
    with suppress(OSError, RuntimeError, ValueError, KeyError, TypeError):
        said = json.loads(_file(question).read_text())
        if said["question"] == question and said["answer"] in ("loop", "stacked"):
            return str(said["answer"])
    return None


def kept(question: str, found: str) -> str:
    """Keep an answer, unless somebody was first; the one that holds."""
    with suppress(OSError, RuntimeError):  # of no home, too
        path = _file(question)
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=".", dir=path.parent)
        try:
            with os.fdopen(handle, "w") as file:
                json.dump({"question": question, "answer": found}, file, indent=1)
            os.link(temporary, path)  # fails if it is there
        finally:
            os.unlink(temporary)
    return answer(question) or found
