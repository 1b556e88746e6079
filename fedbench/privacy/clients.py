"""Privacy mechanism and compression on the clients of a round."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from fedbench.api import Mechanism, Memory, Protocol, Shared, hooks
from fedbench.core.rng import Key
from fedbench.core.trees import Tree
from fedbench.payload import Payload


def protect_updates(
    mechanism: Mechanism,
    updates: Tensor,
    reference: Tensor,
    keys: Sequence[Key],
    complies: Tensor,
    state: Any,
) -> tuple[Tensor, Any]:
    """`Mechanism.on_updates` on the rows ``complies (n,)`` bool of ``updates (n, d)``.

    ``reference (r, d)`` has one row for all, or one for each; ``keys`` are the mechanism's own.
    """
    rows = complies.nonzero()[:, 0]
    if not len(rows) or type(mechanism).on_updates is Mechanism.on_updates:
        return updates, state
    here = rows.to(updates.device)
    reference = reference.expand(len(updates), -1)[here]
    noise = [keys[row] for row in rows.tolist()]
    protected, state = hooks.on_updates(mechanism, updates[here], reference, noise, state)
    return updates.index_copy(0, here, protected.to(updates)), state


def compress(
    protocol: Protocol[Any],
    shared: Shared,
    updates: Tensor,
    keys: Sequence[Key],
    memory: Sequence[Memory],
    broadcast: Payload,
) -> tuple[Payload, Sequence[Memory]]:
    """`Protocol.message`; where nobody takes part, no rows of its form.

    The form is that of a client that received the ``broadcast`` and took no step: what some
    messages are made of, `Protocol.local_update` alone remembers.
    """
    if len(updates):
        return hooks.message(protocol, shared, updates, keys, memory)
    tree = protocol.receive(shared, broadcast.take([0]))
    with hooks.Hook(protocol, "local_update"):
        moved, kept = protocol.local_update(tree, [], _no_step, Key(0), protocol.memory(shared))
    row = protocol.trained(shared).flatten(moved)[None]
    form, _ = hooks.message(protocol, shared, row, [Key(0)], [kept])
    return form.take([]), []


def _no_step(tree: Tree, x: Tensor, y: Tensor, key: Key) -> Tree:
    raise AssertionError("a client without batches takes no step")


def protect_payload(
    mechanism: Mechanism, payload: Payload, keys: Sequence[Key], complies: Tensor
) -> Payload:
    """`Mechanism.on_payload` on those rows of a payload."""
    rows = complies.nonzero()[:, 0].tolist()
    if not rows or type(mechanism).on_payload is Mechanism.on_payload:
        return payload
    noise = [keys[row].fold("payload") for row in rows]
    return payload.put(rows, hooks.on_payload(mechanism, payload.take(rows), noise))
