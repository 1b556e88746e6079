"""START HERE: one round, in the order things happen, and the run that repeats it."""

import dataclasses
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.profiler import record_function as span

from fedbench.adversary import threat_model
from fedbench.adversary.metrics import detection, effect
from fedbench.api import Defense, ServerView, hooks
from fedbench.core import registry
from fedbench.core.blame import Hook, ask
from fedbench.core.choices import SUMS
from fedbench.core.copies import sent
from fedbench.core.devices import now
from fedbench.core.errors import require
from fedbench.core.settings import Settings, note, restored_after
from fedbench.core.tiling import finite_rows
from fedbench.data.datasets import Data
from fedbench.executors.factory import require_one_place
from fedbench.executors.training import Client, Made, Trained
from fedbench.experiment.callbacks import Callbacks, Follower, followed
from fedbench.experiment.checkpoints import Checkpoint, Keeper
from fedbench.experiment.commitments import commit, keep
from fedbench.experiment.deployed import DeployedModel
from fedbench.experiment.evaluation import (
    evaluate,
    final_model,
    is_evaluated,
    local_accuracies,
)
from fedbench.experiment.guarantee import spend
from fedbench.experiment.measurements import Round
from fedbench.experiment.prepare import choose_device, prepare
from fedbench.experiment.record import Record
from fedbench.experiment.record_builder import build_record, entropy_bits, evaluated, traffic
from fedbench.experiment.remote import on_cluster
from fedbench.experiment.scenario import Scenario
from fedbench.experiment.setup import Setup
from fedbench.experiment.state import RunState
from fedbench.isolation.stand_ins import Isolation
from fedbench.payload import Payload, masked_packets, sum_of_packets, summands
from fedbench.payload.packets import Packet
from fedbench.privacy.clients import compress, protect_payload, protect_updates


def play(
    scenario: Scenario,
    *,
    device: str = "auto",
    executor: str = "auto",
    chunk: int = 32,
    callbacks: Sequence[Follower] = (),
    data: Data | None = None,
    isolate: bool = False,
    canonical: bool = False,
    states: Path | None = None,
    checkpoint: Checkpoint | None = None,
    deliver: Callable[[DeployedModel], None] | None = None,
) -> Record:
    """Play a scenario from the first round to the last.

    Process-wide settings that a plug-in changes are restored at the end, and a flag of the record
    says so. Nothing limits how long a hook may take: `fedbench.sweep` does, in a process that it
    can end.

    Args:
        scenario: The scenario to play.
        device: ``auto``, ``cpu``, ``cuda``, or a backend that a package registers with torch.
        executor: ``loop``, ``stacked``, ``padded``, ``recorded``, or ``auto``: the fastest one.
            ``ray`` or ``ray:NAME``: that one in the processes of a cluster
            (`fedbench.experiment.remote`).
        chunk: Clients that the stacked executor trains at once, and the most of a cluster's task.
        callbacks: Followers of the run: objects of `Callback`, or functions that are called with
            each `Round`. What one raises ends the run.
        data: Samples to play on, by default the data set that the scenario names. The id of the
            record covers them unless they are that data set as `load_pool` gave it.
        isolate: Play attack and defense in processes of their own, which hold nothing but what
            they are shown (`fedbench.isolation`). The record is the same.
        canonical: Have the same numbers on every processor: on the CPU, client after client, in a
            process that was started for it (`fedbench.core.canonical`).
        states: Folder that keeps the state before each round of a canonical run, for spot checks.
        checkpoint: File that keeps what the run needs to go on after it was killed, and how often.
            A run that finds its own there goes on from it; followers are told of its earlier rounds
            again. It stays until whoever has stored the record removes it.
        deliver: Called with the model that is deployed after the last round.

    Raises:
        ConfigError: the scenario names something that cannot be had or does not fit.
        PluginError: a plug-in raised, or returned what it must not.
    """
    require("states", states, states is None or canonical, "left out without canonical")
    require_one_place(executor, isolate)
    followers = Callbacks(callbacks)
    start = now()
    choose_device(device)  # changes settings, too, which later runs on the device need
    restore = Settings().restore
    with restored_after(restore), Isolation() if isolate else nullcontext() as isolation:
        load = registry.load if isolation is None else isolation.load
        setup = prepare(scenario, device, executor, chunk, data, load, canonical)
        with on_cluster(setup, executor, chunk) as setup, followed(followers, setup.scenario):
            state = begin(setup)
            rounds: list[Round] = []
            keeper = None if checkpoint is None else Keeper(checkpoint, setup, start)
            if keeper is not None:
                setup, state, rounds = keeper.resume(state, chooses=executor == "auto")
                start -= keeper.seconds
            for each in rounds:
                followers.round(setup.scenario, each)
            for step in range(len(rounds), setup.scenario.rounds):
                with hooks.in_round(step):
                    rounds.append(play_round(setup, state, step))
                if states is not None and step + 1 < setup.scenario.rounds:
                    keep(states, setup, state, step + 1)
                if keeper is not None:
                    keeper.after(state, rounds)
                followers.round(setup.scenario, rounds[-1])
            if deliver is not None:
                deliver(final_model(setup, state.server))
            seconds = now(setup.shared.device) - start
            record = build_record(setup, state, rounds, seconds, note(restore()))
        followers.finished(record)
        return record


def begin(setup: Setup) -> RunState:
    """Return the state before the first round."""
    return RunState(
        server=ask(setup.plugins.protocol, "init", object, setup.shared),
        mechanism=ask(setup.plugins.mechanism, "init", object),
    )


def play_round(setup: Setup, state: RunState, step: int) -> Round:
    """Play one round; ``state`` becomes what it is one round later."""
    plugins = setup.plugins

    # 1  the server samples clients and sends; they get what the bytes say, and some drop out
    with span("broadcast"):
        asked = setup.sample(step)
        down, broadcast = send(setup, state.server, asked, step)
        state.server = ask(plugins.protocol, "heard", object, state.server, asked)
        places = setup.arriving(asked, step)
        ids = [asked[place] for place in places]
        if len(broadcast) > 1:  # a message for each
            broadcast = broadcast.take(places or [0])
        rows = [broadcast.take([row]) for row in range(len(broadcast))]
        trees = [ask(plugins.protocol, "receive", dict, setup.shared, row) for row in rows]

    # 2  every client trains, the malicious ones as if honest
    with span("train"):
        clients = setup.clients(ids, trees, state.memories, step)
        trained, made = setup.executor.exchange(clients)

    # 3  mechanism and compression: from here on only the alphabet exists
    with span("compress"):
        idle = ask(plugins.protocol, "idle", Tensor, setup.shared, broadcast)
        updates, honest = messages(setup, state, ids, trained, made, idle, broadcast, step)
        if state.defense is None:
            state.defense = Hook(plugins.defense, "init", step).returned(object, honest.spec)

    # 4  the adversary trains its clients once more, its own way, and rewrites its own rows only
    malicious = setup.population.malicious[ids]
    owned = setup.owned(ids, step)
    view = setup.view(ids, broadcast, step)
    with span("attack"):
        start = now(setup.shared.device)
        context = attack_context(setup, state, clients, trained, updates, honest, idle, owned, view)
        forged = threat_model.forge(setup.attack(step), context, state.adversary)
        state.attack_seconds += now(setup.shared.device) - start
        state.last_broadcast = trees[0] if heard_by_all(setup, state.server, ids, trees) else None

    # 5  the wire: the server gets what the bytes say, and rejects what is not legal
    with span("wire"):
        packets = forged.among(honest)
        received, accepted = honest.receive(
            packets, setup.scenario.server_checks, setup.shared.device
        )
        sent = behind_masks(setup, packets, received, accepted, step)
        remember(setup, state, ids, received, accepted)

    # 6, 7  the defense estimates the honest mean, the protocol takes its step
    with span("defend"):
        view = view.take(accepted)
        ready = ask(plugins.defense, "ready", bool, view.copied())
        aggregate = None
        achieved = {}
        if ready:
            aggregate = defend(plugins.defense, received, state, view, queried=bool(len(owned)))
            with span("evaluate"):
                achieved = effect(context, received, accepted, aggregate)
                achieved |= detection(view.findings, aggregate, setup.hostile(ids, step)[accepted])
    with span("server step"):
        step_server(setup, state, received, aggregate, view)

    # 8  what was given away is priced, what travelled is counted, what is deployed is evaluated
    spend(setup, state.ledger, ids, ~setup.noncompliant(ids))
    with span("evaluate"):
        if is_evaluated(setup.scenario, step):
            state.score = evaluate(setup, state.server, step, state.learned)
            achieved |= evaluated(setup, state)
        own = local_accuracies(setup, state.local_accuracies, ids, broadcast, honest)
        state.local_accuracies = own

    # 9  a canonical run commits to what arrived and to what it goes on with
    with span("commit"):
        commitment = commit(setup, state, step, ids, packets, accepted)
    return Round(
        step=step,
        clients=ids,
        dropped=len(asked) - len(ids),
        skipped=not ready,
        entropy_bits=entropy_bits(honest, ~malicious),
        local_accuracy=statistics.fmean(own.values()) if own else None,
        commitment=commitment,
        **forged.fields,
        **achieved,
        **traffic(setup, sent, down, len(asked), accepted, malicious),
    )


def send(setup: Setup, server: Any, ids: Sequence[int], step: int) -> tuple[list[Packet], Payload]:
    """Return the packets that the server sends to the clients ``ids``, and what they decode to."""
    key = setup.secret.key("broadcast", step)
    sent = hooks.broadcast(setup.plugins.protocol, setup.shared, server, ids or [0], key)
    packets = sent.encode()
    received, _ = type(sent).decode(packets, sent.spec, setup.shared.device)
    assert received is not None  # the server's own message is legal
    return packets, received


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

    Messages that were ``made`` where clients train are protected alone.
    """
    mechanism = setup.plugins.mechanism
    updates, memories = trained
    noise = [setup.secret.key("privacy", step, i) for i in ids]  # handed to no protocol
    complies = ~setup.noncompliant(ids)
    if made is None:
        updates, state.mechanism = protect_updates(
            mechanism, updates, idle, noise, complies, state.mechanism
        )
        work = (setup.plugins.protocol, setup.shared, updates, setup.keys(ids, step), memories)
        made = compress(*work, broadcast)
    honest, remembered = made
    state.memories.update(zip(ids, remembered, strict=True))
    return updates, protect_payload(mechanism, honest, noise, complies)


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
) -> threat_model.AttackContext:
    """Return what the round looks like before the adversary moves, its own training done.

    What its clients learn before that training becomes the state's.
    """
    attack = setup.attack(view.step)
    protocol = setup.plugins.protocol
    _, memories = trained
    keys = dict(zip(owned.rows.tolist(), setup.keys(owned.ids, view.step), strict=True))
    recruits, extra = setup.recruited(owned, clients, state.memories, honest, view.step)
    context = threat_model.AttackContext(
        honest=honest,
        updates=updates,
        trained=updates[sent(owned.rows, updates.device)],
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
        worked=Counter() if recruits is None else Counter(recruited=extra),
    )
    state.learned = threat_model.learn(attack, context, state.learned)
    local = (owned, state.last_broadcast, view.step, state.learned)
    own = threat_model.train(attack, setup.executor, clients, updates, *local)
    return dataclasses.replace(context, trained=own)


def heard_by_all(setup: Setup, server: Any, ids: Sequence[int], trees: Sequence[Any]) -> bool:
    """True if all clients were sent the same; a broadcast of one row may be for a single client."""
    if len(trees) > 1 or len(ids) > 1:
        return len(trees) == 1
    pair = [*(ids or [0])] * 2
    key = setup.secret.key("audience")
    return len(hooks.broadcast(setup.plugins.protocol, setup.shared, server, pair, key)) == 1


def behind_masks(
    setup: Setup, packets: list[Packet], received: Payload, accepted: Tensor, step: int
) -> list[Packet]:
    """Return the packets that travel: masked residues where ``sees`` is a secure sum.

    The server decodes and adds them up, which must give the sum of what it ``received``: a rule
    that is allowed there reads no more of it. A message that was rejected is in no sum.
    """
    if setup.sees not in SUMS:
        return packets
    numbers = summands(received, len(packets))
    masked = masked_packets(numbers, setup.secret.key("secure sum", step))
    expected = numbers.x.sum(dim=0).cpu() % numbers.modulus
    assert torch.equal(sum_of_packets(masked, numbers.spec), expected)
    arrived = dict(zip(accepted.nonzero()[:, 0].tolist(), masked, strict=True))
    return [arrived.get(row, packet) for row, packet in enumerate(packets)]


def remember(
    setup: Setup, state: RunState, ids: Sequence[int], received: Payload, accepted: Tensor
) -> None:
    """Write what arrived into `Protocol.agreed`, where both ends remember it.

    A message that was rejected, or whose values are not finite, changes nothing at either end.
    """
    name = setup.plugins.protocol.agreed
    if name is None:
        return
    values = received.values()
    arrived = [ids[row] for row in accepted.nonzero()[:, 0].tolist()]
    for i, row, finite in zip(arrived, values, finite_rows(values).tolist(), strict=True):
        if finite:
            state.memories[i] = state.memories[i] | {name: row.clone()}


def defend(
    defense: Defense[Any], received: Payload, state: RunState, view: ServerView, queried: bool
) -> Tensor:
    """``(k,)``: the defense's estimate of the honest mean; its state becomes the next one.

    A state that is ``queried`` again, by `effect`, is copied first.
    """
    before = hooks.copied(defense, "aggregate", state.defense) if queried else state.defense
    aggregate, state.defense = hooks.aggregate(defense, received.copied(), before, view.copied())
    return aggregate


def step_server(
    setup: Setup, state: RunState, received: Payload, aggregate: Tensor | None, view: ServerView
) -> None:
    """Add central noise, and take the protocol's step; without an aggregate nothing moves.

    A mechanism that promised central noise adds it to a skipped round's nothing, too.
    """
    mechanism = setup.plugins.mechanism
    if aggregate is None:
        if not mechanism.central:
            return
        aggregate = received.values().new_zeros(received.values().shape[1])
    step = view.step
    aggregate, state.mechanism = hooks.on_aggregate(
        mechanism, aggregate, received, view, setup.secret.key("mechanism", step), state.mechanism
    )
    given = (aggregate, setup.announced(received), setup.secret.key("server", step))
    protocol = setup.plugins.protocol
    state.server = ask(protocol, "server_step", object, setup.shared, state.server, *given)
