"""Who is malicious, what they may read, and the forging of their messages.

The adversary owns a fixed set of clients for the whole run. It sees copies, so writing into them
changes nothing, and it rewrites its own rows and no others.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fedbench.api import (
    TIERS,
    Attack,
    AttackView,
    Defense,
    Knowledge,
    Local,
    Memory,
    Oracle,
    Protocol,
    ServerView,
    Shared,
    Traits,
    hooks,
)
from fedbench.api.hooks import Note
from fedbench.core.blame import Hook
from fedbench.core.rng import Key, Secret
from fedbench.core.trees import Tree
from fedbench.executors.multi_run import now
from fedbench.executors.training import Client, Executor
from fedbench.payload import Payload
from fedbench.payload.packets import Packet

AdversaryMemory = dict[
    int, Any
]  # what an attack remembers: per client id, or of all colluders together
COLLUDERS = -1


def malicious_clients(clients: int, fraction: float, key: Key) -> Tensor:
    """``(clients,)`` bool with ``round(fraction * clients)`` of them, drawn once for the run.

    >>> int(malicious_clients(50, 0.2, Key(0)).sum())
    10
    """
    mask = torch.zeros(clients, dtype=torch.bool)
    mask[key.permutation(clients)[: round(fraction * clients)]] = True
    return mask


@dataclass(frozen=True, eq=False)
class OwnCodec:
    """The protocol's message of dense rows ``(m, d)``, with the keys and memories of ``m`` clients.

    What they would remember of it is thrown away: a query changes nothing.

    Args:
        protocol: What compresses.
        shared: Network, public seed and device.
        keys: The clients' own, by row.
        memories: The clients' own, by row.
    """

    protocol: Protocol[Any]
    shared: Shared
    keys: Sequence[Key]
    memories: Sequence[Memory]

    def __call__(self, x: Tensor) -> Payload:
        """Compress the rows ``x``."""
        return self.protocol.message(self.shared, x, self.keys, copy.deepcopy(self.memories))[0]


def own_codec(
    protocol: Protocol[Any], shared: Shared, keys: Sequence[Key], memory: Sequence[Memory]
) -> Callable[[Sequence[int]], OwnCodec]:
    """Return what makes the codec of some rows, which holds copies of these rows' things only.

    What a client starts with is as at the start: error feedback would add what is left of honest
    updates, and cancel the attack.
    """

    def of(rows: Sequence[int]) -> OwnCodec:
        memories = [alone(memory[row]) | protocol.memory(shared) for row in rows]
        return OwnCodec(protocol, shared, [keys[row] for row in rows], memories)

    return of


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The server's rule with all that an answer is made of, in memory of its own.

    Args:
        rule: A new instance with the parameters of the server's.
        state: Copy of the rule's state.
        messages: All ``n``, as far as the tier allows; stand-ins for the others.
        rows: ``(m,)`` rows of those that ask.
        view: What the rule is shown.
        secret: Root of its draws, which are never the server's.
    """

    rule: Defense[Any]
    state: Any
    messages: Payload
    rows: Tensor
    view: ServerView
    secret: Secret

    def __call__(self, sent: Payload, draw: int) -> Tensor:
        """``(k,)``, the aggregate if these ``m`` messages were sent, in the given draw."""
        view = self.view.asked(key=self.secret.key(draw)).copied()
        received = self.messages.put(self.rows, sent)
        if not hooks.ask(self.rule, "ready", bool, view):  # the server will skip: nothing moves
            return received.values().to(torch.float32).mean(dim=0)
        state = hooks.copied(self.rule, "aggregate", self.state)
        return hooks.aggregate(self.rule, received, state, view)[0]


def fresh(plugin: Any) -> Any:
    """Return a new instance with the same parameters, and nothing that this one has kept beside.

    What stands for a rule of another process is no dataclass: it says itself what is asked instead,
    so that the rule's process never learns of it. An attack's is itself.
    """
    here: bool = dataclasses.is_dataclass(plugin)
    if not here:
        return plugin.apart() if hasattr(plugin, "apart") else plugin

    def again(value: Any) -> Any:
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return fresh(value)
        return value if callable(value) else copy.deepcopy(value)

    fields = [field.name for field in dataclasses.fields(plugin) if field.init]
    with Hook(type(plugin), "__init__"):
        return type(plugin)(**{name: again(getattr(plugin, name)) for name in fields})


@dataclass(frozen=True, eq=False)
class AttackContext:
    """A round as it stands before the adversary moves.

    Args:
        honest: All ``n`` messages, the malicious clients' as if they were honest.
        updates: ``(n, d)``, the same before compression.
        trained: ``(m, d)``, what the adversary's own training gave.
        idle: ``(n, d)``, the updates of clients that learned nothing, or ``(1, d)`` for all.
        rows: ``(m,)`` rows of the malicious clients.
        ids: Which clients these are.
        codec: The codec of some of these rows, see `own_codec`.
        memories: What each of the ``n`` clients remembers before its message, or nothing.
        state: The server's state.
        defense: The server's rule.
        defense_state: The rule's state.
        view: What the rule is shown.
        secret: Root of the adversary's draws in this round, and of the oracle's.
    """

    honest: Payload
    updates: Tensor
    trained: Tensor
    idle: Tensor
    rows: Tensor
    ids: Sequence[int]
    codec: Callable[[Sequence[int]], Callable[[Tensor], Payload]]
    memories: Sequence[Memory]
    state: Any
    defense: Defense[Any]
    defense_state: Any
    view: ServerView
    secret: Secret

    @property
    def benign(self) -> Tensor:
        """``(n - m,)`` rows of the others."""
        others = torch.ones(len(self.honest), dtype=torch.bool)
        others[self.rows] = False
        return others.nonzero()[:, 0]


def train(
    attack: Attack,
    executor: Executor,
    clients: Sequence[Client],
    updates: Tensor,
    rows: Tensor,
    parts: tuple[Sequence[int], int],
    before: Tree | None,
    step: int,
    secret: Secret,
    ids: Sequence[int] | None = None,
) -> Tensor:
    """``(m, d)``: what the adversary's own training makes of its clients.

    It starts where the honest training of these clients starts, memory included; what they would
    remember of it is thrown away: a client remembers its honest training.

    Args:
        attack: What trains.
        executor: Trains clients.
        clients: All of the round, as if honest.
        updates: ``(n, d)`` of them.
        rows: ``(m,)`` rows of the malicious clients.
        parts: Of each client its number among those that the adversary owns, and how many it owns.
        before: What clients received in the last round.
        step: Round, from 0.
        secret: Root of the adversary's draws in this round.
        ids: Which clients the malicious ones are, for errors; by default their rows.

    Raises:
        PluginError: the attack raised, or returned no images, labels or gradients of that form.
    """
    if not attack.trains:
        return updates[rows.to(updates.device)]
    turned = []
    numbers = rows.tolist() if ids is None else ids
    for number, row in zip(numbers, rows.tolist(), strict=True):
        client = clients[row]
        local = Local(
            tree=_copied(client.tree),
            before=None if before is None else _copied(before),
            part=parts[0][row],
            parts=parts[1],
            step=step,
            key=secret.key("poison", row),
            classes=executor.shared.network.classes,
        )
        x, y = hooks.poison(attack, client.x, client.y, local, number)
        own_way = partial(hooks.wrap_grad, attack, local=local, client=number)
        wrap = own_way if attack.wraps else client.wrap_grad
        turned.append(dataclasses.replace(client, x=x, y=y, wrap_grad=wrap))
    with Hook(executor.protocol, "local_update", step):
        return executor.train(turned)[0]


@dataclass(frozen=True, eq=False)
class ForgedMessages:
    """All ``n`` packets of a round, and what the record says of the adversary's."""

    packets: list[Packet]
    notes: dict[str, Note]
    trace: list[tuple[float | None, float | None]]
    queries: int
    seconds: float

    @property
    def told(self) -> dict[str, Any]:
        """Fields of the round's record."""
        return {"notes": self.notes, "trace": self.trace, "queries": self.queries}


def forge(
    attack: Attack, situation: AttackContext, minds: AdversaryMemory, start: float | None = None
) -> ForgedMessages:
    """The adversary rewrites its rows.

    An attack of the tier ``own`` is called once for each malicious client, with that client's
    message and memory alone; the others once, for all of them together. ``minds`` is updated.

    Args:
        attack: What it does.
        situation: The round.
        minds: What the attack remembers.
        start: When the adversary began; default now.

    Raises:
        PluginError: the attack raised, or returned a payload that is not legal, or too many rows.
            What a server should reject goes out as raw bytes.
    """
    start = now() if start is None else start
    packets: dict[int, Packet] = {}
    notes: dict[str, Note] = {}
    trace: list[tuple[float | None, float | None]] = []
    queries, rows = 0, [] if attack.idle else situation.rows.tolist()
    alone = needs(attack).tier == "own"
    parts = [[row] for row in rows] if alone else [rows] if rows else []
    for number, part in enumerate(parts):
        mind = situation.ids[number] if alone else COLLUDERS
        view = attack_view(attack, situation, part)
        hook = Hook(attack, "craft", view.step, [mind] if alone else situation.ids)
        crafted, minds[mind] = hooks.craft(hook, view, minds.get(mind), situation.honest)
        packets |= dict(zip(part, crafted, strict=True))
        notes |= hooks.legible_notes(hook, view.notes)
        trace += hooks.legible_trace(hook, view.trace)
        queries += view.defense.queries if view.defense else 0
    seconds, honest = now() - start, situation.honest
    left = [row for row in range(len(honest)) if row not in packets]
    packets |= dict(zip(left, (honest.take(left) if packets else honest).encode(), strict=True))
    ordered = [packets[row] for row in range(len(packets))]
    return ForgedMessages(ordered, notes, trace, queries, seconds)


def needs(attack: Attack) -> Knowledge:
    """What the attack declares that it must be shown."""
    hook = Hook(attack, "needs")
    declared: Knowledge = hook.returned(Knowledge)
    hook.must(declared.tier in TIERS, f"a tier of {', '.join(TIERS)}", declared.tier)
    return declared


def attack_view(
    attack: Attack, situation: AttackContext, part: Sequence[int] | None = None
) -> AttackView:
    """The situation, as far as the attack declares that it must see it.

    Args:
        attack: Who looks.
        situation: The round.
        part: Rows of the malicious clients that are asked; all of them by default.
    """
    part = situation.rows.tolist() if part is None else part
    known, rows = needs(attack), torch.tensor(part, dtype=torch.long)
    own, where = situation.honest.take(rows), rows.to(situation.updates.device)
    mine = torch.isin(situation.rows, rows).nonzero()[:, 0].to(where.device)
    return AttackView(
        own=own,
        updates=situation.updates[where],
        trained=situation.trained[mine],
        idle=situation.idle[where % len(situation.idle)],
        seen=situation.honest.take(situation.benign)
        if known.tier == "all"
        else own.take(range(len(own))),
        n=len(situation.honest),
        broadcast=_heard(situation, part, known.tier),
        step=situation.view.step,
        key=situation.secret.key("craft", *(part if known.tier == "own" else ())),
        compress=situation.codec(part),
        memories=[alone(situation.memories[row]) for row in part],
        defense=_oracle(situation, rows, known.tier) if known.defense else None,
        state=alone(situation.state) if known.state else None,
    )


def alone(value: Any) -> Any:
    """Return a copy whose tensors have storage of their own, and nothing else in it.

    A deep copy of a row copies the storage of the whole matrix that the row is a view of: all
    clients' rows, where an executor has stacked them.
    """
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {name: alone(part) for name, part in value.items()}
    if type(value) in (list, tuple):
        return type(value)(alone(part) for part in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        twin = copy.copy(value)
        for name, part in vars(value).items():
            object.__setattr__(twin, name, alone(part))
        return twin
    return copy.deepcopy(value)


def _copied(tree: Tree) -> Tree:
    """The same leaves, in memory of their own."""
    return {name: leaf.clone() for name, leaf in tree.items()}


def _heard(situation: AttackContext, part: Sequence[int], tier: str) -> Payload:
    """What the server sent to all; where each client is sent its own, the adversary's."""
    sent = situation.view.broadcast
    return sent.take(range(len(sent)) if len(sent) == 1 or tier == "all" else part)


def _oracle(situation: AttackContext, rows: Tensor, tier: str) -> Oracle:
    """The server's rule to query. It holds nothing that the tier may not read.

    Who may not read the others may not ask about them either: the adversary's own messages and
    weights stand in for theirs, in turn, and the rule remembers nobody.
    """
    rule, seen = fresh(situation.defense), situation.view
    state, honest, view = situation.defense_state, situation.honest, seen
    messages, numbers = honest.copied(), torch.arange(len(honest))
    if tier != "all" and len(rows):
        mine = torch.isin(numbers, rows)
        stand_in = numbers.clone()
        stand_in[~mine] = rows[numbers[: int((~mine).sum())] % len(rows)]
        messages = honest.take(stand_in)
        view = dataclasses.replace(
            seen,
            weights=seen.weights[stand_in],
            broadcast=seen.broadcast.take(stand_in if len(seen.broadcast) > 1 else [0]),
            ids=numbers,
            truth=None if seen.truth is None else mine,
        )
        if hooks.ask(rule, "traits", Traits).identities:
            state = hooks.ask(rule, "init", object, messages.spec)
    secret = situation.secret.derive("oracle")
    view = view.asked(key=secret.key("none")).copied()  # the server's own key stays at the server
    state = hooks.copied(rule, "aggregate", state)
    return Oracle(rule, Snapshot(rule, state, messages, rows, view, secret))
