"""Stages of a round: what is sent, compressed, crafted, received, aggregated, remembered."""

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fedbench.adversary import threat_model
from fedbench.adversary.metrics import Arrivals
from fedbench.adversary.training import train, trained_by
from fedbench.api import Mechanism, ServerView, hooks
from fedbench.core import registry
from fedbench.core.blame import Hook
from fedbench.core.choices import SUMS
from fedbench.core.rng import Key
from fedbench.executors.training import Client, Made, Trained
from fedbench.experiment.setup import Setup
from fedbench.experiment.state import RunState
from fedbench.payload import (
    FoldedMessages,
    KeptMessages,
    Payload,
    masked_packets,
    sum_of_packets,
    summands,
)
from fedbench.payload.packets import Packet
from fedbench.privacy.clients import compress, protect_payload, protect_updates


@dataclass(frozen=True, eq=False)
class Participants:
    """Clients of a round, or some of them.

    Args:
        rows: Places of these clients among those of the round.
        ids: Numbers of the clients.
        view: What a rule would be shown of them.
        clients: What each of them trains with.
    """

    rows: Sequence[int]
    ids: Sequence[int]
    view: ServerView
    clients: Sequence[Client]


@dataclass(frozen=True, eq=False)
class Training(Participants):
    """Clients that train, or will once they are waited for.

    Args:
        wait: Function that returns what they trained, and messages if these are made there.
    """

    wait: Callable[[], tuple[Trained, Made | None]]


@dataclass(frozen=True, eq=False)
class Honest(Participants):
    """Honest messages of clients, and all that they were made of.

    Args:
        trained: Their updates as trained, and their memories.
        updates: ``(n, d)``, the updates that are compressed: the mechanism's, if it changes them.
        messages: ``n`` messages.
        idle: Updates of clients that learn nothing, a row for each or ``(1, d)`` for all.
        packets: Packets of which the messages were decoded, if they were.
    """

    trained: Trained
    updates: Tensor
    messages: Payload
    idle: Tensor
    packets: Sequence[Packet] | None = None

    def encoded(self) -> Sequence[Packet]:
        """Return the packets of the messages; those that came as packets are not encoded again."""
        return self.messages.encode() if self.packets is None else self.packets


@dataclass(frozen=True, eq=False)
class Exchange:
    """Exchange of a round's messages: what reached the server, and what is recorded of it.

    Args:
        arrivals: Messages that reached the server.
        packets: Packets of the ``n`` clients; none of a round that does not fit in memory.
        bits: Bits of the packets that travelled, which masks of a secure sum make longer.
        fields: Fields of the round's record.
    """

    arrivals: Arrivals
    packets: Sequence[Packet]
    bits: Sequence[int]
    fields: dict[str, Any]


def send(setup: Setup, server: Any, ids: Sequence[int], step: int) -> tuple[list[Packet], Payload]:
    """Return the packets that the server sends to the clients ``ids``, and what they decode to."""
    key = setup.secret.key("broadcast", step)
    sent = hooks.broadcast(setup.plugins.protocol, setup.shared, server, ids or [0], key)
    packets = sent.encode()
    received, _ = type(sent).decode(packets, sent.spec, setup.shared.device)
    assert received is not None  # the server's own message is legal
    return packets, received


def participants(
    setup: Setup, asked: Sequence[int], broadcast: Payload, step: int
) -> tuple[list[int], Payload]:
    """Return the clients of a round that do not drop out, and what these received."""
    places = setup.arriving(asked, step)
    if len(broadcast) > 1:  # a message for each
        broadcast = broadcast.take(places or [0])
    return [asked[place] for place in places], broadcast


def honest_messages(
    setup: Setup,
    state: RunState,
    training: Training,
    trained: Trained,
    made: Made | None,
    idle: Tensor,
) -> Honest:
    """Protect and compress what was ``trained``.

    Messages that were ``made`` already, by the processes that train, are only protected. The rule's
    first state is made for the form of the run's first messages.
    """
    mechanism = setup.plugins.mechanism
    updates, memories = trained
    ids = training.ids
    step = training.view.step
    noise = [setup.secret.key("privacy", step, i) for i in ids]  # handed to no protocol
    complies = ~setup.noncompliant(ids)
    if made is None:
        updates, state.mechanism = protect_updates(
            mechanism, updates, idle, noise, complies, state.mechanism
        )
        keys = setup.keys(ids, step)
        honest, remembered = compress(
            setup.plugins.protocol, setup.shared, updates, keys, memories, training.view.broadcast
        )
    else:
        honest = made.messages
        remembered = made.memories
    state.memories.update(zip(ids, remembered, strict=True))
    honest = protect_payload(mechanism, honest, noise, complies)
    if state.defense is None:
        state.defense = Hook(setup.plugins.defense, "init", step).returned(object, honest.spec)
    packets = made.packets if made is not None and made.messages is honest else None
    return Honest(
        rows=training.rows,
        ids=ids,
        view=training.view,
        clients=training.clients,
        trained=trained,
        updates=updates,
        messages=honest,
        idle=idle,
        packets=packets,
    )


def attack_context(
    setup: Setup,
    state: RunState,
    honest: Honest,
    owned: threat_model.OwnedRows,
    streamed: threat_model.Streamed | None = None,
) -> threat_model.AttackContext:
    """Return the adversary's view of a round, or of a part of it, after its own training.

    What its clients learn before that training becomes the state's.
    """
    clients = honest.clients
    view = honest.view
    attack = setup.attack(view.step)
    protocol = setup.plugins.protocol
    _, memories = honest.trained
    keys = dict(zip(owned.rows.tolist(), setup.keys(owned.ids, view.step), strict=True))
    recruits, extra = setup.recruited(owned, clients, state.memories, honest.messages, view.step)
    worked = Counter() if recruits is None else Counter(recruited=extra)
    context = threat_model.AttackContext(
        honest=honest.messages,
        updates=honest.updates,
        idle=honest.idle,
        owned=owned,
        codec=threat_model.own_codec(protocol, setup.shared, keys, memories),
        memories=memories,
        server=state.server,
        defense=setup.plugins.defense,
        defense_state=state.defense,
        view=view,
        rehearse=partial(setup.rehearse, state.server, view.step),
        recruits=recruits,
        worked=worked if streamed is None else streamed.worked,
        streamed=streamed,
        checks=setup.scenario.server_checks,
        protocol=registry.parameters(protocol),
    )
    state.learned = threat_model.learn(attack, context, state.learned)
    if not attack.trains or not len(owned):
        return context
    own, after = train(
        attack,
        setup.executor,
        clients,
        owned,
        state.last_broadcast,
        view.step,
        state.learned,
        state.memories,
    )
    poisoned, remembered = hooks.message(protocol, setup.shared, own, list(keys.values()), after)
    for i, memory in zip(owned.ids, remembered, strict=True):
        if memory:
            state.memories[trained_by(i)] = memory
    return dataclasses.replace(context, trained=own, poisoned=poisoned)


def heard_by_all(setup: Setup, server: Any, ids: Sequence[int], broadcast: Payload) -> bool:
    """Return whether all were sent the same; a broadcast of one row may be for a single client."""
    if len(broadcast) > 1 or len(ids) > 1:
        return len(broadcast) == 1
    pair = [*(ids or [0])] * 2
    key = setup.secret.key("audience")
    return len(hooks.broadcast(setup.plugins.protocol, setup.shared, server, pair, key)) == 1


def behind_masks(
    setup: Setup, packets: list[Packet], received: Payload, accepted: Tensor, asked: int, step: int
) -> list[Packet]:
    """Return the packets that travel: masked residues where ``sees`` is a secure sum.

    The modulus has room for all clients that were ``asked``: none knows who will drop out. The
    server decodes and adds them up, which must give the sum of what it ``received``: a rule that is
    allowed there reads no more of it. A message that was rejected is in no sum.
    """
    if setup.sees not in SUMS:
        return packets
    numbers = summands(received, asked)
    masked = masked_packets(numbers, setup.secret.key("secure sum", step))
    expected = numbers.x.sum(dim=0).cpu() % numbers.modulus
    assert torch.equal(sum_of_packets(masked, numbers.spec), expected)
    arrived = dict(zip(accepted.nonzero()[:, 0].tolist(), masked, strict=True))
    return [arrived.get(row, packet) for row, packet in enumerate(packets)]


def remember(
    setup: Setup, state: RunState, ids: Sequence[int], received: Payload, accepted: Tensor
) -> None:
    """Write what arrived into `Protocol.agreed`; a message that was rejected changes nothing."""
    arrived = [ids[row] for row in accepted.nonzero()[:, 0].tolist()]
    setup.remember(arrived, received, state.memories)


def defend(
    setup: Setup,
    state: RunState,
    received: Payload | FoldedMessages | KeptMessages,
    view: ServerView,
    queried: bool,
) -> Tensor:
    """Return ``(k,)``: the defense's estimate of the honest mean; its state becomes the next one.

    A state that is ``queried`` again, by `effect`, is copied first.
    """
    defense = setup.plugins.defense
    before = hooks.copied(defense, "aggregate", state.defense) if queried else state.defense
    aggregate, state.defense = setup.executor.aggregate(
        defense, received.copied(), before, view.copied()
    )
    return aggregate


def noised(
    mechanism: Mechanism,
    aggregate: Tensor | None,
    received: Payload | FoldedMessages,
    view: ServerView,
    key: Key,
    state: Any,
) -> tuple[Tensor | None, Any]:
    """Return the aggregate ``(k,)`` with central noise, and the mechanism's next state.

    None for an aggregate of None, in a round that is skipped; but a mechanism that promised central
    noise adds it there to zeros.
    """
    if aggregate is None:
        if not mechanism.central:
            return None, state
        form = received.form if isinstance(received, FoldedMessages) else received
        aggregate = form.values().new_zeros(form.values().shape[1])
    return hooks.on_aggregate(mechanism, aggregate, received, view, key, state)


def announced(mechanism: Mechanism, received: Payload | FoldedMessages, view: ServerView) -> int:
    """Return the number of messages for the server step; central noise hides the real one."""
    return view.expected if mechanism.central else len(received)


def step_server(
    setup: Setup,
    state: RunState,
    received: Payload | FoldedMessages,
    aggregate: Tensor | None,
    view: ServerView,
) -> None:
    """Add central noise, and take the protocol's step; without an aggregate nothing moves."""
    step = view.step
    mechanism = setup.plugins.mechanism
    noise = setup.secret.key("mechanism", step)
    aggregate, state.mechanism = noised(
        mechanism, aggregate, received, view, noise, state.mechanism
    )
    if aggregate is None:
        return
    n = announced(mechanism, received, view)
    key = setup.secret.key("server", step)
    protocol = setup.plugins.protocol
    state.server = hooks.server_step(protocol, setup.shared, state.server, aggregate, n, key)
