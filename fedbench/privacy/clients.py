"""Application of the privacy mechanism and the compression to the clients of a round."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fedbench.api import Batches, Mechanism, Memory, Protocol, Shared, hooks
from fedbench.core.blame import Hook
from fedbench.core.errors import require
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
    """Apply `Mechanism.on_updates` to the rows ``complies (n,)`` bool of ``updates (n, d)``.

    ``reference (r, d)`` has one row for all, or one for each; ``keys`` are the mechanism's own.
    """
    rows = complies.nonzero()[:, 0]
    if not len(rows) or type(mechanism).on_updates is Mechanism.on_updates:
        return updates, state
    noise = [keys[row] for row in rows.tolist()]
    rows = rows.to(updates.device)
    reference = reference.expand(len(updates), -1)[rows]
    protected, state = hooks.on_updates(mechanism, updates[rows], reference, noise, state)
    return updates.index_copy(0, rows, protected.to(updates)), state


def compress(
    protocol: Protocol[Any],
    shared: Shared,
    updates: Tensor,
    keys: Sequence[Key],
    memory: Sequence[Memory],
    broadcast: Payload,
) -> tuple[Payload, Sequence[Memory]]:
    """Return `Protocol.message` of the ``updates (n, d)``; of no updates, a payload without rows.

    Its form is that of a client that took no step, since some depend on what a step remembers.
    """
    if len(updates):
        return hooks.message(protocol, shared, updates, keys, memory)
    return untrained(protocol, shared, broadcast.take([0]), [protocol.memory(shared)]).take([]), []


def untrained(
    protocol: Protocol[Any], shared: Shared, broadcast: Payload, memories: Sequence[Memory]
) -> Payload:
    """Return the messages of clients with these ``memories`` that took no step.

    ``broadcast`` has one row for all of them, or one for each.
    """

    def no_step(tree: Tree, x: Tensor, y: Tensor, key: Key) -> Tree:
        raise AssertionError("a client without batches takes no step")

    network = shared.network
    nothing = Batches([], weights=network.weights, statistics=network.statistics)
    updates = []
    remembered = []
    for row, memory in enumerate(memories):
        tree = protocol.receive(shared, broadcast.take([row % len(broadcast)]))
        with Hook(protocol, "local_update"):
            moved, after = protocol.local_update(tree, nothing, no_step, Key(0), memory)
        updates.append(protocol.trained(shared).flatten(moved))
        remembered.append(after)
    keys = [Key(0)] * len(memories)
    return hooks.message(protocol, shared, torch.stack(updates), keys, remembered)[0]


def protect_payload(
    mechanism: Mechanism, payload: Payload, keys: Sequence[Key], complies: Tensor
) -> Payload:
    """Apply `Mechanism.on_payload` to the rows ``complies (n,)`` bool of a payload."""
    rows = complies.nonzero()[:, 0].tolist()
    if not rows or type(mechanism).on_payload is Mechanism.on_payload:
        return payload
    noise = [keys[row].fold("payload") for row in rows]
    return payload.put(rows, hooks.on_payload(mechanism, payload.take(rows), noise))


def within(x: Tensor, c: float) -> Tensor:
    """Return ``x`` clipped to what its type holds of ``[c, 1 - c]``, so that no bound is passed.

    The float32 next to ``1 - 1e-6`` may be nearer to 1 by 3 % of 1e-6.

    >>> 1 - within(torch.ones(1, dtype=torch.float32), 1.2e-6).double() >= 1.2e-6
    tensor([True])
    """
    ends = torch.tensor([c, 1 - c], dtype=torch.float64)
    low, high = ends.to(x.dtype)
    low = torch.where(low.double() < ends[0], low.nextafter(torch.ones_like(low)), low)
    high = torch.where(high.double() > ends[1], high.nextafter(torch.zeros_like(high)), high)
    return x.clamp(float(low), float(high))


ROUNDING = 1e-6  # relative error of norms in float32, at most
LEAST_CLIP = 1e-30  # float32 rounds much shorter updates to the few numbers it has near 0


def require_clip(subject: str, clip: float) -> None:
    """Check a clip: rounded to float32, a vector of that norm must not be longer."""
    requirement = f">= {LEAST_CLIP:g}: float32 rounds shorter updates to longer ones"
    require(subject, clip, clip >= LEAST_CLIP, requirement)


def clipped(x: Tensor, reference: Tensor, radius: float) -> tuple[Tensor, Tensor]:
    """Return ``reference + y min(1, radius / |y|)`` with ``y = x - reference``, rows ``(n, d)``.

    The second result tells which rows needed no clipping, ``(n,)`` bool. A row that is not finite
    becomes its reference, so that the guarantee holds for it too.

    >>> x, zeros = torch.tensor([[3.0, 4.0], [0.3, 0.4]]), torch.zeros(2, 2)
    >>> clipped(x, zeros, 1.0)[0].norm(dim=1)
    tensor([1.0000, 0.5000])
    """
    y = x - reference
    y = torch.where(torch.isfinite(y).all(dim=1, keepdim=True), y, 0.0)
    norms = torch.linalg.vector_norm(y, dim=1, keepdim=True, dtype=torch.float64)
    inside = norms <= radius
    factors = torch.where(inside, 1.0, radius * (1 - ROUNDING) / norms.clamp_min(1e-300))
    return reference + (y.double() * factors).to(y), inside[:, 0]
