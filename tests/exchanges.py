"""Clients that train on a small network, and what they send."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from fedbench.api import Protocol, Shared
from fedbench.core.errors import IllegalPayloadError
from fedbench.core.rng import Key
from fedbench.executors.training import Client, Loop, Schedule
from fedbench.models.network import ConvNet, Network
from fedbench.payload import Payload
from fedbench.payload.packets import Packet
from fedbench.testing import NETWORK, example_clients


def shared_of(network: Network = NETWORK, seed: int = 3) -> Shared:
    return Shared(network, seed, torch.device("cpu"))


def flat(d: int, seed: int = 3) -> Shared:
    """One layer of ``d`` weights."""
    return shared_of(ConvNet((1, 1, d), (), (), 1), seed)


def sent(
    protocol: Protocol[Any],
    shared: Shared,
    updates: Tensor,
    memory: Sequence[Any] | None = None,
    keys: Sequence[Key] | None = None,
) -> Any:
    """The messages of these updates, client ``i`` with key ``i`` unless said otherwise."""
    keys = keys or [Key(i) for i in range(len(updates))]
    payload, _ = protocol.message(shared, updates, keys, memory or [{}] * len(updates))
    return payload


def exchanged(
    protocol: Protocol[Any],
    shared: Shared,
    schedule: Schedule,
    engine: Any = Loop,
    clients: list[Client] | None = None,
) -> tuple[Tensor, Any]:
    """Updates of these or of the example clients, and the messages that they send."""
    clients = clients or example_clients(protocol, shared)
    updates, memory = engine(protocol, shared, schedule).train(clients)
    return updates, sent(protocol, shared, updates, memory, [client.key for client in clients])


def rejected(kind: type[Payload], data: bytes, spec: Any, requirement: str = ".") -> None:
    """The server refuses these bytes in one line."""
    with pytest.raises(IllegalPayloadError, match=requirement) as caught:
        kind.decode_row(Packet.raw(data), spec)
    assert "\n" not in str(caught.value)
