"""START HERE: one round, in the order things happen, and the run that repeats it."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from fedbench.adversary import threat_model
from fedbench.adversary.metrics import effect, noted, verdict
from fedbench.api import Memory, hooks
from fedbench.core import registry
from fedbench.core.blame import Hook, ask
from fedbench.core.settings import kept, note
from fedbench.core.trees import Tree
from fedbench.data.dataset import Data
from fedbench.executors.multi_run import now, settings_restorer
from fedbench.experiment.evaluation import Score
from fedbench.experiment.guarantee import spend
from fedbench.experiment.measurements import Round
from fedbench.experiment.prepare import Setup, choose_device, prepare
from fedbench.experiment.record import Record
from fedbench.experiment.record_builder import (
    entropy_bits,
    is_looked_at,
    judge,
    judge_locals,
    looked_at,
    report,
    travelled,
)
from fedbench.experiment.scenario import Scenario
from fedbench.isolation.stand_ins import Isolation
from fedbench.privacy.clients import compress, protect_payload, protect_updates
from fedbench.privacy.ledger import Ledger

Progress = Callable[[Round], None]


@dataclass(eq=False)
class RunState:
    """What changes from round to round.

    Args:
        state: The server's.
        rule: The defense's.
        adversary: What the attack remembers.
        clients: What each client that took part remembers.
        score: Of what was deployed when the test data was last looked at.
        locals: Accuracy of each benign client's own model, as it last sent it.
        mechanism: The mechanism's state.
        ledger: What the clients' data has given away so far.
        before: What all clients received in the last round; None where each got its own.
        attack_seconds: Time that the adversary took.
    """

    state: Any
    rule: Any = None
    adversary: threat_model.AdversaryMemory = field(default_factory=dict)
    clients: dict[int, Memory] = field(default_factory=dict)
    score: Score | None = None
    locals: dict[int, float] = field(default_factory=dict)
    mechanism: Any = None
    ledger: Ledger = field(default_factory=Ledger)
    before: Tree | None = None
    attack_seconds: float = 0.0


def play(
    scenario: Scenario,
    *,
    device: str = "auto",
    executor: str = "auto",
    chunk: int = 32,
    progress: Progress | None = None,
    data: Data | None = None,
    isolate: bool = False,
) -> Record:
    """Play a scenario from the first round to the last.

    Process-wide settings that a plug-in changes are restored at the end, and a flag of the record
    says so. Nothing limits how long a hook may take: `fedbench.sweep` does, in a process that it
    can end.

    Args:
        scenario: What to play.
        device: ``auto``, ``cpu`` or ``cuda``.
        executor: ``loop``, ``stacked``, ``forked``, or ``auto``: the faster one of two.
        chunk: Clients that the stacked executor trains at once.
        progress: Called after each round.
        data: Samples to play on, by default the data set that the scenario names. The id of the
            record covers them unless they are that data set as `load_pool` gave it.
        isolate: Play attack and defense in processes of their own, which hold nothing but what
            they are shown (`fedbench.isolation`). The record is the same.

    Raises:
        ConfigError: the scenario names something that cannot be had or does not fit.
        PluginError: a plug-in raised, or returned what it must not.
    """
    start = now()
    choose_device(device)  # changes settings, too, which later runs on the device need
    restore = settings_restorer()
    with kept(restore), Isolation() if isolate else nullcontext() as isolation:
        load = registry.load if isolation is None else isolation.load
        setup = prepare(scenario, device, executor, chunk, data, load)
        world = RunState(ask(setup.plugins.protocol, "init", object, setup.shared))
        world.mechanism = ask(setup.plugins.mechanism, "init", object)
        rounds = []
        for step in range(setup.scenario.rounds):
            with hooks.in_round(step):
                rounds.append(play_round(setup, world, step))
            if progress is not None:
                progress(rounds[-1])
        return report(setup, world, rounds, now() - start, note(restore()))


def play_round(setup: Setup, world: RunState, step: int) -> Round:
    """One round. ``world`` is what it was, one round later."""
    scenario, shared, secret = setup.scenario, setup.shared, setup.secret
    protocol, attack = setup.plugins.protocol, setup.attack(step)
    defense, mechanism = setup.plugins.defense, setup.plugins.mechanism

    # 1  the server samples clients and sends; they get what the bytes say
    ids = setup.sample(step)
    key = secret.key("broadcast", step)
    sent_down = hooks.broadcast(protocol, shared, world.state, ids or [0], key)
    down = sent_down.encode()
    broadcast, _ = type(sent_down).decode(down, sent_down.spec, shared.device)
    assert broadcast is not None

    # 2  every client trains, the malicious ones as if honest
    rows_sent = [broadcast.take([row]) for row in range(len(broadcast))]
    trees = [ask(protocol, "receive", dict, shared, row) for row in rows_sent]
    clients = [
        setup.client(i, trees[row % len(trees)], world.clients.get(i), step)
        for row, i in enumerate(ids)
    ]
    keys, noise = [client.key for client in clients], setup.noise(ids, step)
    with Hook(protocol, "local_update"):
        updates, memories = setup.executor.train(clients)

    # 3  mechanism and compression: from here on only the alphabet exists
    keeps, idle = ~setup.noncompliant[ids], ask(protocol, "idle", Tensor, shared, broadcast)
    updates, world.mechanism = protect_updates(
        mechanism, updates, idle, noise, keeps, world.mechanism
    )
    honest, remembered = compress(protocol, shared, updates, keys, memories, broadcast)
    honest = protect_payload(mechanism, honest, noise, keeps)
    world.clients |= dict(zip(ids, remembered, strict=True))
    if world.rule is None:
        world.rule = Hook(defense, "init", step).returned(object, honest.spec)

    # 4  the adversary trains its clients once more, its own way, and rewrites its own rows only
    malicious, view, start = (
        setup.malicious[ids],
        setup.view(ids, broadcast, step),
        now(),
    )
    rows, executor = malicious.nonzero()[:, 0], setup.executor
    adversary, owned = secret.derive("adversary", step), [ids[row] for row in rows.tolist()]
    parts = setup.parts(ids)
    trained = threat_model.train(
        attack, executor, clients, updates, rows, parts, world.before, step, adversary, owned
    )
    situation = threat_model.AttackContext(
        honest=honest,
        updates=updates,
        trained=trained,
        idle=idle,
        rows=rows,
        ids=owned,
        codec=threat_model.own_codec(protocol, shared, keys, memories),
        memories=memories,
        state=world.state,
        defense=defense,
        defense_state=world.rule,
        view=view,
        secret=adversary,
    )
    forged = threat_model.forge(attack, situation, world.adversary, start)
    world.attack_seconds += forged.seconds
    world.before = trees[0] if len(trees) == 1 and heard_by_all(setup, world.state, ids) else None

    # 5  the wire: the server gets what the bytes say, and rejects what is not legal
    received, accepted = honest.receive(forged.packets, scenario.server_checks, shared.device)

    # 6, 7  the rule estimates the honest mean, the protocol takes its step
    view, achieved = view.take(accepted), {}
    enough = ask(defense, "ready", bool, view.copied())
    if enough:
        state = world.rule
        if len(rows):  # `effect` asks once more
            state = hooks.copied(defense, "aggregate", state)
        aggregate, world.rule = hooks.aggregate(defense, received.copied(), state, view.copied())
        achieved = effect(situation, received, accepted, aggregate)
        found = noted(view.findings, aggregate)
        achieved |= verdict(found, setup.hostile(ids, step)[accepted])
    if enough or mechanism.central:  # who has promised noise adds it to nothing, too
        aggregate = aggregate if enough else received.values().new_zeros(received.values().shape[1])
        key = secret.key("mechanism", step)
        aggregate, world.mechanism = hooks.on_aggregate(
            mechanism, aggregate, received, view, key, world.mechanism
        )
        told, key = setup.count(received), secret.key("server", step)
        world.state = ask(
            protocol, "server_step", object, shared, world.state, aggregate, told, key
        )

    # 8  what was given away is priced, what travelled is counted, what is deployed is judged
    spend(setup, world.ledger, ids, keeps)
    looked = is_looked_at(scenario, step)
    if looked:
        world.score = judge(setup, world.state, step)
    world.locals = judge_locals(setup, world.locals, ids, broadcast, honest)
    return Round(
        step=step,
        clients=ids,
        skipped=not enough,
        entropy_bits=entropy_bits(honest, ~malicious),
        local_accuracy=statistics.fmean(world.locals.values()) if world.locals else None,
        **forged.told,
        **achieved,
        **travelled(setup, honest, forged.packets, down, accepted, malicious),
        **(looked_at(setup, world) if looked else {}),
    )


def heard_by_all(setup: Setup, state: Any, ids: list[int]) -> bool:
    """True if everybody hears a broadcast of one row: it may be a single client's own."""
    if len(ids) > 1:
        return True
    twice, key = (ids or [0]) * 2, setup.secret.key("audience")
    return len(hooks.broadcast(setup.plugins.protocol, setup.shared, state, twice, key)) == 1
