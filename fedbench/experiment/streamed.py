"""Rounds whose messages are added up as they come: sums do not grow with the cohort.

Rules that must look at each message again get its packet, which is decoded as often as they look.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.profiler import record_function as span

from fedbench.adversary import threat_model
from fedbench.adversary.looks import look
from fedbench.adversary.metrics import Arrivals, ForgedHeader, compared_headers, merged
from fedbench.adversary.threat_model import OwnedRows, Streamed
from fedbench.api import Attack, ServerView
from fedbench.core.blame import ask
from fedbench.core.devices import now
from fedbench.core.tiling import all_finite, finite_rows
from fedbench.core.trees import Tree
from fedbench.experiment.evaluation import local_accuracies
from fedbench.experiment.record_builder import entropy_bits
from fedbench.experiment.setup import Setup
from fedbench.experiment.stages import (
    Exchange,
    Honest,
    Training,
    attack_context,
    heard_by_all,
    honest_messages,
    remember,
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

FORGING_MEMORY = 4  # of a forged message, in honest ones: an attack holds copies of floats


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
    bits: list[int] = field(init=False)  # of each row's packet
    accepted: Tensor = field(init=False)  # (n,) bool
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


def finite(sums: FoldedMessages, part: Honest, squares: bool = False) -> FoldedMessages:
    """Return the sums of the honest messages of a part, without those that are not finite.

    An adversary reads messages, not the weights that the server gives them, and their ``squares``
    if it asks for them.
    """
    read = part.messages
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
    ids: list[int]
    view: ServerView
    sums: Sums

    @cached_property
    def attack(self) -> Attack:
        """Attack that is played in this round."""
        return self.setup.attack(self.view.step)

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
        return self.received(self.view.broadcast)

    @cached_property
    def learned_nothing(self) -> Tensor:
        """Updates ``(1, d)`` of clients that learned nothing from a broadcast that all received."""
        return self.idle(self.view.broadcast)

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
        size = -(-most // FORGING_MEMORY) if forged else most
        return (list(rows[i : i + size]) for i in range(0, len(rows), size))

    def begin(self, rows: list[int]) -> Training:
        """Let the clients of these rows begin to train, if they do it elsewhere."""
        setup = self.setup
        ids = [self.ids[row] for row in rows]
        broadcast = self.view.broadcast
        trees = [self.tree] if len(broadcast) == 1 else []
        if not trees:
            broadcast = broadcast.take(rows or [0])
            trees = [self.received(broadcast.take([row])) for row in range(len(broadcast))]
        view = self.view.take(torch.tensor(rows, dtype=torch.long)).asked(broadcast=broadcast)
        with span("train"):
            clients = setup.clients(ids, trees, self.state.memories, view.step)
            return Training(rows, ids, view, clients, setup.executor.begin(clients))

    def ahead(
        self, rows: Sequence[int], remembers: bool = True, forged: bool = False
    ) -> Iterator[Honest]:
        """Yield messages of these rows, which may be ``forged``, as many as are in memory at once.

        The next clients train meanwhile, where clients train elsewhere.
        """
        parts = self.parts(rows, forged)
        first = next(parts, None)
        training = None if first is None else self.begin(first)
        while training is not None:
            following = next(parts, None)
            after = None if following is None else self.begin(following)
            yield self.honest(training, remembers)
            training = after

    def honest(self, training: Training, remembers: bool = True) -> Honest:
        """Return the honest messages of clients that train, once they have.

        If it ``remembers``, the state has what the clients remember afterwards.
        """
        state = self.state
        ids = training.ids
        before = {i: state.memories[i] for i in ids if not remembers and i in state.memories}
        with span("train"):
            trained, made = training.wait()
        with span("compress"):
            alike = len(self.view.broadcast) == 1
            idle = self.learned_nothing if alike else self.idle(training.view.broadcast)
            honest = honest_messages(self.setup, state, training, trained, made, idle)
        if not remembers:
            for i in ids:
                del state.memories[i]
            state.memories.update(before)
        return honest

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
            if packets is part.packets:  # the messages are what they say
                received, accepted = part.messages.checked(checks)
            else:
                received, accepted = part.messages.receive(packets, checks, setup.shared.device)
            remember(setup, self.state, part.ids, received, accepted)
        for row, packet, good in zip(part.rows, packets, accepted.tolist(), strict=True):
            sums.bits[row] = packet.bits
            sums.accepted[row] = good
        with span("fold"):
            arrived = FoldedMessages.of(received, part.view.weights[accepted])
            same = bool(accepted.all()) and identical(received, part.messages)
            sent = arrived if same else FoldedMessages.of(part.messages, part.view.weights)
            sums.changed |= not same
            if sums.keeps or (shown and self.attack.keeps):
                self.keep(part, packets, accepted, same)
            sums.received = added(sums.received, arrived)
            sums.honest = added(sums.honest, sent) if sums.changed else sums.received
            if shown:
                self.show(part, sent)
        malicious = setup.population.malicious[part.ids]
        entropy = entropy_bits(part.messages, ~malicious)
        sums.entropy += [] if entropy is None else [entropy]
        self.state.local_accuracies = local_accuracies(
            setup, self.state.local_accuracies, part.ids, part.view.broadcast, part.messages
        )
        return received, accepted

    def keep(self, part: Honest, packets: Sequence[Packet], accepted: Tensor, same: bool) -> None:
        """Keep the accepted packets of some clients, and their honest ones where these differ."""
        file = self.sums.file
        rows = zip(part.rows, packets, accepted.tolist(), strict=True)
        arrived = {row: file.put(packet) for row, packet, good in rows if good}
        self.sums.arrived |= arrived
        if same:
            self.sums.meant |= arrived
            return
        self.keep_honest(part)

    def keep_honest(self, part: Honest) -> None:
        """Keep the packets of some clients' honest messages."""
        honest = zip(part.rows, part.encoded(), strict=True)
        self.sums.meant |= {row: self.sums.file.put(packet) for row, packet in honest}

    def show(self, part: Honest, sums: FoldedMessages) -> None:
        """Let the adversary read the honest messages of some clients, of which these are sums."""
        seen = finite(sums, part, self.attack.reads_squares)
        self.sums.seen = added(self.sums.seen, seen)
        if self.attack.keeps:
            good = finite_rows(part.messages.values()).tolist()
            rows = [row for row, is_finite in zip(part.rows, good, strict=True) if is_finite]
            self.sums.shown += [self.sums.meant[row] for row in rows]

    def for_rule(
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
                self.show(part, FoldedMessages.of(part.messages, part.view.weights))
            if asks:
                more = (part.updates - part.idle).sum(dim=0, dtype=torch.float64)
                learned = more if learned is None else learned + more
        return None if learned is None else learned / len(rows)

    def look(self, owned: OwnedRows, streamed: Streamed) -> Streamed:
        """Return what the adversary's clients share in a round, once it has looked at it."""
        sums = self.sums
        assert sums.seen is not None
        if self.attack.keeps:
            at_once = self.setup.at_once or len(self.ids)
            kept = KeptMessages(sums.seen.form, sums.shown, at_once)
            streamed = dataclasses.replace(streamed, kept=kept)
        broadcast = self.view.broadcast
        received = broadcast.take([int(owned.rows[0]) % len(broadcast)])
        streamed = dataclasses.replace(streamed, heard=(owned.ids[0], received))
        nobody = self.honest(self.begin([]))
        context = attack_context(self.setup, self.state, nobody, owned.part([]), streamed)
        looked, notes = look(self.attack, context, self.state.adversary)
        sums.notes |= notes
        return dataclasses.replace(streamed, looked=looked)

    def attacked(self, owned: OwnedRows) -> None:
        """Train the adversary's clients, and send the messages that it forges."""
        state = self.state
        attack = self.attack
        device = self.setup.shared.device
        rows = owned.rows.tolist()
        learned = self.read_own(rows)
        streamed = Streamed(len(self.ids), len(rows), 0, self.sums.seen, learned=learned)
        if self.looks and rows:
            start = now(device)
            streamed = self.look(owned, streamed)
            state.attack_seconds += now(device) - start
        first = 0
        for part in self.ahead(rows, forged=not attack.idle):
            start = now(device)
            numbers = range(first, first + len(part.rows))
            streamed = dataclasses.replace(streamed, first=first)
            context = attack_context(self.setup, state, part, owned.part(numbers), streamed)
            forged = threat_model.forge(attack, context, state.adversary)
            state.attack_seconds += now(device) - start
            arrived = self.send(part, forged.among(part.messages))
            self.sums.headers.append(compared_headers(context, *arrived))
            self.sums.notes |= forged.fields["notes"]
            self.sums.trace += forged.fields["trace"]
            first += len(part.rows)


def exchange_in_parts(
    setup: Setup, state: RunState, ids: list[int], owned: OwnedRows, view: ServerView
) -> Exchange:
    """Have the clients ``ids`` train and send, as many at a time as fit in memory.

    The benign clients come first, then the adversary's, which may have read the others' sums.
    """
    sums = Sums(len(ids), not needs_sums(setup))
    stream = Stream(setup, state, ids, view, sums)
    benign = ~setup.population.malicious[ids]
    shown = threat_model.needs(stream.attack).tier == "all"
    stream.benign(benign.nonzero()[:, 0].tolist(), shown)
    with span("attack"):
        stream.attacked(owned)
        alike = heard_by_all(setup, state.server, ids, view.broadcast)
        state.last_broadcast = stream.tree if alike else None
    if sums.received is None or sums.honest is None:  # nobody came
        form = FoldedMessages.none(stream.honest(stream.begin([])).messages)
        sums.received = form
        sums.honest = form
    arrivals = Arrivals(
        accepted=sums.accepted,
        received=sums.received,
        honest=sums.honest,
        for_rule=stream.for_rule(sums.received, sums.arrived),
        for_rule_if_honest=stream.for_rule(sums.honest, sums.meant),
        changed=sums.changed,
        headers=merged(sums.headers),
    )
    entropy = sum(sums.entropy) if sums.entropy else None
    fields = {"notes": sums.notes, "trace": sums.trace, "entropy_bits": entropy}
    return Exchange(arrivals, [], sums.bits, fields)
