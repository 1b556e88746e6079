"""Rehearsal of an attack: loss, gradient and server step on the samples of its own clients."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fedbench.api import Deployed, Rehearsal, hooks
from fedbench.core.rng import Secret
from fedbench.core.trees import Tree
from fedbench.executors.training import Executor, Loop
from fedbench.payload import Payload

BATCH = 1024


def rehearsal(
    executor: Executor,
    server: Any,
    broadcast: Payload,
    n: int,
    x: Tensor,
    y: Tensor,
    secret: Secret,
) -> Rehearsal:
    """Return what the adversary can try out in a round.

    Protocol and network are public, and so is the server's state: it is made of what all clients
    were sent, by public steps. The server's draws are not; the adversary draws its own.

    Args:
        executor: Whose protocol, network and loss are used; not itself, since it may hold the
            samples of others.
        server: State of the protocol at the server; no trial changes it.
        broadcast: One row, received by a client of the adversary.
        n: Messages of the round.
        x: Images of the adversary's clients.
        y: Their labels.
        secret: Root of the adversary's draws.
    """
    protocol = executor.protocol
    shared = executor.shared
    own = Loop(protocol, shared, executor.schedule, precision=executor.precision)
    layout = protocol.trained(shared)

    def losses(model: Deployed, x: Tensor, y: Tensor) -> Tensor:
        ensemble = [model] if isinstance(model, dict) else model
        batches = []
        with torch.no_grad():
            for images, labels in zip(torch.split(x, BATCH), torch.split(y, BATCH), strict=True):
                chances = [shared.network.logits(m, images).softmax(dim=1) for m in ensemble]
                mean = torch.stack(chances).mean(dim=0)
                batches.append(mean.gather(1, labels[:, None])[:, 0])
        return -torch.cat(batches).nan_to_num(0.0).clamp_min(1e-30).log()

    def gradients(tree: Tree, x: Tensor, y: Tensor, draw: int) -> Tensor:
        leaves = {name: leaf.detach().requires_grad_() for name, leaf in tree.items()}
        key = secret.key("gradient", draw)
        with torch.enable_grad():
            loss, _ = own.loss(leaves, own.frozen, x, y, key)
        parts = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
        return layout.flatten(dict(zip(leaves, parts, strict=True)))

    def steps(deployed: bool, aggregates: Sequence[Tensor]) -> Any:
        state = server
        for ahead, aggregate in enumerate(aggregates):
            key = secret.key("server", ahead)
            state = hooks.ask(protocol, "server_step", object, shared, state, aggregate, n, key)
        if deployed:
            key = secret.key("model", len(aggregates))
            return hooks.model(protocol, shared.network.shapes, shared, state, key)
        sent = broadcast
        if aggregates:
            key = secret.key("broadcast", len(aggregates))
            sent = hooks.broadcast(protocol, shared, state, [0], key)
        return hooks.ask(protocol, "receive", dict, shared, sent)

    return Rehearsal(x, y, losses, gradients, steps)
