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
from typing import Any

import torch
from torch import Tensor

from fedbench.api import Attack, AttackView, Defense, Memory, Oracle, Protocol, ServerView, Shared
from fedbench.errors import IllegalPayloadError
from fedbench.payload import Payload, require_same_form
from fedbench.rng import Key
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


def own_codec(
    protocol: Protocol[Any], shared: Shared, keys: Sequence[Key], memory: Sequence[Memory]
) -> Callable[[Sequence[int]], Callable[[Tensor], Payload]]:
    """From rows to the protocol's message of their dense ``(m, d)``, with their keys and memories.

    What a client starts with is as at the start: error feedback would add what is left of honest
    updates, and cancel the attack. What it would remember is thrown away: a query changes nothing.
    """

    def of(rows: Sequence[int]) -> Callable[[Tensor], Payload]:
        def compress(x: Tensor) -> Payload:
            copies = [copy.deepcopy(memory[row]) | protocol.memory(shared) for row in rows]
            return protocol.message(shared, x, [keys[row] for row in rows], copies)[0]

        return compress

    return of


@dataclass(frozen=True, eq=False)
class Situation:
    """A round as it stands before the adversary moves.

    Args:
        honest: All ``n`` messages, the malicious clients' as if they were honest.
        updates: ``(n, d)``, the same before compression.
        rows: ``(m,)`` rows of the malicious clients.
        ids: Which clients these are.
        codec: The codec of some of these rows, see `own_codec`.
        memories: What each of the ``n`` clients remembers before its message, or nothing.
        state: The server's state.
        defense: The server's rule.
        defense_state: The rule's state.
        view: What the rule is shown.
        key: The adversary's randomness.
    """

    honest: Payload
    updates: Tensor
    rows: Tensor
    ids: Sequence[int]
    codec: Callable[[Sequence[int]], Callable[[Tensor], Payload]]
    memories: Sequence[Memory]
    state: Any
    defense: Defense[Any]
    defense_state: Any
    view: ServerView
    key: Key

    @property
    def benign(self) -> Tensor:
        """``(n - m,)`` rows of the others."""
        others = torch.ones(len(self.honest), dtype=torch.bool)
        others[self.rows] = False
        return others.nonzero()[:, 0]


def forge(
    attack: Attack, situation: Situation, minds: Minds
) -> tuple[list[Packet], dict[str, Note]]:
    """All ``n`` packets, the adversary's as it crafted them, and its notes.

    An attack of the tier ``own`` is called once for each malicious client, with that client's
    message and memory alone; the others once, for all of them together. ``minds`` is updated.

    Raises:
        IllegalPayloadError: the attack returned a payload that is not legal, or too many rows.
            What a server should reject goes out as raw bytes.
    """
    packets: dict[int, Packet] = {}
    notes: dict[str, Note] = {}
    rows = situation.rows.tolist()
    alone = attack.needs().tier == "own"
    parts = [[row] for row in rows] if alone else [rows] if rows else []
    for number, part in enumerate(parts):
        mind = situation.ids[number] if alone else COLLUDERS
        view = attack_view(attack, situation, part)
        crafted, minds[mind] = attack.craft(view, minds.get(mind))
        packets |= dict(
            zip(part, _packets(attack, situation.honest, crafted, len(part)), strict=True)
        )
        notes |= view.notes
    benign = situation.benign
    packets |= dict(zip(benign.tolist(), situation.honest.take(benign).encode(), strict=True))
    return [packets[row] for row in range(len(packets))], {k: _legible(v) for k, v in notes.items()}


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


def _legible(note: Note) -> Note:
    """JSON has no NaN and no infinity."""
    return str(note) if isinstance(note, float) and not math.isfinite(note) else note


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
    own = situation.honest.take(rows)
    return AttackView(
        own=own,
        updates=situation.updates[rows.to(situation.updates.device)],
        seen=situation.honest.take(situation.benign)
        if needs.tier == "all"
        else own.take(range(len(own))),
        n=len(situation.honest),
        broadcast=situation.view.broadcast.take(range(len(situation.view.broadcast))),
        step=situation.view.step,
        key=situation.key.fold(*part) if needs.tier == "own" else situation.key,
        compress=situation.codec(part),
        memories=[copy.deepcopy(situation.memories[row]) for row in part],
        defense=_oracle(situation, rows) if needs.defense else None,
        state=copy.deepcopy(situation.state) if needs.state else None,
    )


def _oracle(situation: Situation, rows: Tensor) -> Oracle:
    view = dataclasses.replace(situation.view, key=situation.key.fold("oracle"))
    state = copy.deepcopy(situation.defense_state)

    def ask(sent: Payload) -> Tensor:
        received = situation.honest.put(rows, sent)
        return situation.defense.aggregate(received, copy.deepcopy(state), view)[0]

    return Oracle(situation.defense, ask)


def effect(
    situation: Situation, received: Payload, accepted: Tensor, aggregate: Tensor
) -> dict[str, Any]:
    """What the adversary achieved: `gain`, `gain_mean` and `headers` of a round's record.

    Gains are L2 distances of the aggregate, and of the plain mean, to what honest messages would
    have given, relative to that; None where a number is not finite. Nothing without malicious rows.
    """
    if len(situation.rows) == 0:
        return {}
    state = copy.deepcopy(situation.defense_state)
    clean, _ = situation.defense.aggregate(situation.honest, state, situation.view)
    honest_mean = _mean(situation.honest, situation.view.weights)
    sent_mean = _mean(received, situation.view.weights[accepted])
    return {
        "gain": _relative(aggregate, clean),
        "gain_mean": _relative(sent_mean, honest_mean),
        "headers": forged_headers(situation, received, accepted),
    }


def forged_headers(
    situation: Situation, received: Payload, accepted: Tensor
) -> dict[str, float | None]:
    """How far the accepted malicious rows' `Payload.headers` are from those of the same clients.

    Of floats, like scales, the largest ratio of any of them to the honest one, which counts as at
    least a thousandth of its row's largest (None without a finite row); of integers and bools, like
    seeds and indices, the share that its own message does not have at all.
    """
    rows = [row for row in situation.rows.tolist() if accepted[row]]
    if not rows:
        return {}
    arrived = (accepted.cumsum(0) - 1)[rows]
    sent, own = received.take(arrived).headers(), situation.honest.take(rows).headers()
    return {name: _forged(sent[name], own[name]) for name in own}


def _forged(sent: Tensor, own: Tensor) -> float | None:
    if sent.is_floating_point():
        known = own.double().abs()
        floor = 1e-3 * known.amax(dim=1, keepdim=True).clamp_min(1e-30)
        ratios = (sent.double().abs() / torch.maximum(known, floor)).amax(dim=1)
        finite = ratios[torch.isfinite(ratios)]
        return float(finite.max()) if len(finite) else None
    pairs = list(zip(sent, own, strict=True))
    if sent.dtype == torch.bool:
        pairs = [(a.nonzero(), b.nonzero()) for a, b in pairs]
    new = torch.cat([~torch.isin(a.flatten(), b) for a, b in pairs])
    return float(new.float().mean()) if len(new) else 0.0


def _mean(payload: Payload, weights: Tensor) -> Tensor:
    x = payload.values().to(torch.float32)
    return (weights / weights.sum()).to(x) @ x


def _relative(moved: Tensor, reference: Tensor) -> float | None:
    norm = torch.linalg.vector_norm
    distance = norm(moved.double() - reference.double()) / norm(reference.double()).clamp_min(1e-12)
    return float(distance) if bool(torch.isfinite(distance)) else None
