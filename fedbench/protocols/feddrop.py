"""Federated dropout: every client trains another part of the network."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from fedbench.api import Batches, Grad, Keys, Memories, Memory, Messages, Shared
from fedbench.core.errors import ConfigError, require
from fedbench.core.rng import Key
from fedbench.core.trees import Layout, Tree
from fedbench.models.network import Network
from fedbench.payload import GatedVectors, Payload
from fedbench.payload.sparse import Gating, Governor, governed
from fedbench.protocols.fedavg import DenseWeights, masked, weights_in

_GATES = "part.gates"


def chain(weights: Layout) -> Gating | None:
    """Return the gates of units: a weight is open iff its output unit and its input unit are.

    Units are the outputs of every layer but the last; a flattened channel feeds as many inputs as
    it has pixels. None if the layers do not fit one behind the other, or have no inputs.

    >>> chain(Layout.of({"conv1": (2, 1, 3, 3), "fc1": (3, 8), "fc2": (5, 3)}))
    ... # doctest: +NORMALIZE_WHITESPACE
    (((2, 1, 3, 3), ((0, 0, 1),)), ((3, 8), ((1, 0, 4), (0, 2, 1))), ((5, 3), ((1, 2, 1),)))
    """
    layers: list[tuple[tuple[int, ...], tuple[Governor, ...]]] = []
    start = before = 0  # first units of this layer and of the one before
    for i, shape in enumerate(weights.shapes):
        if len(shape) < 2:
            return None
        governors: list[Governor] = []
        if i:
            pixels, remainder = divmod(shape[1], weights.shapes[i - 1][0])
            flattened = len(weights.shapes[i - 1]) > len(shape)
            if remainder or (pixels != 1 and not flattened):
                return None
            governors.append((1, before, pixels))
        if i < len(weights.shapes) - 1:
            governors.append((0, start, 1))
            before = start
            start += shape[0]
        layers.append((shape, tuple(governors)))
    return tuple(layers)


def is_chain(network: Network, layers: Gating, weights: Layout) -> bool:
    """Return whether the weights before a unit do not matter where those behind it are 0."""
    key = Key(0).fold("is_chain")
    units = sum(shape[0] for shape, _ in layers[:-1])
    gates = key.fold("gates").signs(1, units) > 0
    behind = tuple((shape, tuple(g for g in own if g[0] == 1)) for shape, own in layers)
    params = network.init(key.fold("init"))
    x = network.examples(2, key.fold("x"))

    def logits(gating: Gating) -> Tensor:
        masks = weights.unflatten(governed(gates, gating)[0])
        return network.logits(params | {name: params[name] * m for name, m in masks.items()}, x)

    return torch.allclose(logits(behind), logits(layers))


@dataclass(frozen=True, kw_only=True)
class FedDrop(DenseWeights):
    """Each client receives, trains and returns a random sub-network; the server adds the updates.

    A fixed number of filters of every convolution and of units of every hidden layer is dropped,
    anew for each client and round. Weights into and out of a dropped unit neither travel nor train.
    Inputs and outputs of the network stay, of which FedSparse's paper drops 0.01.

    The papers do not say how updates of different sub-networks are averaged, nor whether
    activations are scaled. Here the mean over all clients is divided by the probability that a
    client has a weight, and a sub-network divides its weights by the share of inputs that a layer
    keeps, as dropout does. Rules that take a median see mostly zeros where less than half of the
    clients have a weight.

    Args:
        conv: Share of each convolution's filters that is dropped, rounded down.
        dense: Share of each hidden fully-connected layer's units, rounded down.
        rescale: Whether weights are divided by the shares that are kept.

    References:
        Caldas, Konecny, McMahan and Talwalkar, "Expanding the Reach of Federated Learning by
        Reducing Client Resource Requirements", https://arxiv.org/abs/1812.07210, section 3.2; rates
        from Louizos et al. (see `FedSparse`), appendix C (Femnist).
    """

    sends = GatedVectors
    adapters = False
    adds = False  # the server divides the answer by the chance that a client has a weight

    conv: float = 0.2
    dense: float = 0.4
    rescale: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require("FedDrop.conv", self.conv, 0 <= self.conv < 1, "in [0, 1)")
        require("FedDrop.dense", self.dense, 0 <= self.dense < 1, "in [0, 1)")

    def kept(self, weights: Layout) -> list[int]:
        """Return the number of units that each layer but the last keeps."""
        rates = [self.conv if len(shape) == 4 else self.dense for shape in weights.shapes[:-1]]
        rows = zip(rates, weights.shapes, strict=False)
        return [shape[0] - math.floor(Fraction(repr(rate)) * shape[0]) for rate, shape in rows]

    def shares(self, weights: Layout) -> list[float]:
        """Return the share of each layer's inputs that is kept."""
        counts = zip(self.kept(weights), weights.shapes, strict=False)
        return [1.0, *(count / shape[0] for count, shape in counts)]

    def chances(self, shared: Shared) -> Tensor:
        """Return ``(d,)`` probability that a client has a weight."""
        weights = shared.weights
        outs = zip(self.shares(weights)[1:], weights.shapes, strict=False)
        units = torch.cat([torch.empty(0), *(torch.full(shape[:1], c) for c, shape in outs)])
        return governed(units[None].to(shared.device), _layers(weights))[0]

    def init(self, shared: Shared) -> Any:
        """Draw the weights as the network does; `ConfigError` for networks that are no chain.

        Batch norm is refused too: the statistics of a dropped filter are those of zeros.
        """
        layers = chain(shared.weights)
        network = shared.network
        if network.statistics or not layers or not is_chain(network, layers, shared.weights):
            raise ConfigError(
                "--protocol feddrop needs a model whose layers follow one another, without "
                f"residuals or batch norm, got {type(network).__name__}; use lenet or conv4"
            )
        return super().init(shared)

    def broadcast(self, shared: Shared, state: Any, clients: Sequence[int], key: Key) -> Payload:
        w = weights_in(state)
        weights = shared.weights
        layers = _layers(weights)
        counts = self.kept(weights)
        gates = torch.zeros(len(clients), sum(s[0] for s in weights.shapes[:-1]), dtype=torch.bool)
        for row, client in zip(gates, clients, strict=True):
            start = 0
            for layer, (count, shape) in enumerate(zip(counts, weights.shapes, strict=False)):
                drawn = key.fold("units", client, layer).permutation(shape[0])[:count]
                row[start + drawn] = True
                start += shape[0]
        gates = gates.to(shared.device)
        x = w[: weights.d] * governed(gates, layers)
        return GatedVectors(gates, x, w[weights.d :].repeat(len(clients), 1), layers)

    def receive(self, shared: Shared, broadcast: Payload) -> Tree:
        assert isinstance(broadcast, GatedVectors)
        tree = shared.layout.unflatten(torch.cat([broadcast.x[0], broadcast.rest[0]]))
        return tree | {_GATES: broadcast.gates[0].to(torch.float32)}

    def frozen(self, shared: Shared) -> Tree:
        """Return each layer's share of kept inputs, if its sums are to be rescaled."""
        shares = zip(shared.weights.names, self.shares(shared.weights), strict=True)
        scales = {name: torch.tensor(share, device=shared.device) for name, share in shares}
        return scales if self.rescale else {}

    def weights(self, trained: Tree, frozen: Tree, key: Key) -> Tree:
        """Rescale the sub-network, so that its sums are as large as those of the whole."""
        return trained | {name: trained[name] / share for name, share in frozen.items()}

    def local_update(
        self, tree: Tree, batches: Batches, grad: Grad, key: Key, memory: Memory
    ) -> tuple[Tree, Memory]:
        """Train the sub-network; remember its gates, for `message`."""
        gates = tree[_GATES]
        start = {name: x for name, x in tree.items() if name != _GATES}
        weights = batches.weights_of(start)
        masks = weights.unflatten(governed(gates[None], _layers(weights))[0])
        update, memory = super().local_update(start, batches, masked(grad, masks), key, memory)
        return update, memory | {"gates": gates}

    def message(self, shared: Shared, updates: Tensor, keys: Keys, memory: Memories) -> Messages:
        gates = torch.stack([client["gates"] for client in memory]) > 0.5
        d = shared.weights.d
        blank = GatedVectors(gates, updates[:, :d], updates[:, d:], _layers(shared.weights))
        return blank.nearest(torch.cat([gates.to(updates), updates], dim=1)), [{} for _ in memory]

    def move(self, shared: Shared, w: Tensor, aggregate: Tensor, n: int, key: Key) -> Tensor:
        """Return ``E[z update] / P[z = 1]``, ``z`` being 1 where a client has the weight."""
        d = shared.weights.d
        update = aggregate[len(aggregate) - len(w) :].to(w)
        return torch.cat([update[:d] / self.chances(shared), update[d:]])

    def local_model(self, shared: Shared, broadcast: Payload, sent: Payload) -> Tree:
        assert isinstance(broadcast, GatedVectors)
        assert isinstance(sent, GatedVectors)
        x, rest = broadcast.x[0] + sent.x[0], broadcast.rest[0] + sent.rest[0]
        tree = shared.layout.unflatten(torch.cat([x, rest]))
        return self.weights(tree, self.frozen(shared), Key(0))


def _layers(weights: Layout) -> Gating:
    layers = chain(weights)
    assert layers is not None  # `FedDrop.init` has refused the others
    return layers
