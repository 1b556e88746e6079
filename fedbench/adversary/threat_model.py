"""Threat model: which clients are malicious, what they observe, and how messages are replaced.

The adversary owns a fixed set of clients for the whole run. It sees copies, so writing into them
changes nothing, and it rewrites its own rows and no others.
"""

import copy
import dataclasses
import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fedbench.api import Defense, Memory, Protocol, ServerView, Shared, Traits, hooks
from fedbench.api.attack import (
    TIERS,
    Attack,
    AttackView,
    Knowledge,
    Oracle,
    Rehearsal,
    Tier,
)
from fedbench.api.hooks import Note
from fedbench.core.blame import Hook, ask, shown
from fedbench.core.choices import Checks
from fedbench.core.copies import copied_to
from fedbench.core.permutations import Listed, Permutation, permutation
from fedbench.core.rng import Key, Secret
from fedbench.payload import FoldedMessages, KeptMessages, Payload
from fedbench.payload.packets import Packet

# What an attack remembers: per client id, or under `COLLUDERS` for all of them together.
AdversaryMemory = dict[int, Any]
COLLUDERS = -1


@dataclass(frozen=True, eq=False)
class MaliciousClients:
    """The ``count`` of ``N`` clients that the adversary owns: the first ones of a permutation.

    They are numbered from 0. Up to `MAX_LISTED` clients numbers are in the order of the ids; more
    clients are never listed, and numbers are in an order of the key's.
    """

    order: Permutation
    count: int

    @classmethod
    def of(cls, mask: Tensor) -> "MaliciousClients":
        """Return the malicious clients of a population: those with ``mask (N,)`` True."""
        return cls(Listed((~mask).long().argsort(stable=True)), int(mask.sum()))

    def __getitem__(self, ids: Sequence[int] | Tensor | int) -> Tensor:
        """Tell which clients are malicious, bool of the shape of ``ids``."""
        return self.order.places(torch.as_tensor(ids, dtype=torch.int64)) < self.count

    def numbers(self, ids: Sequence[int]) -> list[int]:
        """Return the numbers of malicious clients."""
        return self.order.places(ids).tolist()

    def ids(self, numbers: Tensor | None = None) -> list[int]:
        """Return the clients with these numbers, in the order of their ids; by default all."""
        numbers = torch.arange(self.count) if numbers is None else numbers
        return sorted(self.order[numbers].tolist())


def malicious_clients(clients: int, fraction: float, key: Key) -> MaliciousClients:
    """Draw ``round(fraction * clients)`` malicious clients, once for the run.

    >>> malicious_clients(50, 0.2, Key(0)).count
    10
    """
    count = round(fraction * clients)
    order = permutation(key, clients)
    if not isinstance(order, Listed):
        return MaliciousClients(order, count)
    mask = torch.zeros(clients, dtype=torch.bool)
    mask[order[:count]] = True
    return MaliciousClients.of(mask)


Compress = Callable[[Tensor], Payload]


def own_codec(
    protocol: Protocol[Any],
    shared: Shared,
    keys: Mapping[int, Key] | Sequence[Key],
    memory: Sequence[Memory],
) -> Callable[[Sequence[int]], Compress]:
    """Return a function from some rows of a round to their codec.

    A codec makes the protocol's messages of dense rows ``(m, d)``, and changes nothing. It holds
    copies of the keys and memories of its own rows, and of no others. It starts with the memory of
    a first round, since error feedback would cancel the attack; what the server remembers too
    (`Protocol.agreed`) is no client's to forget.
    """

    def of(rows: Sequence[int]) -> Compress:
        own = [keys[row] for row in rows]
        start = protocol.memory(shared)
        fresh = {name: x for name, x in start.items() if name != protocol.agreed}
        memories = [detached_copy(memory[row]) | fresh for row in rows]
        return lambda x: protocol.message(shared, x, own, copy.deepcopy(memories))[0]

    return of


@dataclass(frozen=True, eq=False)
class Snapshot:
    """Copy of the server's rule and of everything that its answer depends on."""

    rule: Defense[Any]  # a new instance with the parameters of the server's
    state: Any
    messages: Payload  # all n, as far as the tier allows; stand-ins for the others
    rows: Tensor  # (m,) of those that ask
    view: ServerView
    secret: Secret  # root of its draws, which are never the server's
    checks: Checks = "none"  # that messages have to pass

    @cached_property
    def arriving(self) -> Tensor:
        """``(n,)`` bool: messages that pass the server's checks."""
        return self.messages.passes(self.checks)

    def __call__(self, sent: Payload, draw: int) -> Tensor:
        """Return ``(k,)``, the aggregate if these ``m`` messages were sent, in the given draw."""
        view = self.view.asked(key=self.secret.key(draw)).copied()
        received = self.messages.put(self.rows, sent)
        if self.checks != "none":
            accepted = self.arriving.clone()
            accepted[self.rows] = sent.passes(self.checks)
            if not bool(accepted.all()):
                received = received.take(accepted.nonzero()[:, 0])
                view = view.take(accepted)
        if not ask(self.rule, "ready", bool, view):  # the round is skipped: a mean stands in
            rows = received if len(received) else self.messages
            return rows.values().to(torch.float32).mean(dim=0)
        state = hooks.copied(self.rule, "aggregate", self.state)
        return hooks.aggregate(self.rule, received, state, view)[0]


def new_instance(plugin: Any) -> Any:
    """Return a new instance with the same parameters and no other state of this one."""
    here: bool = dataclasses.is_dataclass(plugin)
    if not here:  # it stands for one of another process, which never learns of what is asked apart
        return plugin.apart() if hasattr(plugin, "apart") else plugin

    def again(value: Any) -> Any:
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return new_instance(value)
        return value if callable(value) else copy.deepcopy(value)

    fields = [field.name for field in dataclasses.fields(plugin) if field.init]
    with Hook(type(plugin), "__init__"):
        return type(plugin)(**{name: again(getattr(plugin, name)) for name in fields})


@dataclass(frozen=True, eq=False)
class OwnedRows:
    """Rows of one round that belong to the adversary's clients."""

    rows: Tensor  # (m,) int64, among the n of the round
    ids: Sequence[int]  # m client ids
    numbers: Sequence[int]  # of each of them among all clients that the adversary owns
    total: int  # clients that the adversary owns
    secret: Secret  # root of the adversary's draws in this round, and of the oracle's
    places: Sequence[int] | None = None  # of a part of a round: its rows' places in the whole

    def part(self, numbers: Sequence[int]) -> "OwnedRows":
        """Return the rows with these numbers, for a part of the round that has no other rows."""
        return dataclasses.replace(
            self,
            rows=torch.arange(len(numbers)),
            ids=[self.ids[number] for number in numbers],
            numbers=[self.numbers[number] for number in numbers],
            places=self.rows[list(numbers)].tolist(),
        )

    def place(self, row: int) -> int:
        """Return the place in the round of a row."""
        return row if self.places is None else self.places[row]

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True, eq=False)
class Streamed:
    """Place of some of the adversary's rows in a streamed round, and what its clients share there.

    Args:
        n: Rows of the round.
        m: Rows of the adversary.
        first: Number of the first of these rows among those ``m``.
        sums: Sums of the messages that a tier above ``own`` may see.
        kept: Packets of the messages behind the sums, if the attack asks for them.
        learned: ``(d,)``, the mean of what its clients learned, if the attack asks for it.
        looked: Answer of `Attack.look`.
        heard: First client of the adversary in the round, and the message that this one received,
            if the attack looks.
        worked: Work for the adversary in the round so far, as in `AttackContext`.
    """

    n: int
    m: int
    first: int
    sums: FoldedMessages | None
    kept: KeptMessages | None = None
    learned: Tensor | None = None
    looked: Tensor | None = None
    heard: tuple[int, Payload] | None = None
    worked: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, eq=False)
class AttackContext:
    """Whole round before the adversary moves, of which `attack_view` shows an attack a part."""

    honest: Payload  # all n messages, the malicious clients' as if they were honest
    updates: Tensor  # (n, d), the same before compression
    idle: Tensor  # (n, d), the updates of clients that learned nothing, or (1, d) for all
    owned: OwnedRows
    codec: Callable[[Sequence[int]], Compress]  # of some rows, see `own_codec`
    memories: Sequence[Memory]  # what each of the n clients remembers before its message
    server: Any  # state of the protocol at the server
    defense: Defense[Any]
    defense_state: Any
    view: ServerView  # what the rule is shown
    # The rehearsal of these clients, alone or with all that it owns; what the first received; n.
    rehearse: Callable[[Sequence[int], bool, Payload, int], Rehearsal] | None = None
    recruits: Payload | None = None  # honest messages of its clients that the attack asked for
    # Work for the adversary in the round, by what it is: samples, and clients that are not in it.
    worked: Counter[str] = field(default_factory=Counter)
    streamed: Streamed | None = None  # where the messages are the adversary's, or some of them
    checks: Checks = "none"  # of the server, on what arrives
    protocol: Mapping[str, Any] = field(default_factory=dict)  # its parameters, which are public
    trained: Tensor | None = None  # (m, d), what the adversary's own training gave, if it trains
    poisoned: Payload | None = None  # the m messages of that training

    @property
    def n(self) -> int:
        """Number of rows of the round."""
        return len(self.honest) if self.streamed is None else self.streamed.n

    @property
    def benign(self) -> Tensor:
        """``(n - m,)`` rows of the benign clients."""
        return (~torch.isin(torch.arange(len(self.honest)), self.owned.rows)).nonzero()[:, 0]


def learn(attack: Attack, context: AttackContext, learned: Tensor | None) -> Tensor | None:
    """Return what the adversary's clients have learned once they do so in this round.

    `PluginError` if it raised, or returned no finite tensor, or its tier is ``own``, see `needs`.
    """
    if not attack.learns or not len(context.owned):
        return learned
    view = dataclasses.replace(attack_view(attack, context), defense=None)
    hook = Hook(attack, "learn", view.step, context.owned.ids)
    answer = hook(view, detached_copy(learned))
    if view.rehearsal is not None:
        context.worked.update(view.rehearsal.counts())
    finite = isinstance(answer, Tensor) and bool(torch.isfinite(answer).all())
    hook.must(finite, "a finite tensor", answer)
    return detached_copy(answer)  # type: ignore[no-any-return]


@dataclass(frozen=True, eq=False)
class ForgedMessages:
    """Packets that replace the adversary's, and what the record says of them."""

    replaced: dict[int, Packet]  # by row; empty if the attack is idle
    fields: dict[str, Any]  # of the round's record: notes, trace and number of queries

    def among(self, honest: Payload) -> list[Packet]:
        """Return all ``n`` packets of the round: the forged ones and the others' honest ones."""
        left = [row for row in range(len(honest)) if row not in self.replaced]
        others = (honest.take(left) if self.replaced else honest).encode()
        packets = self.replaced | dict(zip(left, others, strict=True))
        return [packets[row] for row in range(len(packets))]


def forge(attack: Attack, context: AttackContext, memory: AdversaryMemory) -> ForgedMessages:
    """Replace the adversary's messages, and no others.

    An attack of the tier ``own`` is called once for each malicious client, with that client's
    message and memory alone; the others once, for all of them together. ``memory`` is updated.
    `PluginError` if it raised, or returned messages that are not legal, or not one for each client.
    """
    packets: dict[int, Packet] = {}
    payloads: dict[tuple[int, ...], tuple[Hook, Payload]] = {}
    notes: dict[str, Note] = {}
    trace: list[tuple[float | None, float | None]] = []
    queries = 0
    worked = context.worked
    apart = needs(attack).tier == "own"
    streamed = context.streamed
    nothing = attack.looks and not apart and streamed is not None and streamed.looked is None
    rows = [] if attack.idle or nothing else context.owned.rows.tolist()
    calls = [[row] for row in rows] if apart else [rows] if rows else []
    for number, asking in enumerate(calls):
        owner = context.owned.ids[number] if apart else COLLUDERS
        view = attack_view(attack, context, asking)
        hook = Hook(attack, "craft", view.step, [owner] if apart else context.owned.ids)
        remembers = view.sums is None
        before = memory.get(owner) if remembers else None
        messages, remembered = hooks.craft(hook, view, before, context.honest)
        if remembers:
            memory[owner] = remembered
        else:
            hook.must(remembered is None, "None as the memory of an attack that folds", remembered)
        if isinstance(messages, Payload):
            # a copy: the attack may write into what it returned while it makes the next one's
            payloads[tuple(asking)] = (hook, messages.copied() if apart else messages)
        else:
            packets |= dict(zip(asking, messages, strict=True))
        notes |= hooks.legible_notes(hook, view.notes)
        trace += hooks.legible_trace(hook, view.trace)
        queries += view.defense.queries if view.defense else 0
        if view.rehearsal is not None:
            worked.update(view.rehearsal.counts())
    if payloads:  # checked and encoded together: each waits for the device
        with Hook(attack, "craft", context.view.step, context.owned.ids):
            encoded = hooks.require_legal(list(payloads.values())).encode()
        packets |= dict(zip(itertools.chain(*payloads), encoded, strict=True))
    return ForgedMessages(packets, {"notes": notes | worked, "trace": trace, "queries": queries})


def recruits(attack: Attack, step: int | None = None) -> int | None:
    """Return `Attack.recruits`; `PluginError` unless it is a number of clients, or None for all."""
    hook = Hook(attack, "recruits", step)
    with hook:
        asked = attack.recruits
    counts = isinstance(asked, int) and asked >= 0
    hook.must(asked is None or counts, "None or a number of clients", asked)
    return asked


def needs(attack: Attack) -> Knowledge:
    """Return the knowledge that the attack declares it needs.

    `PluginError` for a tier that does not exist, for an attack that learns of the tier ``own``
    (what is learned is one tensor for all of its clients), and for one of that tier with recruits.
    """
    hook = Hook(attack, "needs")
    declared: Knowledge = hook.returned(Knowledge)
    hook.must(declared.tier in TIERS, f"a tier of {', '.join(TIERS)}", declared.tier)
    if attack.learns and declared.tier == "own":
        raise hook.wrong(
            "must return the tier colluders or all for an attack that overrides learn, whose "
            f"clients share what they learn, got {shown(declared.tier)}; return one of the two, or "
            "leave learn out"
        )
    if recruits(attack) != 0 and declared.tier == "own":
        raise hook.wrong(
            "must return the tier colluders or all for an attack with recruits, whose messages all "
            f"of its clients see, got {shown(declared.tier)}; return one of the two, or leave "
            "recruits out"
        )
    return declared


def attack_view(
    attack: Attack, context: AttackContext, asking: Sequence[int] | None = None
) -> AttackView:
    """Return what an attack may see that is ``asking`` for these rows; None: all that it owns."""
    asking = context.owned.rows.tolist() if asking is None else asking
    needed = needs(attack)
    everyone = needed.tier == "all"
    rows = torch.tensor(asking, dtype=torch.long)
    own = context.honest.take(rows)
    places = torch.isin(context.owned.rows, rows).nonzero()[:, 0]  # among all that it owns
    device = context.updates.device
    broadcast = context.view.broadcast  # one message for all, or to each client its own
    apart = needed.tier == "own"
    draws = [context.owned.place(row) for row in asking] if apart else []
    streamed = None if apart else context.streamed
    on_device = copied_to(rows, device)
    updates = context.updates[on_device]
    trained = context.trained
    idle = context.idle
    return AttackView(
        own=own,
        updates=updates,
        trained=updates if trained is None else trained[copied_to(places, device)],
        poisoned=own if context.poisoned is None else context.poisoned.take(places),
        idle=idle[on_device] if len(idle) > 1 else idle.clone().expand(len(asking), -1),
        seen=_seen(context, own, needed.tier),
        n=context.n,
        broadcast=broadcast.copied() if len(broadcast) == 1 or everyone else broadcast.take(asking),
        step=context.view.step,
        key=context.owned.secret.key("craft", *draws),
        compress=context.codec(asking),
        memories=[detached_copy(context.memories[row]) for row in asking],
        defense=_oracle(context, rows, needed.tier) if needed.defense else None,
        state=detached_copy(context.server) if needed.state else None,
        protocol=dict(context.protocol),
        rehearsal=_rehearsal(context, asking, needed),
        recruits=None if attack.recruits == 0 else detached_copy(context.recruits),
        m=len(own) if streamed is None else streamed.m,
        first=0 if streamed is None else streamed.first,
        sums=None if streamed is None else detached_copy(streamed.sums),
        looked=None if streamed is None else detached_copy(streamed.looked),
    )


def _seen(context: AttackContext, own: Payload, tier: Tier) -> Payload:
    """Return the messages that an attack may read; no message where it reads their sums."""
    if tier != "own" and context.streamed is not None:
        return own.take([])
    return context.honest.take(context.benign) if tier == "all" else own.copied()


def detached_copy(value: Any) -> Any:
    """Return a deep copy whose tensors own their storage; a view would hold all clients' rows."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {name: detached_copy(part) for name, part in value.items()}
    if type(value) in (list, tuple):
        return type(value)(detached_copy(part) for part in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        twin = copy.copy(value)
        for name, part in vars(value).items():
            object.__setattr__(twin, name, detached_copy(part))
        return twin
    return copy.deepcopy(value)


def _rehearsal(
    context: AttackContext, asking: Sequence[int], needed: Knowledge
) -> Rehearsal | None:
    """Return the rehearsal with the samples of all of the adversary's clients, or of one of them.

    It is that of the clients whose rows are ``asking``, alone if the tier is ``own``; None for an
    attack that needs no samples.
    """
    if not needed.data or context.rehearse is None:
        return None
    streamed = context.streamed
    if streamed is not None and streamed.heard is not None:
        client, received = streamed.heard
        return context.rehearse([client], False, received, context.n)
    owners = zip(context.owned.ids, context.owned.rows.tolist(), strict=True)
    ids = [i for i, row in owners if row in asking]
    broadcast = context.view.broadcast
    received = broadcast.take([asking[0] % len(broadcast)])
    return context.rehearse(ids, needed.tier == "own", received, context.n)


def _oracle(context: AttackContext, rows: Tensor, tier: str) -> Oracle:
    """Return the server's rule to query, which holds nothing that the tier may not read."""
    # Below "all" its own messages and weights stand in for the others', and nobody is remembered.
    rule = new_instance(context.defense)
    state = context.defense_state
    view = context.view
    honest = context.honest
    messages = honest.copied()
    numbers = torch.arange(len(honest))
    if tier != "all" and len(rows):
        mine = torch.isin(numbers, rows)
        stand_in = numbers.clone()
        stand_in[~mine] = rows[numbers[: int((~mine).sum())] % len(rows)]
        messages = honest.take(stand_in)
        view = dataclasses.replace(
            view,
            weights=view.weights[stand_in],
            broadcast=view.broadcast.take(stand_in if len(view.broadcast) > 1 else [0]),
            ids=numbers,
            truth=None if view.truth is None else mine,
        )
        if ask(rule, "traits", Traits).identities:
            state = ask(rule, "init", object, messages.spec)
    secret = context.owned.secret.derive("oracle")
    view = view.asked(key=secret.key("none")).copied()  # the server's own key stays at the server
    state = hooks.copied(rule, "aggregate", state)
    snapshot = Snapshot(rule, state, messages, rows, view, secret, context.checks)
    return Oracle(rule, snapshot, checks=context.checks)
