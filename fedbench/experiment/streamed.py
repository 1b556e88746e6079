"""Rounds whose messages are added up as they come: sums do not grow with the cohort.

Rules that must look at each message again get its packet, which is decoded as often as they look.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.profiler import record_function as span

from fedbench.adversary import threat_model
from fedbench.adversary.looks import look
from fedbench.adversary.metrics import (
    NO_EFFECT,
    ForgedHeader,
    clean_answer,
    compared_headers,
    detection,
    gains,
    merged,
)
from fedbench.adversary.threat_model import AttackContext, OwnedRows, Part
from fedbench.api import Attack, ServerView
from fedbench.core.blame import ask
from fedbench.core.devices import now
from fedbench.core.tiling import all_finite, finite_rows
from fedbench.core.trees import Tree
from fedbench.executors.training import Client, Made, Trained
from fedbench.experiment.evaluation import evaluate, is_evaluated, local_accuracies
from fedbench.experiment.guarantee import spend
from fedbench.experiment.measurements import Round
from fedbench.experiment.record_builder import entropy_bits, evaluated, traffic
from fedbench.experiment.setup import Setup
from fedbench.experiment.stages import (
    attack_context,
    defend,
    heard_by_all,
    messages,
    participants,
    remember,
    send,
    step_server,
)
from fedbench.experiment.state import RunState
from fedbench.experiment.streamable import needs_sums
from fedbench.payload import (
    FoldedMessages,
    KeptMessages,
    Payload,
    identical,
)
from fedbench.payload.kept import Filed, PacketFile
from fedbench.payload.packets import Packet

FORGED = 4  # so many times fewer are forged at once: an attack holds floats, and copies of them


@dataclass(eq=False)
class Sums:
    """Sums of the messages of a round, and a few numbers of each, which are all that is left.

    Args:
        n: Clients of the round.
        keeps: Whether the rule needs more than the sums, so that packets are kept.
    """

    n: int
    keeps: bool
    honest: FoldedMessages | None = None  # of all clients, the malicious ones' as if honest
    received: FoldedMessages | None = None  # that were accepted
    seen: FoldedMessages | None = None  # honest ones that a colluding adversary may read
    shown: list[Filed] = field(default_factory=list)  # packets of these, if it asks for them
    bits: list[int] = field(default_factory=list)
    accepted: Tensor = field(init=False)
    entropy: list[float] = field(default_factory=list)
    headers: list[dict[str, ForgedHeader]] = field(default_factory=list)
    arrived: dict[int, Filed] = field(default_factory=dict)  # of each row that was accepted
    meant: dict[int, Filed] = field(default_factory=dict)  # of each row, as if it were honest
    changed: bool = False  # whether the server got anything but honest messages
    notes: dict[str, Any] = field(default_factory=dict)
    trace: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.bits = [0] * self.n
        self.accepted = torch.zeros(self.n, dtype=torch.bool)

    @cached_property
    def file(self) -> PacketFile:
        """File of the packets, which is there once one is kept."""
        return PacketFile()


def added(sums: FoldedMessages | None, more: FoldedMessages) -> FoldedMessages:
    """Return the sums of both, or these alone if there are none yet."""
    return more if sums is None else sums + more


@dataclass(frozen=True, eq=False)
class Begun:
    """Clients of a round that train, or will once they are waited for."""

    rows: list[int]  # of the round
    ids: list[int]
    broadcast: Payload  # of all of them, or one row for each
    clients: Sequence[Client]
    exchanged: Callable[[], tuple[Trained, Made | None]]


@dataclass(frozen=True, eq=False)
class Honest:
    """Honest messages of some clients of a round, and all that they were made of."""

    rows: list[int]  # of the round
    ids: list[int]
    clients: Sequence[Client]
    trained: tuple[Tensor, list[Any]]
    updates: Tensor
    payload: Payload
    idle: Tensor
    view: ServerView  # that a rule would be shown of these clients
    packets: Sequence[Packet] | None = None  # of which the payload was decoded, if it was

    def encoded(self) -> Sequence[Packet]:
        """Return the packets of the messages, those that came if they came as packets."""
        return self.payload.encode() if self.packets is None else self.packets


def finite(sums: FoldedMessages, part: Honest, squares: bool = False) -> FoldedMessages:
    """Return the sums of the honest messages of a part, without those that are not finite.

    An adversary reads messages, not the weights that the server gives them, and their ``squares``
    if it asks for them.
    """
    read = part.payload
    if not all_finite([sums.total]):
        rows = finite_rows(read.values()).nonzero()[:, 0].cpu()
        read = read.take(rows)
        sums = FoldedMessages.of(read, part.view.weights[rows])
    return sums.unweighted().with_squares(read) if squares else sums.unweighted()


@dataclass(frozen=True, eq=False)
class Stream:
    """One round, whose clients train and send a few at a time."""

    setup: Setup
    state: RunState
    step: int
    ids: list[int]
    broadcast: Payload  # of all clients, or one row for each
    view: ServerView
    sums: Sums

    @cached_property
    def attack(self) -> Attack:
        """Attack that is played in this round."""
        return self.setup.attack(self.step)

    @property
    def colludes(self) -> bool:
        """Whether the adversary's clients read more than each its own message."""
        return threat_model.needs(self.attack).tier != "own"

    @property
    def looks(self) -> bool:
        """Whether the adversary looks at the round before its clients speak."""
        return self.attack.looks and self.colludes

    @cached_property
    def tree(self) -> Tree:
        """Weights that all clients receive from a broadcast that is the same for all."""
        return self.received(self.broadcast)

    @cached_property
    def learned_nothing(self) -> Tensor:
        """Updates ``(1, d)`` of clients that learned nothing from a broadcast that all received."""
        return self.idle(self.broadcast)

    def idle(self, broadcast: Payload) -> Tensor:
        """Return the updates of clients that learn nothing from a broadcast, a row for each."""
        setup = self.setup
        rows: Tensor = ask(setup.plugins.protocol, "idle", Tensor, setup.shared, broadcast)
        return rows

    def received(self, message: Payload) -> Tree:
        """Return the weights that a client receives from a message of one row."""
        setup = self.setup
        tree: Tree = ask(setup.plugins.protocol, "receive", dict, setup.shared, message)
        return tree

    def parts(self, rows: Sequence[int], forged: bool) -> Iterator[list[int]]:
        """Cut rows into as many as are in memory at once; ``forged`` ones take more of it."""
        most = self.setup.at_once or len(rows) or 1
        size = -(-most // FORGED) if forged else most
        return (list(rows[i : i + size]) for i in range(0, len(rows), size))

    def begin(self, rows: list[int]) -> Begun:
        """Let the clients of these rows begin to train, if they do it elsewhere."""
        setup = self.setup
        ids = [self.ids[row] for row in rows]
        broadcast = self.broadcast
        trees = [self.tree] if len(broadcast) == 1 else []
        if not trees:
            broadcast = broadcast.take(rows or [0])
            trees = [self.received(broadcast.take([row])) for row in range(len(broadcast))]
        with span("train"):
            clients = setup.clients(ids, trees, self.state.memories, self.step)
            return Begun(rows, ids, broadcast, clients, setup.executor.begin(clients))

    def ahead(
        self, rows: Sequence[int], remembers: bool = True, forged: bool = False
    ) -> Iterator[Honest]:
        """Yield messages of these rows, which may be ``forged``, as many as are in memory at once.

        The next clients train meanwhile, where clients train elsewhere.
        """
        parts = self.parts(rows, forged)
        first = next(parts, None)
        begun = None if first is None else self.begin(first)
        while begun is not None:
            following = next(parts, None)
            after = None if following is None else self.begin(following)
            yield self.honest(begun, remembers)
            begun = after

    def honest(self, begun: Begun, remembers: bool = True) -> Honest:
        """Return the honest messages of clients that train, once they have.

        If it ``remembers``, the state has what the clients remember afterwards.
        """
        setup = self.setup
        state = self.state
        rows = begun.rows
        ids = begun.ids
        broadcast = begun.broadcast
        before = {i: state.memories[i] for i in ids if not remembers and i in state.memories}
        with span("train"):
            trained, made = begun.exchanged()
        with span("compress"):
            idle = self.learned_nothing if len(self.broadcast) == 1 else self.idle(broadcast)
            updates, payload = messages(
                setup, state, ids, trained, made, idle, broadcast, self.step
            )
        if not remembers:
            for i in ids:
                del state.memories[i]
            state.memories.update(before)
        view = self.view.take(torch.tensor(rows, dtype=torch.long)).asked(broadcast=broadcast)
        packets = made.packets if made is not None and made.messages is payload else None
        return Honest(rows, ids, begun.clients, trained, updates, payload, idle, view, packets)

    def send(
        self, part: Honest, packets: Sequence[Packet], shown: bool = False
    ) -> tuple[Payload, Tensor]:
        """Send packets of some clients, add up what arrives; return that, and who was accepted.

        Messages that arrive as the honest ones are added up once. If ``shown``, an adversary may
        read the honest ones.
        """
        setup = self.setup
        sums = self.sums
        with span("wire"):
            checks = setup.scenario.server_checks
            if packets is part.packets:  # the payload is what they say
                received, accepted = part.payload.checked(checks)
            else:
                received, accepted = part.payload.receive(packets, checks, setup.shared.device)
            remember(setup, self.state, part.ids, received, accepted)
        for row, packet, good in zip(part.rows, packets, accepted.tolist(), strict=True):
            sums.bits[row] = packet.bits
            sums.accepted[row] = good
        with span("fold"):
            arrived = FoldedMessages.of(received, part.view.weights[accepted])
            same = bool(accepted.all()) and identical(received, part.payload)
            sent = arrived if same else FoldedMessages.of(part.payload, part.view.weights)
            sums.changed |= not same
            if sums.keeps or (shown and self.attack.keeps):
                self.keep(part, packets, accepted, same)
            sums.received = added(sums.received, arrived)
            sums.honest = added(sums.honest, sent) if sums.changed else sums.received
            if shown:
                self.show(part, sent)
        malicious = setup.population.malicious[part.ids]
        entropy = entropy_bits(part.payload, ~malicious)
        sums.entropy += [] if entropy is None else [entropy]
        self.state.local_accuracies = local_accuracies(
            setup, self.state.local_accuracies, part.ids, part.view.broadcast, part.payload
        )
        return received, accepted

    def keep(self, part: Honest, packets: Sequence[Packet], accepted: Tensor, same: bool) -> None:
        """Keep the packets of some clients that were accepted, and those of their honest selves."""
        file = self.sums.file
        rows = zip(part.rows, packets, accepted.tolist(), strict=True)
        arrived = {row: file.put(packet) for row, packet, good in rows if good}
        self.sums.arrived |= arrived
        if same:
            self.sums.meant |= arrived
            return
        self.keep_honest(part)

    def keep_honest(self, part: Honest) -> None:
        """Keep the packets of what some clients say if they are honest."""
        honest = zip(part.rows, part.encoded(), strict=True)
        self.sums.meant |= {row: self.sums.file.put(packet) for row, packet in honest}

    def show(self, part: Honest, sums: FoldedMessages) -> None:
        """Let the adversary read the honest messages of some clients, of which these are sums."""
        seen = finite(sums, part, self.attack.reads_squares)
        self.sums.seen = added(self.sums.seen, seen)
        if self.attack.keeps:
            good = finite_rows(part.payload.values()).tolist()
            rows = [row for row, is_finite in zip(part.rows, good, strict=True) if is_finite]
            self.sums.shown += [self.sums.meant[row] for row in rows]

    def read(
        self, sums: FoldedMessages, packets: dict[int, Filed]
    ) -> FoldedMessages | KeptMessages:
        """Return what the rule reads: the sums, or the packets in the order of their rows."""
        if not self.sums.keeps:
            return sums
        ordered = [packets[row] for row in sorted(packets)]
        return KeptMessages(sums.form, ordered, self.setup.at_once or len(ordered))

    def benign(self, rows: Sequence[int], shown: bool) -> None:
        """Train the benign clients and send their messages, if ``shown`` to the adversary, too."""
        for part in self.ahead(rows):
            self.send(part, part.encoded(), shown)

    def read_own(self, rows: Sequence[int]) -> Tensor | None:
        """Return the mean ``(d,)`` of what the adversary's clients learned, if it asks for that.

        Their honest messages are shown to it if those of others are not. They then train twice,
        since all are read before one is written.
        """
        stands_in = self.colludes and self.sums.seen is None
        asks = self.looks and self.attack.reads_updates
        learned = None
        for part in self.ahead(rows if stands_in or asks else [], remembers=False):
            if stands_in:
                if self.attack.keeps:
                    self.keep_honest(part)
                self.show(part, FoldedMessages.of(part.payload, part.view.weights))
            if asks:
                more = (part.updates - part.idle).sum(dim=0, dtype=torch.float64)
                learned = more if learned is None else learned + more
        return None if learned is None else learned / len(rows)

    def look(self, owned: OwnedRows, place: Part) -> Part:
        """Return what the adversary's clients share in a round, once it has looked at it."""
        sums = self.sums
        assert sums.seen is not None
        if self.attack.keeps:
            at_once = self.setup.at_once or len(self.ids)
            kept = KeptMessages(sums.seen.form, sums.shown, at_once)
            place = dataclasses.replace(place, kept=kept)
        received = self.broadcast.take([int(owned.rows[0]) % len(self.broadcast)])
        place = dataclasses.replace(place, heard=(owned.ids[0], received))
        nobody = self.context(self.honest(self.begin([])), owned.part([]), place)
        looked, notes = look(self.attack, nobody, self.state.adversary)
        sums.notes |= notes
        return dataclasses.replace(place, looked=looked)

    def context(self, part: Honest, owned: OwnedRows, place: Part) -> AttackContext:
        """Return what a part of the round looks like before the adversary moves."""
        return attack_context(
            self.setup,
            self.state,
            part.clients,
            part.trained,
            part.updates,
            part.payload,
            part.idle,
            owned,
            part.view,
            place,
        )

    def attacked(self, owned: OwnedRows, worked: Counter[str]) -> None:
        """Train the adversary's clients, and send what it makes of their messages."""
        attack = self.attack
        device = self.setup.shared.device
        rows = owned.rows.tolist()
        learned = self.read_own(rows)
        place = Part(len(self.ids), len(rows), 0, self.sums.seen, worked, learned=learned)
        if self.looks and rows:
            start = now(device)
            place = self.look(owned, place)
            self.state.attack_seconds += now(device) - start
        first = 0
        for part in self.ahead(rows, forged=not attack.idle):
            start = now(device)
            numbers = range(first, first + len(part.rows))
            place = dataclasses.replace(place, first=first)
            context = self.context(part, owned.part(numbers), place)
            forged = threat_model.forge(attack, context, self.state.adversary)
            self.state.attack_seconds += now(device) - start
            arrived = self.send(part, forged.among(part.payload))
            self.sums.headers.append(compared_headers(context, *arrived))
            self.sums.notes |= forged.fields["notes"]
            self.sums.trace += forged.fields["trace"]
            first += len(part.rows)


def play_streamed_round(setup: Setup, state: RunState, step: int) -> Round:
    """Play one round as `fedbench.run.play_round` does, a few clients at a time.

    The benign clients come first, then the adversary's, which may have read the others' sums.
    """
    plugins = setup.plugins
    with span("broadcast"):
        asked = setup.sample(step)
        down, broadcast = send(setup, state.server, asked, step)
        state.server = ask(plugins.protocol, "heard", object, state.server, asked)
        ids, broadcast = participants(setup, asked, broadcast, step)
    malicious = setup.population.malicious[ids]
    owned = setup.owned(ids, step)
    view = setup.view(ids, broadcast, step, state.memories)
    sums = Sums(len(ids), not needs_sums(setup))
    stream = Stream(setup, state, step, ids, broadcast, view, sums)
    shown = threat_model.needs(stream.attack).tier == "all"
    stream.benign((~malicious).nonzero()[:, 0].tolist(), shown)
    worked: Counter[str] = Counter()
    with span("attack"):
        stream.attacked(owned, worked)
        alike = heard_by_all(setup, state.server, ids, range(len(broadcast)))
        state.last_broadcast = stream.tree if alike else None
    if sums.received is None or sums.honest is None:  # nobody came
        form = FoldedMessages.none(stream.honest(stream.begin([])).payload)
        sums.received = form
        sums.honest = form
    accepted = sums.accepted
    with span("defend"):
        view = view.take(accepted)
        ready = ask(plugins.defense, "ready", bool, view.copied())
        aggregate = None
        achieved: dict[str, Any] = {}
        if ready:
            before = state.defense
            read = stream.read(sums.received, sums.arrived)
            answer = setup.executor.aggregate
            aggregate = defend(plugins.defense, read, state, view, bool(len(owned)), answer)
            if len(owned):
                meant = stream.read(sums.honest, sums.meant)
                achieved = folded_effect(setup, before, sums, meant, stream.view, aggregate)
            achieved |= detection(view.findings, aggregate, setup.hostile(ids, step)[accepted])
    with span("server step"):
        step_server(setup, state, sums.received, aggregate, view)
    spend(setup, state.ledger, ids, ~setup.noncompliant(ids))
    with span("evaluate"):
        if is_evaluated(setup.scenario, step):
            state.score = evaluate(setup, state.server, step, state.learned)
            achieved |= evaluated(setup, state)
    own = state.local_accuracies
    return Round(
        step=step,
        clients=ids,
        dropped=len(asked) - len(ids),
        skipped=not ready,
        entropy_bits=sum(sums.entropy) if sums.entropy else None,
        local_accuracy=statistics.fmean(own.values()) if own else None,
        notes=sums.notes,
        trace=sums.trace,
        **achieved,
        **traffic(setup, sums.bits, down, len(asked), accepted, malicious),
    )


def folded_effect(
    setup: Setup,
    state: Any,
    sums: Sums,
    honest: FoldedMessages | KeptMessages,
    view: ServerView,
    aggregate: Tensor,
) -> dict[str, Any]:
    """Measure what `fedbench.adversary.metrics.effect` does, of sums.

    ``state`` is the rule's before its ``aggregate (k,)``, ``view`` that of all clients that came,
    and ``honest`` what the rule would have read of them.
    """
    assert sums.honest is not None
    assert sums.received is not None
    headers = {"headers": merged(sums.headers)}
    if not sums.changed and all_finite([aggregate]):
        return NO_EFFECT | headers
    clean = clean_answer(setup.plugins.defense, honest, state, view, setup.executor.aggregate)
    sent_mean = sums.received.mean(weighted=True)
    honest_mean = sums.honest.mean(weighted=True)
    return gains(aggregate, clean, sent_mean, honest_mean) | headers
