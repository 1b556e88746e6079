"""Many clients in lock step against one after the other, with even and with uneven data."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import torch

from fedbench.bench.clients import PLAIN, Bench, Size, bench
from fedbench.bench.paired import Pair
from fedbench.lockstep import Stacked, launches
from fedbench.training import Loop

GROUP = "lock step"
BATCH = 8
EVEN, UNEVEN = (3,) * 12, (1, 1, 1, 2, 2, 2, 3, 3, 4, 5, 6, 8)  # steps of each client, 36 and 38


def pairs(size: Size, device: torch.device) -> Iterator[Pair]:
    """Of a small network, and of the first of the sizes' own."""
    for model in ("micro", size.models[0]):
        for steps in (EVEN, UNEVEN):
            yield of(model, uneven(model, steps, size, device))


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
