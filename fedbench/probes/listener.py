"""Listener at the server: one client's messages, as they came off the wire."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fedbench.api import Defense, Protocol, ServerView, Shared
from fedbench.experiment.setup import Setup
from fedbench.payload import Payload, Rankings, Spec


@dataclass(frozen=True, eq=False)
class Exchange:
    """One message, and what it answers.

    Args:
        broadcast: The row that was sent to the client.
        sent: The row that came back.
    """

    broadcast: Payload
    sent: Payload


@dataclass(frozen=True, eq=False)
class Listener(Defense[Any]):
    """The server's rule, and a note of some clients' messages before it aggregates them.

    A round in which the server rejected a message is left out: it does not say whose.

    Args:
        rule: Does the work.
        clients: Whose messages are wanted.
        sample: The clients of a round.
        heard: By client, then by round; filled while the run is played.
    """

    rule: Defense[Any]
    clients: frozenset[int]
    sample: Callable[[int], list[int]]
    heard: dict[int, dict[int, Exchange]] = field(default_factory=dict)

    def init(self, spec: Spec) -> Any:
        """Pass on to the rule behind it."""
        return self.rule.init(spec)

    def rows_needed(self) -> int:
        """Pass on to the rule behind it."""
        return self.rule.rows_needed()

    def tolerates(self, n: int) -> int:
        """Pass on to the rule behind it."""
        return self.rule.tolerates(n)

    def aggregate(self, received: Payload, state: Any, view: ServerView) -> tuple[Tensor, Any]:
        """The rule's, after taking note."""
        ids = self.sample(view.step)
        for row, i in enumerate(ids if len(ids) == len(received) else []):
            if i in self.clients:
                down = view.broadcast.take([row % len(view.broadcast)])
                self.heard.setdefault(i, {})[view.step] = Exchange(down, received.take([row]))
        return self.rule.aggregate(received, state, view)


def listening(setup: Setup, clients: frozenset[int]) -> tuple[Setup, Listener]:
    """The same run, with an ear at the server."""
    listener = Listener(setup.plugins.defense, clients, setup.sample)
    plugins = dataclasses.replace(setup.plugins, defense=listener)
    return dataclasses.replace(setup, plugins=plugins), listener


def signal(protocol: Protocol[Any], shared: Shared, heard: Exchange) -> Tensor | None:
    """``(d,)``: how far a message is from that of a client that learned nothing, as `updates` are.

    Floats, signs and masks are their `values`, minus ``theta_g`` for masks; a ranking is the scores
    that it gives to the edges, minus those of the ranking that was sent down. None for an alphabet
    whose values are no coordinates of the update.
    """
    idle = protocol.idle(shared, heard.broadcast)[0]
    if isinstance(heard.sent, Rankings):
        scores = protocol.receive(shared, heard.sent)
        return protocol.trained(shared).flatten(scores) - idle
    values = heard.sent.values()[0]
    readable = protocol.space != "scores" and heard.sent.aligned  # positions are no scores
    if not readable or values.shape != idle.shape:
        return None
    return torch.nan_to_num(values.to(idle) - idle)
