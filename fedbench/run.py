"""START HERE: one round, in the order things happen, and the run that repeats it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fedbench import threat
from fedbench.api import Memory, ServerView
from fedbench.evaluate import Score
from fedbench.layout import Tree
from fedbench.payload import Payload
from fedbench.record import Record, Round
from fedbench.report import entropy_bits, is_looked_at, judge, judge_locals, looked_at, report
from fedbench.scenario import Scenario
from fedbench.setup import Setup, prepare
from fedbench.training import Client
from fedbench.wire import Packet

Progress = Callable[[Round], None]


@dataclass(eq=False)
class World:
    """What changes from round to round.

    Args:
        state: The server's.
        rule: The defense's.
        adversary: What the attack remembers.
        clients: What each client that took part remembers.
        score: Of what was deployed when the test data was last looked at.
        locals: Accuracy of each benign client's own model, as it last sent it.
    """

    state: Any
    rule: Any = None
    adversary: threat.Minds = field(default_factory=dict)
    clients: dict[int, Memory] = field(default_factory=dict)
    score: Score | None = None
    locals: dict[int, float] = field(default_factory=dict)


def play(
    scenario: Scenario,
    *,
    device: str = "auto",
    executor: str = "auto",
    chunk: int = 32,
    progress: Progress | None = None,
) -> Record:
    """Play a scenario from the first round to the last.

    Args:
        scenario: What to play.
        device: ``auto``, ``cpu`` or ``cuda``.
        executor: ``loop``, ``stacked``, or ``auto`` by device.
        chunk: Clients that the stacked executor trains at once.
        progress: Called after each round.

    Raises:
        ConfigError: the scenario names something that cannot be had or does not fit.
    """
    start = time.perf_counter()
    setup = prepare(scenario, device, executor, chunk)
    world = World(setup.plugins.protocol.init(setup.shared))
    rounds = []
    for step in range(setup.scenario.rounds):
        rounds.append(play_round(setup, world, step))
        if progress is not None:
            progress(rounds[-1])
    assert world.score is not None  # the last round is always looked at
    return report(setup, world.state, world.score, rounds, time.perf_counter() - start)


def play_round(setup: Setup, world: World, step: int) -> Round:
    """One round. ``world`` is what it was, one round later."""
    scenario, shared, key = setup.scenario, setup.shared, setup.key
    protocol, attack = setup.plugins.protocol, setup.plugins.attack
    defense, mechanism = setup.plugins.defense, setup.plugins.mechanism

    # 1  the server samples clients and sends; they get what the bytes say
    order = key.fold("sample", step).permutation(scenario.clients)
    ids = order[: scenario.per_round].tolist()
    sent_down = protocol.broadcast(shared, world.state, ids, key.fold("broadcast", step))
    down = sent_down.encode()
    broadcast, _ = type(sent_down).decode(down, sent_down.spec, shared.device)
    assert broadcast is not None

    # 2  every client trains, the malicious ones as if honest unless the attack is one of training
    trees = [protocol.receive(shared, broadcast.take([row])) for row in range(len(broadcast))]
    clients = [
        train_from(setup, world, trees[row % len(trees)], i, step) for row, i in enumerate(ids)
    ]
    keys = [client.key for client in clients]
    updates, memories = setup.executor.train(clients)

    # 3  mechanism and compression: from here on only the alphabet exists
    updates = mechanism.on_updates(updates, [client.tree for client in clients], keys)
    honest, remembered = protocol.message(shared, updates, keys, memories)
    honest = mechanism.on_payload(honest, keys)
    world.clients |= dict(zip(ids, remembered, strict=True))
    if world.rule is None:
        world.rule = defense.init(honest.spec)

    # 4  the adversary rewrites its own rows, and no others
    malicious = setup.malicious[torch.tensor(ids)]
    rows = malicious.nonzero()[:, 0]
    weights = setup.sizes[ids] if protocol.weighted else torch.ones(len(ids), dtype=torch.float64)
    view = ServerView(weights, broadcast, step, key.fold("defense", step))
    situation = threat.Situation(
        honest=honest,
        updates=updates,
        rows=rows,
        ids=[ids[row] for row in rows.tolist()],
        codec=threat.own_codec(protocol, shared, keys, memories),
        memories=memories,
        state=world.state,
        defense=defense,
        defense_state=world.rule,
        view=view,
        key=key.fold("adversary", step),
    )
    packets, notes = threat.forge(attack, situation, world.adversary)

    # 5  the wire: the server gets what the bytes say, and rejects what is not legal
    received, accepted = receive(setup, honest, packets)

    # 6, 7  the rule estimates the honest mean, the protocol takes its step
    skipped = received is None or len(received) < defense.rows_needed()
    effect: Any = {}
    if received is not None and not skipped:
        accepted_view = view.take(accepted)
        aggregate, rule = defense.aggregate(received, world.rule, accepted_view)
        effect = threat.effect(situation, received, accepted, aggregate)
        noise = key.fold("mechanism", step)
        aggregate = mechanism.on_aggregate(aggregate, defense, accepted_view, noise)
        world.state = protocol.server_step(
            shared, world.state, aggregate, len(received), key.fold("server", step)
        )
        world.rule = rule

    # 8  what is deployed now is judged, and what travelled is counted
    looked = is_looked_at(scenario, step)
    if looked:
        world.score = judge(setup, world.state, step)
    world.locals = judge_locals(setup, world.locals, ids, broadcast, honest)
    benign_bits = [packet.bits for packet, bad in zip(packets, malicious, strict=True) if not bad]
    downlink = sum(packet.bits for packet in down) * (len(ids) // len(down))  # 1 or n rows
    return Round(
        step=step,
        clients=ids,
        malicious=int(malicious.sum()),
        accepted=int(accepted.sum()),
        rejected_honest=int((~accepted & ~malicious).sum()),
        rejected_malicious=int((~accepted & malicious).sum()),
        skipped=skipped,
        uplink_bits=sum(packet.bits for packet in packets),
        benign_uplink_bits=sum(benign_bits),
        downlink_bits=downlink,
        notes=notes,
        entropy_bits=entropy_bits(honest, ~malicious),
        local_accuracy=statistics.fmean(world.locals.values()) if world.locals else None,
        **(looked_at(world.score) if looked and world.score else {}),
        **effect,
    )


def train_from(setup: Setup, world: World, tree: Tree, i: int, step: int) -> Client:
    """Client ``i`` of this round: its data, its memory, and who may touch its training."""
    protocol, attack = setup.plugins.protocol, setup.plugins.attack
    key = setup.key.fold("client", step, i)
    x, y = setup.data.floats(setup.train[i]), setup.data.y[setup.train[i]]
    malicious = bool(setup.malicious[i])
    if malicious:
        x, y = attack.poison(x, y, key.fold("poison"))
    return Client(
        tree=tree,
        x=x,
        y=y,
        key=key,
        memory=world.clients.get(i) or protocol.memory(setup.shared),
        wrap_grad=attack.wrap_grad if malicious else setup.plugins.mechanism.wrap_grad,
    )


def receive(setup: Setup, honest: Payload, packets: list[Packet]) -> tuple[Payload | None, Tensor]:
    """The rows that decode and pass the server's checks (None: no row), and which those are."""
    received, accepted = type(honest).decode(packets, honest.spec, setup.shared.device)
    if received is not None:
        good = received.passes(setup.scenario.server_checks)
        accepted[accepted.clone()] = good
        received = received.take(good.nonzero()[:, 0]) if bool(good.any()) else None
    return received, accepted
