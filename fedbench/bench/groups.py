"""Many clients in lock step against one after the other, with even and with uneven data."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import torch

from fedbench.bench.clients import CLASSES, IMAGE, PLAIN, Bench, Size, bench
from fedbench.bench.paired import Pair, Work
from fedbench.core import registry
from fedbench.executors.conv_kernels import FORMS, Load, geometries, there_and_back
from fedbench.executors.cuda_graphs import AFTER
from fedbench.executors.training import Loop
from fedbench.executors.vmap import TIMED, Stacked, launches
from fedbench.models.network import Convolve

GROUP = "lock step"
BATCH = 8
EVEN, UNEVEN = (3,) * 12, (1, 1, 1, 2, 2, 2, 3, 3, 4, 5, 6, 8)  # steps of each client, 36 and 38


def pairs(size: Size, device: torch.device) -> Iterator[Pair]:
    """Of a small network and of the first of the sizes' own; the layers of that one in two forms.

    On CUDA also launches that are recorded, of all the sizes.
    """
    for model in ("micro", size.models[0]):
        for steps in (EVEN, UNEVEN):
            yield of(model, uneven(model, steps, size, device))
    yield forms(size.models[0], device)
    if device.type == "cuda":
        for model in size.models:
            for batch in size.batches:
                yield recorded(model, batch, size, device)


def forms(model: str, device: torch.device) -> Pair:
    """The convolutions of a network in a step of `TIMED` clients, both ways."""
    network = registry.load("model", model).build(IMAGE, CLASSES)

    def step(form: Convolve) -> Work:
        load = Load(device, TIMED, BATCH)
        layers = [there_and_back(layer, load, form) for layer in geometries(network)]
        return lambda: [layer() for layer in layers]

    return Pair(
        GROUP,
        f"{model}, convolutions of {TIMED} clients in groups",
        "as matrices",
        step(FORMS["groups"]),
        step(FORMS["matrices"]),
    )


def recorded(model: str, batch: int, size: Size, device: torch.device) -> Pair:
    """Launches that are replayed against one client after the other, with even data."""
    ours = bench(f"fedavg:lr=0.01,{PLAIN}", model, batch, size, device, "recorded")
    loop = Loop(ours.executor.protocol, ours.shared, ours.executor.schedule)
    for _ in range(AFTER):
        ours.executor.train(ours.clients)
    return Pair(
        GROUP,
        f"{model}, batch {batch}, {len(ours.clients)} clients, replayed",
        "one by one",
        lambda: ours.executor.train(ours.clients),
        lambda: loop.train(ours.clients),
        target=10 if batch <= 32 else None,
        units=len(ours.clients),
    )


def uneven(model: str, steps: Sequence[int], size: Size, device: torch.device) -> Bench:
    """Clients with so many steps each."""
    n = len(steps)
    most = dataclasses.replace(size, clients=n, samples=n * BATCH * max(steps))
    whole = bench(f"fedavg:lr=0.01,{PLAIN}", model, BATCH, most, device, "loop")
    clients = [
        dataclasses.replace(client, x=client.x[: BATCH * s], y=client.y[: BATCH * s])
        for client, s in zip(whole.clients, steps, strict=True)
    ]
    return dataclasses.replace(whole, clients=clients)


def of(model: str, ours: Bench) -> Pair:
    """Both executors on the same clients; the name says how many share a launch."""
    loop = Loop(ours.executor.protocol, ours.shared, ours.executor.schedule)
    many = Stacked(ours.executor.protocol, ours.shared, ours.executor.schedule)
    groups = list(launches([(many, ours.clients)]))
    return Pair(
        GROUP,
        f"{model}, {len(ours.clients)} clients in {len(groups)}",
        "one by one",
        lambda: many.train(ours.clients),
        lambda: loop.train(ours.clients),
        units=len(ours.clients),
    )
