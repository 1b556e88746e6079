"""Clients with random images, and how many of them, for both sides of a comparison."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch

from fedbench.api import Shared
from fedbench.core import registry
from fedbench.executors.autotune import strangers
from fedbench.executors.factory import executor
from fedbench.executors.training import Client, Executor, Schedule
from fedbench.models.network import ConvNet

IMAGE, CLASSES = (1, 28, 28), 10
PLAIN = "momentum=0,weight_decay=0"
TRAINING = "local training"


@dataclass(frozen=True)
class Size:
    """How much of everything.

    Args:
        models: Trained.
        batches: Samples a step.
        clients: That train, n.
        samples: Of all of them together, each turn.
        rows: n of what the server does.
        width: d of what the server does.
        repeats: Turns.
        largest: Growth is shown up to this many values, n d.
    """

    models: tuple[str, ...]
    batches: tuple[int, ...]
    clients: int
    samples: int
    rows: int
    width: int
    repeats: int
    largest: float


@dataclass(frozen=True, eq=False)
class Bench:
    """A protocol's clients with random images, equally many each.

    Args:
        protocol: With its parameters.
        shared: Network, seed and device.
        executor: Who trains them.
        clients: Whom.
    """

    protocol: Any
    shared: Shared
    executor: Executor
    clients: list[Client]

    @property
    def network(self) -> ConvNet:
        """Its layers are a table, which can be written by hand as well."""
        return cast(ConvNet, self.shared.network)

    @property
    def samples(self) -> int:
        """Of all clients together."""
        return sum(len(client.x) for client in self.clients)


def bench(
    text: str, model: str, batch: int, size: Size, device: torch.device, engine: str
) -> Bench:
    """One epoch of everybody's images.

    Args:
        text: The protocol, as typed.
        model: Its name.
        batch: Samples a step.
        size: How much.
        device: Where.
        engine: Which executor.
    """
    shared = Shared(registry.load("model", model).build(IMAGE, CLASSES), 1, device)
    protocol = registry.load("protocol", text)
    each = max(size.samples // size.clients // batch, 1) * batch
    clients = strangers(protocol, shared, size.clients, each)
    trains = executor(engine, protocol, shared, Schedule(1, batch), crowd=len(clients))
    return Bench(protocol, shared, trains, clients)
