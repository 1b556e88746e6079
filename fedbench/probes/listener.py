"""Listener at the server, which records the messages of some clients."""

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
    """Message of a client, and the broadcast that it answers.

    Args:
        broadcast: Row that was sent to the client.
        sent: Row that came back.
    """

    broadcast: Payload
    sent: Payload


@dataclass(frozen=True, eq=False)
class Listener(Defense[Any]):
    """The server's rule, with a record of some clients' messages.

    A round in which the server rejected a message is left out, since it is not known whose it was.

    Args:
        rule: The rule.
        clients: Clients whose messages are recorded.
        sample: Function from a round to its clients.
        heard: Exchanges by client, then by round; filled while the run is played.
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
        """Record the messages, then aggregate by the rule."""
        ids = self.sample(view.step)
        for row, i in enumerate(ids if len(ids) == len(received) else []):
            if i in self.clients:
                down = view.broadcast.take([row % len(view.broadcast)])
                self.heard.setdefault(i, {})[view.step] = Exchange(down, received.take([row]))
        return self.rule.aggregate(received, state, view)


def listening(setup: Setup, clients: frozenset[int]) -> tuple[Setup, Listener]:
    """Return the same run with a listener at the server, and the listener."""
    listener = Listener(setup.plugins.defense, clients, setup.sample)
    plugins = dataclasses.replace(setup.plugins, defense=listener)
    return dataclasses.replace(setup, plugins=plugins), listener


def signal(protocol: Protocol[Any], shared: Shared, heard: Exchange) -> Tensor | None:
    """Return the difference ``(d,)`` of a message to that of a client that learned nothing.

    Floats, signs and masks are read as their `values` (for masks minus ``theta_g``), a ranking as
    the scores that it gives to the edges. None for an alphabet whose values are no coordinates of
    the update.
    """
    idle = protocol.idle(shared, heard.broadcast)[0]
    if isinstance(heard.sent, Rankings):
        scores = protocol.receive(shared, heard.sent)
        return protocol.trained(shared).flatten(scores) - idle
    values = heard.sent.values()[0]
    readable = protocol.space != "scores" and heard.sent.aligned
    if not readable or values.shape != idle.shape:
        return None
    return torch.nan_to_num(values.to(idle) - idle)
