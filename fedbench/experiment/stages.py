"""Stages of a round: what is sent, compressed, crafted, received, aggregated, remembered."""

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fedbench.adversary import threat_model
from fedbench.adversary.training import train, trained_by
from fedbench.api import Defense, Mechanism, ServerView, hooks
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


def messages(
    setup: Setup,
    state: RunState,
    ids: Sequence[int],
    trained: Trained,
    made: Made | None,
    idle: Tensor,
    broadcast: Payload,
    step: int,
) -> tuple[Tensor, Payload]:
    """Protect and compress what was trained; return the updates ``(n, d)`` and ``n`` messages.

    Messages that were ``made`` already, by the processes that train, are only protected. The first
    ones say what the rule's state is made of.
    """
    mechanism = setup.plugins.mechanism
    updates, memories = trained
    noise = [setup.secret.key("privacy", step, i) for i in ids]  # handed to no protocol
    complies = ~setup.noncompliant(ids)
    if made is None:
        updates, state.mechanism = protect_updates(
            mechanism, updates, idle, noise, complies, state.mechanism
        )
        keys = setup.keys(ids, step)
        honest, remembered = compress(
            setup.plugins.protocol, setup.shared, updates, keys, memories, broadcast
        )
    else:
        honest = made.messages
        remembered = made.memories
    state.memories.update(zip(ids, remembered, strict=True))
    honest = protect_payload(mechanism, honest, noise, complies)
    if state.defense is None:
        state.defense = Hook(setup.plugins.defense, "init", step).returned(object, honest.spec)
    return updates, honest


def attack_context(
    setup: Setup,
    state: RunState,
    clients: Sequence[Client],
    trained: Trained,
    updates: Tensor,
    honest: Payload,
    idle: Tensor,
    owned: threat_model.OwnedRows,
    view: ServerView,
    part: threat_model.Part | None = None,
) -> threat_model.AttackContext:
    """Return what the round, or a part of it, looks like before the adversary moves.

    Its own training is done. What its clients learn before that training becomes the state's.
    """
    attack = setup.attack(view.step)
    protocol = setup.plugins.protocol
    _, memories = trained
    keys = dict(zip(owned.rows.tolist(), setup.keys(owned.ids, view.step), strict=True))
    recruits, extra = setup.recruited(owned, clients, state.memories, honest, view.step)
    worked = Counter() if recruits is None else Counter(recruited=extra)
    context = threat_model.AttackContext(
        honest=honest,
        updates=updates,
        idle=idle,
        owned=owned,
        codec=threat_model.own_codec(protocol, setup.shared, keys, memories),
        memories=memories,
        server=state.server,
        defense=setup.plugins.defense,
        defense_state=state.defense,
        view=view,
        rehearse=partial(setup.rehearse, state.server, view.step),
        recruits=recruits,
        worked=worked if part is None else part.worked,
        part=part,
        checks=setup.scenario.server_checks,
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


def heard_by_all(setup: Setup, server: Any, ids: Sequence[int], trees: Sequence[Any]) -> bool:
    """True if all clients were sent the same; a broadcast of one row may be for a single client."""
    if len(trees) > 1 or len(ids) > 1:
        return len(trees) == 1
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
    defense: Defense[Any],
    received: Payload | FoldedMessages | KeptMessages,
    state: RunState,
    view: ServerView,
    queried: bool,
    answer: Callable[..., tuple[Tensor, Any]] = hooks.aggregate,
) -> Tensor:
    """Return ``(k,)``: the defense's estimate of the honest mean; its state becomes the next one.

    A state that is ``queried`` again, by `effect`, is copied first.
    """
    before = hooks.copied(defense, "aggregate", state.defense) if queried else state.defense
    aggregate, state.defense = answer(defense, received.copied(), before, view.copied())
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


def step_server(
    setup: Setup,
    state: RunState,
    received: Payload | FoldedMessages,
    aggregate: Tensor | None,
    view: ServerView,
) -> None:
    """Add central noise, and take the protocol's step; without an aggregate nothing moves."""
    step = view.step
    noise = setup.secret.key("mechanism", step)
    aggregate, state.mechanism = noised(
        setup.plugins.mechanism, aggregate, received, view, noise, state.mechanism
    )
    if aggregate is None:
        return
    n = setup.announced(received)
    key = setup.secret.key("server", step)
    protocol = setup.plugins.protocol
    state.server = hooks.server_step(protocol, setup.shared, state.server, aggregate, n, key)
