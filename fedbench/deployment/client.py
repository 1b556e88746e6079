"""A client outside the harness: it trains on its own data and sends bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedbench.api import Grad, Gradient, Mechanism, Memory
from fedbench.core.errors import ConfigError, IllegalPayloadError, require
from fedbench.core.sources import package_of
from fedbench.core.trees import Tree
from fedbench.deployment.draws import FromSystem, SystemKey
from fedbench.deployment.settings import Settings, draws_noise, require_fit
from fedbench.executors import training
from fedbench.executors.training import Loop, untouched
from fedbench.experiment.evaluation import taken_for
from fedbench.experiment.forms import form_of
from fedbench.experiment.state_bytes import decode, encode
from fedbench.models.network import Network
from fedbench.payload import Payload
from fedbench.payload.packets import Packet
from fedbench.privacy.clients import compress, protect_payload, protect_updates


@dataclass(frozen=True, eq=False)
class Samples:
    """A client's own data, which never leave it.

    Args:
        x: ``(N, ...)`` float32 training samples, normalised images or numbers.
        y: ``(N,)`` int64 their labels.
        test_x: Samples on which it evaluates what is deployed; maybe none.
        test_y: Their labels.
    """

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor

    def __post_init__(self) -> None:
        for x, y in ((self.x, self.y), (self.test_x, self.test_y)):
            form = (x.dtype, y.dtype, len(x) == len(y))
            good = form == (torch.float32, torch.int64, True)
            require("task.data()", form, good, "float32 samples and as many int64 labels")
        require("task.data()", len(self.x), len(self.x) > 0, "at least one training sample")


@dataclass(frozen=True, eq=False)
class Request:
    """Message of a server to a client in a round, all of it public.

    Args:
        packet: Bytes of the broadcast, and how many bits of them count.
        form: The broadcast's form, `form_bytes` of it, by which its bytes are decoded.
        step: Round, from 0.
        number: The client's number at the server.
        arrived: Last round whose message from this client the server accepted; -1: none.
    """

    packet: Packet
    form: bytes
    step: int
    number: int
    arrived: int = -1


class Client:
    """One client's half of a deployment."""

    def __init__(self, settings: Settings, network: Network) -> None:
        plugins = settings.plugins()
        self.protocol = plugins.protocol
        self.mechanism: Mechanism = plugins.mechanism
        self.shared = settings.shared(network)
        require_fit(plugins, self.shared)
        self.draws = settings.draws
        schedule = settings.schedule(self.mechanism)
        self.executor = Loop(self.protocol, self.shared, schedule)

    def train(self, request: Request, samples: Samples, memory: bytes) -> tuple[Packet, bytes]:
        """Return the message to the server, and what this client keeps until its next round.

        ``memory`` is what the last call returned for that; empty at first.
        """
        self._require_fit(samples)
        broadcast = self._read(request)
        noise = self.draws.noise(request.step, request.number)
        private = draws_noise(self.protocol, self.mechanism)
        key = self.draws.client(request.step, request.number, private)
        client = training.Client(
            tree=self.protocol.receive(self.shared, broadcast),
            x=samples.x,
            y=samples.y,
            key=key,
            memory=self._memory(memory, request.arrived),
            wrap_grad=self.wrap_grad,
            round=request.step,
        )
        updates, memories = self.executor.train([client])
        idle = self.protocol.idle(self.shared, broadcast)
        complies = torch.ones(1, dtype=torch.bool)
        state = self.mechanism.init()
        updates, _ = protect_updates(self.mechanism, updates, idle, [noise], complies, state)
        message, after = compress(self.protocol, self.shared, updates, [key], memories, broadcast)
        message = protect_payload(self.mechanism, message, [noise], complies)
        (packet,) = message.encode()
        agreed = message.values()[0] if self.protocol.agreed is not None else None
        return packet, encode({"step": request.step, "memory": after[0], "sent": agreed})

    def evaluate(self, models: bytes, samples: Samples) -> tuple[int, int]:
        """Return how many test samples the deployed model gets right, and how many there are."""
        ensemble: list[Tree] = decode(models)
        if not len(samples.test_y):
            return 0, 0
        hits, _ = taken_for(self.shared.network, ensemble, samples.test_x, samples.test_y)
        return round(float(hits.sum())), len(hits)

    def _require_fit(self, samples: Samples) -> None:
        network = self.shared.network
        shape = tuple(samples.x.shape[1:])
        require("task.data()", shape, shape == network.image, f"samples {network.image}")
        labels = tuple(int(label) for label in samples.y.aminmax())
        in_range = labels[0] >= 0 and labels[1] < network.classes
        require("task.data()", labels, in_range, f"labels from 0 to {network.classes - 1}")

    def _read(self, request: Request) -> Payload:
        form = form_of(request.form, package_of(type(self.protocol)))
        broadcast, _ = type(form).decode([request.packet], form.spec, self.shared.device)
        if broadcast is None:
            raise IllegalPayloadError("a broadcast must decode to its form, got other bytes")
        return broadcast

    def _memory(self, remembered: bytes, arrived: int) -> Memory:
        """Return the protocol's memory, with what both ends agree on since a message arrived.

        `ConfigError` if the server builds on a message that this client no longer remembers.
        """
        last: dict[str, Any] = decode(remembered) if remembered else {"memory": {}, "step": -1}
        memory: Memory = last["memory"] or self.protocol.memory(self.shared)
        name = self.protocol.agreed
        if name is None:
            return memory
        if arrived > last["step"]:
            raise ConfigError(
                f"a client of {type(self.protocol).__name__} must remember its message of round "
                f"{arrived}, which the server goes on from, got a memory that was lost; start anew"
            )
        return memory | {name: last["sent"]} if 0 <= arrived == last["step"] else memory

    def wrap_grad(self, gradient: Gradient) -> Grad:
        """Return the gradient that the mechanism protects, with noise of the operating system."""
        if type(self.mechanism).wrap_grad is Mechanism.wrap_grad:
            return untouched(gradient)
        private = self.mechanism.wrap_grad(gradient)
        if not isinstance(self.draws, FromSystem):
            return private
        return lambda tree, x, y, key: private(tree, x, y, SystemKey())
