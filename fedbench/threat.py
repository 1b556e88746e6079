"""Who is malicious, what they may read, and the forging of their messages.

The adversary owns a fixed set of clients for the whole run. It sees copies, so writing into them
changes nothing, and it rewrites its own rows and no others.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fedbench.api import (
    Attack,
    AttackView,
    Defense,
    Local,
    Memory,
    Oracle,
    Protocol,
    ServerView,
    Shared,
)
from fedbench.errors import IllegalPayloadError
from fedbench.layout import Tree
from fedbench.payload import Payload, require_same_form
from fedbench.rng import Key, Secret
from fedbench.together import now
from fedbench.training import Client, Executor, require_labels
from fedbench.wire import Packet

Note = float | int | str | bool
Minds = dict[int, Any]  # what an attack remembers: per client id, or of all colluders together
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
        memories = [copy.deepcopy(memory[row]) | protocol.memory(shared) for row in rows]
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
        if not self.rule.ready(view):  # the server will skip the round: nothing moves
            return received.values().to(torch.float32).mean(dim=0)
        return self.rule.aggregate(received, copy.deepcopy(self.state), view)[0]


def fresh(plugin: Any) -> Any:
    """Return a new instance with the same parameters, and nothing that this one has kept beside."""

    def again(value: Any) -> Any:
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return fresh(value)
        return value if callable(value) else copy.deepcopy(value)

    fields = [field.name for field in dataclasses.fields(plugin) if field.init]
    return type(plugin)(**{name: again(getattr(plugin, name)) for name in fields})


@dataclass(frozen=True, eq=False)
class Situation:
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
    """
    if not attack.trains:
        return updates[rows.to(updates.device)]
    own, turned = type(attack).wrap_grad is not Attack.wrap_grad, []
    for row in rows.tolist():
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
        x, y = attack.poison(client.x, client.y, local)
        require_labels(f"{type(attack).__name__}.poison", y, local.classes)
        wrap = partial(attack.wrap_grad, local=local) if own else client.wrap_grad
        turned.append(dataclasses.replace(client, x=x, y=y, wrap_grad=wrap))
    return executor.train(turned)[0]


@dataclass(frozen=True, eq=False)
class Forged:
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


def forge(attack: Attack, situation: Situation, minds: Minds, start: float | None = None) -> Forged:
    """The adversary rewrites its rows.

    An attack of the tier ``own`` is called once for each malicious client, with that client's
    message and memory alone; the others once, for all of them together. ``minds`` is updated.

    Args:
        attack: What it does.
        situation: The round.
        minds: What the attack remembers.
        start: When the adversary began; default now.

    Raises:
        IllegalPayloadError: the attack returned a payload that is not legal, or too many rows.
            What a server should reject goes out as raw bytes.
    """
    start = now() if start is None else start
    packets: dict[int, Packet] = {}
    notes: dict[str, Note] = {}
    trace: list[tuple[float | None, float | None]] = []
    queries, rows = 0, [] if attack.idle else situation.rows.tolist()
    alone = attack.needs().tier == "own"
    parts = [[row] for row in rows] if alone else [rows] if rows else []
    for number, part in enumerate(parts):
        mind = situation.ids[number] if alone else COLLUDERS
        view = attack_view(attack, situation, part)
        crafted, minds[mind] = attack.craft(view, minds.get(mind))
        packets |= dict(
            zip(part, _packets(attack, situation.honest, crafted, len(part)), strict=True)
        )
        notes |= {name: legible(note) for name, note in view.notes.items()}
        trace += [(_finite(strength), _finite(sought)) for strength, sought in view.trace]
        queries += view.defense.queries if view.defense else 0
    seconds, honest = now() - start, situation.honest
    left = [row for row in range(len(honest)) if row not in packets]
    packets |= dict(zip(left, (honest.take(left) if packets else honest).encode(), strict=True))
    ordered = [packets[row] for row in range(len(packets))]
    return Forged(ordered, notes, trace, queries, seconds)


def _packets(
    attack: Attack, honest: Payload, crafted: Payload | list[bytes], m: int
) -> list[Packet]:
    if isinstance(crafted, Payload):
        require_same_form(honest, crafted)
        crafted.check()
        forged = crafted.encode()
    else:
        forged = [Packet.raw(data) for data in crafted]
    if len(forged) != m:
        raise IllegalPayloadError(
            f"{type(attack).__name__}.craft must return {m} messages, got {len(forged)}"
        )
    return forged


def legible(note: Note) -> Note:
    """JSON has no NaN and no infinity."""
    return str(note) if isinstance(note, float) and not math.isfinite(note) else note


def _finite(x: float) -> float | None:
    return float(x) if math.isfinite(x) else None


def attack_view(
    attack: Attack, situation: Situation, part: Sequence[int] | None = None
) -> AttackView:
    """The situation, as far as the attack declares that it must see it.

    Args:
        attack: Who looks.
        situation: The round.
        part: Rows of the malicious clients that are asked; all of them by default.
    """
    part = situation.rows.tolist() if part is None else part
    needs, rows = attack.needs(), torch.tensor(part, dtype=torch.long)
    own, where = situation.honest.take(rows), rows.to(situation.updates.device)
    mine = torch.isin(situation.rows, rows).nonzero()[:, 0].to(where.device)
    return AttackView(
        own=own,
        updates=situation.updates[where],
        trained=situation.trained[mine],
        idle=situation.idle[where % len(situation.idle)],
        seen=situation.honest.take(situation.benign)
        if needs.tier == "all"
        else own.take(range(len(own))),
        n=len(situation.honest),
        broadcast=_heard(situation, part, needs.tier),
        step=situation.view.step,
        key=situation.secret.key("craft", *(part if needs.tier == "own" else ())),
        compress=situation.codec(part),
        memories=[copy.deepcopy(situation.memories[row]) for row in part],
        defense=_oracle(situation, rows, needs.tier) if needs.defense else None,
        state=copy.deepcopy(situation.state) if needs.state else None,
    )


def _copied(tree: Tree) -> Tree:
    """The same leaves, in memory of their own."""
    return {name: leaf.clone() for name, leaf in tree.items()}


def _heard(situation: Situation, part: Sequence[int], tier: str) -> Payload:
    """What the server sent to all; where each client is sent its own, the adversary's."""
    sent = situation.view.broadcast
    return sent.take(range(len(sent)) if len(sent) == 1 or tier == "all" else part)


def _oracle(situation: Situation, rows: Tensor, tier: str) -> Oracle:
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
        if rule.traits().identities:
            state = rule.init(messages.spec)
    secret = situation.secret.derive("oracle")
    view = view.asked(key=secret.key("none")).copied()  # the server's own key stays at the server
    return Oracle(rule, Snapshot(rule, copy.deepcopy(state), messages, rows, view, secret))
