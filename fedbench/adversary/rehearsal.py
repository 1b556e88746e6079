"""Rehearsal of an attack: loss, gradient and server step on the samples of its own clients."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fedbench.api import Deployed, Rehearsal, hooks
from fedbench.core.blame import ask
from fedbench.core.rng import Secret
from fedbench.core.trees import Tree
from fedbench.executors.training import Executor, Loop
from fedbench.models.network import laid_out
from fedbench.payload import Payload

BATCH = 1024
UNBOUNDED = 1e60  # loss of a sample without finite scores, above that of any other


def rehearsal(
    executor: Executor,
    server: Any,
    broadcast: Payload,
    client: int,
    n: int,
    x: Tensor,
    y: Tensor,
    secret: Secret,
) -> Rehearsal:
    """Return what the adversary can try out in a round.

    Protocol and network are public. The server's state is used as it is: it is made of public steps
    from what clients were sent, of which one client may have heard a part only (FedDrop). The
    server's draws are not known; the adversary draws its own.

    Args:
        executor: Executor whose protocol, network and precision are used. The rehearsal does not
            keep it: it may hold other clients' samples.
        server: State of the protocol at the server; no trial changes it.
        broadcast: One row, received by the ``client`` of the adversary.
        client: Id of that client, which gets the broadcasts that are rehearsed.
        n: Messages of the round.
        x: Images of the adversary's clients.
        y: Their labels.
        secret: Root of the adversary's draws.
    """
    protocol = executor.protocol
    shared = executor.shared
    own = Loop(protocol, shared, executor.schedule, precision=executor.precision)
    layout = protocol.trained(shared)
    shapes = dict(zip(layout.names, layout.shapes, strict=True))

    def losses(model: Deployed, x: Tensor, y: Tensor) -> Tensor:
        ensemble = [model] if isinstance(model, dict) else model
        batches = []
        with torch.no_grad():
            for images, labels in zip(torch.split(x, BATCH), torch.split(y, BATCH), strict=True):
                inputs = laid_out(images)
                scores = [shared.network.logits(m, inputs).to(torch.float64) for m in ensemble]
                logs = torch.stack(scores).log_softmax(dim=2).logsumexp(dim=0)
                batches.append(math.log(len(ensemble)) - logs.gather(1, labels[:, None])[:, 0])
        return torch.cat(batches).nan_to_num(nan=UNBOUNDED, posinf=UNBOUNDED)

    def gradients(tree: Tree, x: Tensor, y: Tensor, draw: int) -> Tensor:
        leaves = {name: leaf.detach().requires_grad_(name in shapes) for name, leaf in tree.items()}
        key = secret.key("gradient", draw)
        with torch.enable_grad():
            loss, _ = own.loss(leaves, own.frozen, laid_out(x), y, key)
        trained = [leaves[name] for name in layout.names]
        parts = torch.autograd.grad(loss, trained, materialize_grads=True)
        return layout.flatten(dict(zip(layout.names, parts, strict=True)))

    def pixels(tree: Tree, x: Tensor, y: Tensor, draw: int) -> Tensor:
        leaves = {name: leaf.detach() for name, leaf in tree.items()}
        images = x.detach().clone().requires_grad_()
        with torch.enable_grad():
            inputs = laid_out(images)
            loss, _ = own.loss(leaves, own.frozen, inputs, y, secret.key("gradient", draw))
        return torch.autograd.grad(loss, images)[0]

    def steps(deployed: bool, aggregates: Sequence[Tensor]) -> Any:
        state = server
        for ahead, aggregate in enumerate(aggregates):
            key = secret.key("server", ahead)
            state = ask(protocol, "server_step", object, shared, state, aggregate, n, key)
        if deployed:
            key = secret.key("model", len(aggregates))
            return hooks.model(protocol, shared.network.shapes, shared, state, key)
        sent = broadcast
        if aggregates:
            key = secret.key("broadcast", len(aggregates))
            sent = hooks.broadcast(protocol, shared, state, [client], key)
        tree = ask(protocol, "receive", dict, shared, sent)
        # Of a mixture of models (FedMoG), from which a client draws one, the mean.
        mixed = {name for name in shapes if tree[name].dim() > len(shapes[name])}
        return {name: x.mean(dim=0) if name in mixed else x for name, x in tree.items()}

    network = shared.network
    names = layout.names
    still = network.statistics
    return Rehearsal(x, y, network.classes, names, losses, gradients, pixels, steps, still)
