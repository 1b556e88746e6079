"""Who is malicious, what they may read, and the forging of their messages.

The adversary owns a fixed set of clients for the whole run. It sees copies, so writing into them
changes nothing, and it rewrites its own rows and no others.
"""

from __future__ import annotations

import copy
import dataclasses
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


def malicious_clients(clients: int, fraction: float, key: Key) -> Tensor:
    """``(clients,)`` bool with ``round(fraction * clients)`` of them, drawn once for the run.

    >>> int(malicious_clients(50, 0.2, Key(0)).sum())
    10
    """
    mask = torch.zeros(clients, dtype=torch.bool)
    mask[key.permutation(clients)[: round(fraction * clients)]] = True
    return mask


def own_codec(
    protocol: Protocol[Any],
    shared: Shared,
    rows: Sequence[int],
    keys: Sequence[Key],
    memory: Sequence[Memory],
) -> Callable[[Tensor], Payload]:
    """The protocol's message of dense rows ``(m, d)``, with the keys and memories of these clients.

    What it would remember is thrown away: a query changes nothing.
    """

    def compress(x: Tensor) -> Payload:
        copies = [copy.deepcopy(memory[i]) for i in rows]
        return protocol.message(shared, x, [keys[i] for i in rows], copies)[0]

    return compress


@dataclass(frozen=True, eq=False)
class Situation:
    """A round as it stands before the adversary moves.

    Args:
        honest: All ``n`` messages, the malicious clients' as if they were honest.
        updates: ``(n, d)``, the same before compression.
        rows: ``(m,)`` rows of the malicious clients.
        compress: Their codec, see `own_codec`.
        state: The server's state.
        defense: The server's rule.
        defense_state: The rule's state.
        view: What the rule is shown.
        key: The adversary's randomness.
    """

    honest: Payload
    updates: Tensor
    rows: Tensor
    compress: Callable[[Tensor], Payload]
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
    attack: Attack, situation: Situation, memory: Any
) -> tuple[list[Packet], Any, dict[str, Any]]:
    """All ``n`` packets, those of the adversary as it crafted them; its memory; its notes.

    Raises:
        IllegalPayloadError: the attack returned a payload that is not legal, or too many rows.
            What a server should reject goes out as raw bytes.
    """
    rows = situation.rows
    if len(rows) == 0:
        return situation.honest.encode(), memory, {}
    view = attack_view(attack, situation)
    crafted, memory = attack.craft(view, memory)
    if isinstance(crafted, Payload):
        require_same_form(situation.honest, crafted)
        crafted.check()
        forged = crafted.encode()
    else:
        forged = [Packet.raw(data) for data in crafted]
    if len(forged) != len(rows):
        raise IllegalPayloadError(
            f"{type(attack).__name__}.craft must return {len(rows)} messages, got {len(forged)}"
        )
    benign = situation.benign
    packets = dict(zip(benign.tolist(), situation.honest.take(benign).encode(), strict=True))
    packets |= dict(zip(rows.tolist(), forged, strict=True))
    return [packets[i] for i in range(len(packets))], memory, view.notes


def attack_view(attack: Attack, situation: Situation) -> AttackView:
    """The situation, as far as the attack declares that it must see it."""
    needs, rows = attack.needs(), situation.rows
    own = situation.honest.take(rows)
    return AttackView(
        own=own,
        updates=situation.updates[rows],
        seen=situation.honest.take(situation.benign) if needs.tier == "all" else own,
        n=len(situation.honest),
        broadcast=situation.view.broadcast.take(range(len(situation.view.broadcast))),
        step=situation.view.step,
        key=situation.key,
        compress=situation.compress,
        defense=_oracle(situation) if needs.defense else None,
        state=copy.deepcopy(situation.state) if needs.state else None,
    )


def _oracle(situation: Situation) -> Oracle:
    view = dataclasses.replace(situation.view, key=situation.key.fold("oracle"))
    state = copy.deepcopy(situation.defense_state)

    def ask(sent: Payload) -> Tensor:
        received = situation.honest.put(situation.rows, sent)
        return situation.defense.aggregate(received, copy.deepcopy(state), view)[0]

    return Oracle(situation.defense, ask)


def gains(
    situation: Situation, received: Payload, accepted: Tensor, aggregate: Tensor
) -> dict[str, float | None]:
    """How far the adversary moved the aggregate, and how far it would have moved the plain mean.

    Both are L2 distances to what honest messages would have given, relative to that; None without
    malicious rows or where a number is not finite.
    """
    if len(situation.rows) == 0:
        return {}
    state = copy.deepcopy(situation.defense_state)
    clean, _ = situation.defense.aggregate(situation.honest, state, situation.view)
    everyone = torch.ones(len(accepted), dtype=torch.bool)
    share, all_shares = _shares(situation.view, accepted), _shares(situation.view, everyone)
    honest_mean = all_shares @ situation.honest.values().to(torch.float32)
    sent_mean = share @ received.values().to(torch.float32)
    return {
        "gain": _relative(aggregate, clean),
        "gain_mean": _relative(sent_mean, honest_mean),
    }


def _shares(view: ServerView, rows: Tensor) -> Tensor:
    weights = view.weights[rows]
    return (weights / weights.sum()).to(view.broadcast.values().device, torch.float32)


def _relative(moved: Tensor, reference: Tensor) -> float | None:
    norm = torch.linalg.vector_norm
    distance = norm(moved.double() - reference.double()) / norm(reference.double()).clamp_min(1e-12)
    return float(distance) if bool(torch.isfinite(distance)) else None
