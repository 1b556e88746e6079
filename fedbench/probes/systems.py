"""Probed systems: protocols under mechanisms that fit, and a listener at their server."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from fedbench.api import Protocol, ServerView, Shared
from fedbench.audits.watched import watched
from fedbench.core.errors import Incompatible
from fedbench.experiment.prepare import prepare
from fedbench.experiment.scenario import Scenario
from fedbench.experiment.setup import Setup
from fedbench.payload import Payload, Rankings

Progress = Callable[[str], None]
Result = TypeVar("Result")


def play_each(
    protocols: Sequence[str], mechanisms: Sequence[str], play: Callable[[str, str], Result]
) -> tuple[list[Result], list[str]]:
    """Return the results of each protocol under each mechanism that fits, and why others do not."""
    results = []
    skipped = []
    for protocol in protocols:
        for mechanism in mechanisms:
            try:
                results.append(play(protocol, mechanism))
            except Incompatible as error:
                if len(protocols) * len(mechanisms) == 1:
                    raise
                skipped.append(f"{protocol} + {mechanism}: {error}")
    if not results:
        raise Incompatible(f"nothing that was named fits together: {skipped[0]}")
    return results, skipped


def prepared(scenario: Scenario, protocol: str, mechanism: str, seed: int) -> Setup:
    """Return the scenario with this protocol, mechanism and seed, ready to be played."""
    names = {"protocol": protocol, "mechanism": mechanism, "seed": seed}
    return prepare(Scenario.of(**scenario.model_dump() | names))


@dataclass(frozen=True, eq=False)
class ProbeRound:
    """Message of a client, and the broadcast that it answers; one row each."""

    broadcast: Payload
    sent: Payload


Heard = dict[int, dict[int, ProbeRound]]  # by client, then by round


def listening(setup: Setup, clients: Collection[int]) -> tuple[Setup, Heard]:
    """Return the same run with a listener at the server, and what it hears while that is played.

    A round in which the server rejected a message is left out, since it is not known whose it was.
    """
    heard: Heard = {i: {} for i in clients}

    def record(received: Payload, aggregate: Tensor, view: ServerView) -> None:
        ids = setup.taking_part(view.step)
        for row, i in enumerate(ids if len(ids) == len(received) else []):
            if i in heard:
                down = view.broadcast.take([row % len(view.broadcast)])
                heard[i][view.step] = ProbeRound(down, received.take([row]))

    return watched(setup, record), heard


def signal(protocol: Protocol[Any], shared: Shared, heard: ProbeRound) -> Tensor | None:
    """Return the difference ``(d,)`` of a message to that of a client that learned nothing.

    A ranking is read as the scores that it gives to the edges, other messages as their `values`;
    None for an alphabet whose values are no coordinates of the update.
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
