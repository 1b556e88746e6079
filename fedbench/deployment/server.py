"""A server outside the harness: it samples, broadcasts, decodes, aggregates and takes a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedbench.api import ServerView, hooks
from fedbench.core.trees import Tree
from fedbench.deployment.client import Request
from fedbench.deployment.draws import SeededDraws
from fedbench.deployment.settings import Settings, require_fit
from fedbench.experiment.forms import form_bytes
from fedbench.experiment.record_builder import downlink_bits
from fedbench.experiment.setup import finite_values, server_view
from fedbench.experiment.stages import announced, noised
from fedbench.models.network import Network
from fedbench.payload import Payload
from fedbench.payload.packets import Packet
from fedbench.privacy.clients import untrained


@dataclass(frozen=True)
class Traffic:
    """Rows and bits of one round, counted as `fedbench.play` counts them."""

    sent: int  # messages that came
    accepted: int
    uplink_bits: int
    downlink_bits: int


class Server:
    """The server's half of a deployment."""

    def __init__(self, settings: Settings, network: Network) -> None:
        self.settings = settings
        self.plugins = settings.plugins()
        self.protocol = self.plugins.protocol
        self.defense = self.plugins.defense
        self.mechanism = self.plugins.mechanism
        self.shared = settings.shared(network)
        require_fit(self.plugins, self.shared)
        self.draws = settings.draws
        self.server_state: Any = self.protocol.init(self.shared)
        self.defense_state: Any = None
        self.mechanism_state: Any = self.mechanism.init()
        self.sizes: dict[int, int] = {}
        self.agreed: dict[int, Tensor] = {}
        self.arrived: dict[int, int] = {}
        self.pseudonyms = torch.arange(settings.clients)
        if isinstance(self.draws, SeededDraws):
            key = self.draws.secret.key("pseudonyms")
            self.pseudonyms = key.permutation(settings.clients)

    def enrol(self, number: int, size: int) -> None:
        """Note a client's number of training samples, before its first round."""
        self.sizes[number] = size

    def sample(self, present: Sequence[int], step: int) -> list[int]:
        """Draw the clients of a round from those that are there."""
        order = self.draws.server("sample", step).permutation(len(present)).tolist()
        ranked = sorted(present)
        return [ranked[i] for i in order[: self.settings.per_round]]

    def open(self, ids: Sequence[int], step: int) -> list[Request]:
        """Start a round; return what each of the clients ``ids`` is sent."""
        key = self.draws.server("broadcast", step)
        sent = hooks.broadcast(self.protocol, self.shared, self.server_state, ids, key)
        self.down = sent.encode()
        received, _ = type(sent).decode(self.down, sent.spec, self.shared.device)
        assert received is not None  # the server's own message is legal
        self.broadcast: Payload = received
        form = form_bytes(sent)
        return [
            Request(self.down[row % len(self.down)], form, step, i, self.arrived.get(i, -1))
            for row, i in enumerate(ids)
        ]

    def close(self, packets: Mapping[int, Packet], asked: Sequence[int], step: int) -> Traffic:
        """End a round with the packets that came, by client, of those that were ``asked``."""
        places = [place for place, i in enumerate(asked) if i in packets]
        ids = [asked[place] for place in places]
        if len(self.broadcast) > 1:  # a message for each
            self.broadcast = self.broadcast.take(places or [0])
        form = self._form(ids)
        arrived = [packets[i] for i in ids]
        checks: Any = self.settings.server_checks
        received, accepted = form.receive(arrived, checks, self.shared.device)
        legal = accepted.nonzero()[:, 0].tolist()
        self._remember([ids[row] for row in legal], received, step)
        view = self._view(ids, step).take(accepted)
        if self.defense_state is None:
            self.defense_state = self.defense.init(form.spec)
        aggregate = None
        if self.defense.ready(view):
            aggregate, self.defense_state = hooks.aggregate(
                self.defense, received, self.defense_state, view
            )
        self._step(received, aggregate, view)
        return Traffic(
            sent=len(ids),
            accepted=int(accepted.sum()),
            uplink_bits=sum(packet.bits for packet in arrived),
            downlink_bits=downlink_bits(self.down, len(asked)),
        )

    def models(self, step: int) -> list[Tree]:
        """Return the deployed model, or the members of an ensemble, after a round."""
        key = self.draws.server("model", step)
        shapes = self.shared.network.shapes
        model = hooks.model(self.protocol, shapes, self.shared, self.server_state, key)
        return [model] if isinstance(model, dict) else list(model)

    def _form(self, ids: Sequence[int]) -> Payload:
        """Return the form of a message, with what the server remembers of each client."""
        start = self.protocol.memory(self.shared)
        name = self.protocol.agreed
        if name is None or not ids:
            first = self.broadcast.take([0])
            return untrained(self.protocol, self.shared, first, [start]).take([])
        memories = [start | {name: self.agreed.get(i, start[name])} for i in ids]
        return untrained(self.protocol, self.shared, self.broadcast, memories)

    def _remember(self, ids: Sequence[int], received: Payload, step: int) -> None:
        if self.protocol.agreed is not None:
            for i, row in finite_values(ids, received).items():
                self.agreed[i] = row
                self.arrived[i] = step

    def _view(self, ids: Sequence[int], step: int) -> ServerView:
        return server_view(
            self.plugins,
            self.shared,
            torch.tensor([self.sizes[i] for i in ids], dtype=torch.float64),
            broadcast=self.broadcast,
            step=step,
            key=self.draws.server("defense", step),
            expected=self.settings.per_round,
            ids=self.pseudonyms[list(ids)],
        )

    def _step(self, received: Payload, aggregate: Tensor | None, view: ServerView) -> None:
        noise = self.draws.central_noise(view.step)
        aggregate, self.mechanism_state = noised(
            self.mechanism, aggregate, received, view, noise, self.mechanism_state
        )
        if aggregate is None:
            return
        n = announced(self.mechanism, received, view)
        key = self.draws.server("server", view.step)
        self.server_state = self.protocol.server_step(
            self.shared, self.server_state, aggregate, n, key
        )
