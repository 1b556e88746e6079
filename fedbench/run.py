"""START HERE: one round, in the order things happen, and the run that repeats it."""

import dataclasses
import statistics
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.profiler import record_function as span

from fedbench.adversary import threat_model
from fedbench.adversary.metrics import Arrivals, detection, effect
from fedbench.adversary.threat_model import OwnedRows
from fedbench.api import ServerView, hooks
from fedbench.core import registry
from fedbench.core.blame import ask
from fedbench.core.devices import now
from fedbench.core.errors import require
from fedbench.core.settings import SettingsSnapshot, note, restored_after
from fedbench.data.datasets import Data
from fedbench.executors.factory import require_one_place
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
from fedbench.experiment.record_builder import (
    build_record,
    entropy_bits,
    evaluation_fields,
    traffic,
)
from fedbench.experiment.remote import on_cluster
from fedbench.experiment.scenario import Scenario
from fedbench.experiment.setup import Setup
from fedbench.experiment.stages import (
    Exchange,
    Training,
    attack_context,
    behind_masks,
    defend,
    heard_by_all,
    honest_messages,
    participants,
    remember,
    send,
    step_server,
)
from fedbench.experiment.state import RunState
from fedbench.experiment.streamable import streams
from fedbench.experiment.streamed import exchange_in_parts
from fedbench.isolation.stand_ins import Isolation


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
    stream: bool | None = None,
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
        chunk: Most clients that train in lock step, or that are a task of a cluster.
        callbacks: Followers of the run: objects of `Callback`, or functions that are called with
            each `Round`. What one raises ends the run.
        data: Samples to play on, by default the data set that the scenario names. The id of the
            record covers them unless they are that data set as `load_pool` gave it.
        isolate: Play attack and defense in processes of their own, which hold nothing but what
            they are shown (`fedbench.isolation`). The record is the same.
        canonical: Have the same numbers on every processor: on the CPU, client after client, in a
            process that was started for it (`fedbench.core.canonical`).
        states: Folder that keeps the state before each round but the first of a canonical run, for
            spot checks.
        checkpoint: File that keeps what the run needs to go on after it was killed, and how often.
            A run that finds its own there goes on from it; followers are told of its earlier rounds
            again. It stays until whoever has stored the record removes it.
        stream: Add messages up as they come, ``chunk`` clients at a time, so that memory does not
            grow with the cohort; None: where a round takes gigabytes, if rule and attack permit it.
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
    restore = SettingsSnapshot().restore
    with restored_after(restore), Isolation() if isolate else nullcontext() as isolation:
        load = registry.load if isolation is None else isolation.load
        setup = prepare(scenario, device, executor, chunk, data, load, canonical)
        if streams(setup, stream):
            setup = dataclasses.replace(setup, at_once=chunk)
        with on_cluster(setup, executor, chunk) as setup, followed(followers, setup.scenario):
            state = begin(setup)
            rounds: list[Round] = []
            keeper = None if checkpoint is None else Keeper(checkpoint, setup, start)
            if keeper is not None:
                setup, state, rounds = keeper.resume(state, chooses=executor == "auto")
                start -= keeper.seconds
            for past_round in rounds:
                followers.round(setup.scenario, past_round)
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
        ids, broadcast = participants(setup, asked, broadcast, step)
    malicious = setup.population.malicious[ids]
    owned = setup.owned(ids, step)
    view = setup.view(ids, broadcast, step, state.memories)

    # 2 to 5  clients train, compress and send, and the adversary rewrites its own rows
    if setup.at_once is None:
        exchange = exchange_at_once(setup, state, ids, owned, view, len(asked))
    else:  # they do not fit in memory together
        exchange = exchange_in_parts(setup, state, ids, owned, view)
    arrivals = exchange.arrivals
    accepted = arrivals.accepted

    # 6  the defense estimates the honest mean
    with span("defend"):
        shown = view.take(accepted)
        ready = ask(plugins.defense, "ready", bool, shown.copied())
        aggregate = None
        measured: dict[str, Any] = {}
        if ready:
            before = state.defense
            aggregate = defend(setup, state, arrivals.for_rule, shown, queried=bool(len(owned)))
            with span("evaluate"):
                if len(owned):
                    answer = setup.executor.aggregate
                    measured = effect(arrivals, plugins.defense, before, view, aggregate, answer)
                attacking = setup.attacking(ids, step)[accepted]
                measured |= detection(shown.findings, aggregate, attacking)

    # 7  the protocol takes its step
    with span("server step"):
        step_server(setup, state, arrivals.received, aggregate, shown)

    # 8  what was given away is priced, what travelled is counted, what is deployed is evaluated
    spend(setup, state.ledger, ids, ~setup.noncompliant(ids))
    with span("evaluate"):
        if is_evaluated(setup.scenario, step):
            state.score = evaluate(setup, state.server, step, state.learned)
            measured |= evaluation_fields(setup, state)
    local = state.local_accuracies.values()

    # 9  a canonical run commits to what arrived and to what it goes on with
    with span("commit"):
        commitment = commit(setup, state, step, ids, exchange.packets, accepted)
    return Round(
        step=step,
        clients=ids,
        dropped=len(asked) - len(ids),
        skipped=not ready,
        local_accuracy=statistics.fmean(local) if local else None,
        commitment=commitment,
        **exchange.fields,
        **measured,
        **traffic(setup, exchange.bits, down, len(asked), accepted, malicious),
    )


def exchange_at_once(
    setup: Setup,
    state: RunState,
    ids: list[int],
    owned: OwnedRows,
    view: ServerView,
    asked: int,
) -> Exchange:
    """Have the clients ``ids`` train and send all at once; ``asked`` counts drop-outs, too."""
    protocol = setup.plugins.protocol
    device = setup.shared.device
    broadcast = view.broadcast
    step = view.step
    with span("broadcast"):
        rows = [broadcast.take([row]) for row in range(len(broadcast))]
        trees = [ask(protocol, "receive", dict, setup.shared, row) for row in rows]

    # 2  every client trains, the malicious ones as if honest
    with span("train"):
        clients = setup.clients(ids, trees, state.memories, step)
        training = Training(range(len(ids)), ids, view, clients, setup.executor.begin(clients))
        trained, made = training.wait()

    # 3  mechanism and compression: from here on only the alphabet exists
    with span("compress"):
        idle = ask(protocol, "idle", Tensor, setup.shared, broadcast)
        honest = honest_messages(setup, state, training, trained, made, idle)

    # 4  the adversary trains its clients once more, its own way, and rewrites its own rows only
    with span("attack"):
        start = now(device)
        context = attack_context(setup, state, honest, owned)
        forged = threat_model.forge(setup.attack(step), context, state.adversary)
        state.attack_seconds += now(device) - start
        alike = heard_by_all(setup, state.server, ids, broadcast)
        state.last_broadcast = trees[0] if alike else None

    # 5  the wire: the server gets what the bytes say, and rejects what is not legal
    with span("wire"):
        packets = forged.among(honest.messages)
        received, accepted = honest.messages.receive(packets, setup.scenario.server_checks, device)
        travelled = behind_masks(setup, packets, received, accepted, asked, step)
        remember(setup, state, ids, received, accepted)
    with span("evaluate"):
        state.local_accuracies = local_accuracies(
            setup, state.local_accuracies, ids, broadcast, honest.messages
        )
        arrivals = Arrivals.of(context, received, accepted)
    benign = ~setup.population.malicious[ids]
    fields = forged.fields | {"entropy_bits": entropy_bits(honest.messages, benign)}
    return Exchange(arrivals, packets, [packet.bits for packet in travelled], fields)
