"""FedSparse: spike and slab priors close groups of weights, on the server and the wire."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import softplus

from fedbench.api import (
    Batches,
    Grad,
    Keys,
    LocalStep,
    Memories,
    Memory,
    Messages,
    Protocol,
    Shared,
)
from fedbench.core.errors import ConfigError, require
from fedbench.core.rng import Key
from fedbench.core.trees import Layout, Tree
from fedbench.payload import GatedVectors, Payload
from fedbench.payload.sparse import Gating, Governor, governed
from fedbench.protocols.fedavg import initial_weights
from fedbench.protocols.optimizers import SGD, Adam, Adamax

_THRESHOLD = ".threshold"
_START = math.log(0.99 / 0.01)  # logit of the initial theta


def group_axis(shape: Sequence[int]) -> int:
    """Return the axis of a layer along which groups are counted: filters, or inputs."""
    return 1 if len(shape) == 2 else 0


def group_norms(w: Tensor) -> Tensor:
    """Return ``||w_g||_2`` of each group of a layer."""
    if w.ndim == 1:  # where torch would take the norm of all of them
        return w.abs()
    axis = group_axis(w.shape)
    norms: Tensor = torch.linalg.vector_norm(w, dim=[i for i in range(w.ndim) if i != axis])
    return norms


def along(z: Tensor, w: Tensor) -> Tensor:
    """Reshape ``z``, a number for each group, to be multiplied with the layer ``w``."""
    shape = [1] * w.ndim
    shape[group_axis(w.shape)] = len(z)
    return z.reshape(shape)


def initial_threshold(norms: Tensor, temperature: float) -> Tensor:
    """Return ``v`` with ``theta = sigmoid((||w_g|| - softplus(v_g)) / T) = 0.99``, group by group.

    A softplus cannot be negative: where ``||w_g|| <= 4.595 T`` no threshold gives 0.99 (S6), and
    ``T / 1000`` comes within 0.001 of the largest possible logit; a group of zeros has nearly 1/2.
    """
    tau = (norms.double() - temperature * _START).clamp_min(temperature / 1000)
    return (tau + torch.log(-torch.expm1(-tau))).to(norms)  # the inverse of softplus


@lru_cache(maxsize=8)
def gates_of(weights: Layout, output: bool) -> Layout:
    """Return the layout of a threshold for each group of each layer, the last only if ``output``.

    `ConfigError` for a weight without dimensions, which has no groups, and where none has gates.
    """
    for name, shape in zip(weights.names, weights.shapes, strict=True):
        if not shape:
            raise ConfigError(
                f"--protocol fedsparse must have weights with groups, got the number {name}; leave "
                "it out of ModuleModel(weights=...)"
            )
    layers = list(zip(weights.names, weights.shapes, strict=True))[: None if output else -1]
    if not layers:
        raise ConfigError(
            "--protocol fedsparse:gate_output=false must have a model of more layers than the last "
            f"one, got the weights {', '.join(weights.names)} alone; leave gate_output out"
        )
    return Layout.of({name + _THRESHOLD: (shape[group_axis(shape)],) for name, shape in layers})


@lru_cache(maxsize=8)
def gating(weights: Layout, output: bool) -> Gating:
    """Return the map from the weights to the gates of `gates_of` that govern them."""
    layers: list[tuple[tuple[int, ...], tuple[Governor, ...]]] = []
    gated = gates_of(weights, output).names
    start = 0
    for name, shape in zip(weights.names, weights.shapes, strict=True):
        axis = group_axis(shape)
        layers.append((shape, ((axis, start, 1),) if name + _THRESHOLD in gated else ()))
        start += shape[axis]
    return tuple(layers)


def split_tree(tree: Tree) -> tuple[Tree, Tree]:
    """Split a tree into parameters of the network and thresholds."""
    v = {name: x for name, x in tree.items() if name.endswith(_THRESHOLD)}
    return {name: x for name, x in tree.items() if name not in v}, v


GAMMA = -0.1
ZETA = 1.1
BETA = 2 / 3
_MARGIN = 1e-6  # distance of uniform draws from 0 and 1, whose logits are infinite


def hard_concrete(log_alpha: Tensor, u: Tensor) -> Tensor:
    """Return the gates in [0, 1] from ``u`` uniform in [0, 1), differentiable in ``log_alpha``.

    ``z = clip(s (zeta - gamma) + gamma, 0, 1)``, ``s = sigmoid((logit(u) + log_alpha) / beta)``.

    References:
        Louizos, Welling and Kingma, "Learning Sparse Neural Networks through L0 Regularization",
        ICLR 2018, https://arxiv.org/abs/1712.01312, equations 10 and 11; constants as there.
    """
    s = torch.sigmoid((torch.logit(u.to(log_alpha), _MARGIN) + log_alpha) / BETA)
    return (s * (ZETA - GAMMA) + GAMMA).clamp(0, 1)


def open_chance(log_alpha: Tensor) -> Tensor:
    """Return ``R(z > 0) = sigmoid(log_alpha - beta log(-gamma / zeta))``, equation 12."""
    return torch.sigmoid(log_alpha - BETA * math.log(-GAMMA / ZETA))


@dataclass(frozen=True, eq=False)
class Gated:
    """State of the FedSparse server."""

    w: Tensor  # ``(d + p,)`` weights, not yet pruned, then the rest
    v: Tensor  # ``(G,)`` thresholds before the softplus
    adam: Tree  # memory of the optimiser of ``w``
    adamax: Tree  # memory of the optimiser of ``v``


@dataclass(frozen=True, kw_only=True)
class FedSparse(Protocol[Gated]):
    """Groups of weights have gates that open with their magnitude; only open groups travel.

    A gate is open with probability ``theta_g = sigmoid((||w_g|| - softplus(v_g)) / T)``. Clients
    train weights and thresholds through sampled gates and send one exact sample ``z ~ Bern(pi_s)``
    with the weights behind open gates; the server moves both by Adam and Adamax and sends only
    groups with ``theta > epsilon``. A group is a filter, or the weights of one input unit of a
    fully-connected layer. Other parameters have no gate, travel as updates, and move by Adam.

    Where the paper is silent or disagrees with itself (docs/errata.md, S1 to S8): the loss is the
    mean cross-entropy, plus ``lambda0 |g| R(z_g > 0)``, minus ``ce_scale (R logit theta + log(1 -
    theta))`` once a gate, plus ``drift / 2 R (w_s - w)^2`` with the hard-concrete R of equation 31.
    ``w`` is detached in ``theta``, ``pi`` and R; the server's gradients are means over clients, not
    sums, and that of ``w`` has no lambda. Pruned weights stay in the server's optimiser, whose
    momentum could lift one again. Deployed weights are not multiplied by ``theta``.

    Args:
        lr: Learning rate of a client's weights, SGD.
        threshold_lr: Learning rate of a client's thresholds, Adamax, afresh every round.
        server_lr: Learning rate of the server's weights, Adam.
        server_threshold_lr: Learning rate of the server's thresholds, Adamax.
        lambda0: L0 penalty; the paper's low, mid and high are 5e-7, 5e-6 and 5e-5 (S8).
        per: What pays it: each ``weight`` of a group, as in appendix E, or each ``gate`` once.
        ce_scale: Factor of the cross-entropy between gates and ``theta``.
        drift: The ``lambda`` that pulls a client's weights to the server's.
        temperature: Temperature ``T`` of the gates.
        epsilon: Groups at or below are pruned.
        prune: Whether the broadcast is the pruned model, or all of it.
        gate_output: Whether the last layer has gates. The paper spares it in ResNet20 only.

    References:
        Louizos, Reisser, Soriaga and Welling, "A Graphical Model Perspective on Federated
        Learning", ICLR 2021 workshop on Distributed and Private Machine Learning, Algorithms 1 and
        2, equations 9 to 16, appendices A, B, C, E and F; later "An Expectation-Maximization
        Perspective on Federated Learning", https://arxiv.org/abs/2111.10192.
    """

    sends = GatedVectors
    weighted = False

    lr: float = 0.05
    threshold_lr: float = 1e-3
    server_lr: float = 1e-3
    server_threshold_lr: float = 1e-2
    lambda0: float = 5e-6
    per: Literal["weight", "gate"] = "weight"
    ce_scale: float = 1e-4
    drift: float = 0.0
    temperature: float = 1e-3
    epsilon: float = 0.1
    prune: bool = True
    gate_output: bool = True

    def __post_init__(self) -> None:
        for name in ("lr", "threshold_lr", "server_lr", "server_threshold_lr", "temperature"):
            value = getattr(self, name)
            require(f"FedSparse.{name}", value, value > 0, "> 0")
        for name in ("lambda0", "ce_scale", "drift"):
            value = getattr(self, name)
            require(f"FedSparse.{name}", value, value >= 0, ">= 0")
        require("FedSparse.epsilon", self.epsilon, 0 < self.epsilon < 1, "in (0, 1)")

    def gated(self, shared: Shared) -> Layout:
        """Return the layout of the thresholds."""
        return gates_of(shared.weights, self.gate_output)

    def gating(self, shared: Shared) -> Gating:
        return gating(shared.weights, self.gate_output)

    def trained(self, shared: Shared) -> Layout:
        layout = shared.layout
        gated = self.gated(shared)
        return Layout(layout.names + gated.names, layout.shapes + gated.shapes)

    def log_alpha(self, w: Tree, v: Tree) -> Tree:
        """Return ``logit(pi_g) = (||w_g|| - tau_g) / T`` by thresholds' names, equation 16."""
        layers = [w[name.removesuffix(_THRESHOLD)].detach() for name in v]
        return {
            name: (group_norms(layer) - softplus(threshold)) / self.temperature
            for layer, (name, threshold) in zip(layers, v.items(), strict=True)
        }

    def server_logits(self, shared: Shared, state: Gated) -> Tensor:
        """Return ``(G,)`` logits of ``theta`` on the server."""
        thresholds = self.gated(shared)
        logits = self.log_alpha(shared.layout.unflatten(state.w), thresholds.unflatten(state.v))
        return thresholds.flatten(logits)

    def survivors(self, shared: Shared, state: Gated) -> Tensor:
        """Return ``(G,)`` bool: groups with ``theta > epsilon``."""
        return torch.sigmoid(self.server_logits(shared, state)) > self.epsilon

    def pruned(self, shared: Shared, state: Gated) -> Tensor:
        """Return ``(d + p,)`` of the pruned model: ``I[theta > epsilon] w``, and the rest."""
        survive = governed(self.survivors(shared, state)[None], self.gating(shared))[0]
        d = shared.weights.d
        return torch.cat([state.w[:d] * survive, state.w[d:]])

    def init(self, shared: Shared) -> Gated:
        """Draw the network's weights; a gate is open with probability 0.99 if it can be (S6)."""
        taken = [name for name in shared.layout.names if name.endswith(_THRESHOLD)]
        if taken:
            raise ConfigError(
                f"--protocol fedsparse must have a model without parameters named ...{_THRESHOLD}, "
                f"which its gates are called, got {taken[0]}; rename it"
            )
        w = initial_weights(shared)
        tree = shared.layout.unflatten(w)
        thresholds = self.gated(shared)
        starts = {
            name: initial_threshold(
                group_norms(tree[name.removesuffix(_THRESHOLD)]), self.temperature
            )
            for name in thresholds.names
        }
        v = thresholds.flatten(starts)
        adam = self._adam(shared).init(tree)
        return Gated(w, v, adam, Adamax(lr=self.server_threshold_lr).init({"v": v}))

    def _adam(self, shared: Shared) -> Adam:
        return Adam(lr=self.server_lr, statistics=shared.network.statistics)

    def broadcast(self, shared: Shared, state: Gated, clients: Sequence[int], key: Key) -> Payload:
        d = shared.weights.d
        gates = self.survivors(shared, state)
        gates = gates if self.prune else torch.ones_like(gates)
        layers = (*self.gating(shared), ((len(gates),), ((0, 0, 1),)))
        x = torch.cat([state.w[:d], state.v]) * governed(gates[None], layers)[0]
        return GatedVectors(gates[None], x[None], state.w[d:][None], layers)

    def receive(self, shared: Shared, broadcast: Payload) -> Tree:
        """Read weights and thresholds, 0 in a pruned group, which no gate survives."""
        assert isinstance(broadcast, GatedVectors)
        d = shared.weights.d
        x = broadcast.x[0]
        return self.trained(shared).unflatten(torch.cat([x[:d], broadcast.rest[0], x[d:]]))

    def weights(self, trained: Tree, frozen: Tree, key: Key) -> Tree:
        """Return ``w_s * z``, with one hard-concrete gate a group."""
        w, v = split_tree(trained)
        for name, log_alpha in self.log_alpha(w, v).items():
            u = key.fold(name).uniform(*log_alpha.shape, device=log_alpha.device)
            z = hard_concrete(log_alpha, u)
            layer = name.removesuffix(_THRESHOLD)
            w[layer] = w[layer] * along(z, w[layer])
        return w

    def local_update(
        self, tree: Tree, batches: Batches, grad: Grad, key: Key, memory: Memory
    ) -> tuple[Tree, Memory]:
        """Train weights and thresholds; remember what was received, for `message` (Algorithm 2)."""
        w, v = split_tree(tree)
        start = w
        prior = self.log_alpha(w, v)
        sgd = SGD(lr=self.lr, statistics=batches.statistics)
        adamax = Adamax(lr=self.threshold_lr)

        def step(
            carried: tuple[Tree, Tree, Tree, Tree], now: LocalStep
        ) -> tuple[Tree, Tree, Tree, Tree]:
            w, velocity, v, moments = carried
            gradient = grad(w | v, now.x, now.y, now.key)
            self._add_prior(gradient, w, v, start, prior)
            w_gradient, v_gradient = split_tree(gradient)
            moved = sgd.step(w, w_gradient, velocity)
            return *moved, *adamax.step(v, v_gradient, moments)

        carried = (w, sgd.init(w), v, adamax.init(v))
        w, _, v, _ = batches.scan(step, carried, key)
        received = torch.cat([x.reshape(-1) for x in tree.values()])
        return {name: x - tree[name] for name, x in (w | v).items()}, {"received": received}

    def _add_prior(self, gradient: Tree, w: Tree, v: Tree, start: Tree, prior: Tree) -> None:
        """Add the gradient of the penalties of a step to that of the loss, in place."""
        for name, log_alpha in self.log_alpha(w, v).items():
            layer = name.removesuffix(_THRESHOLD)
            chance = open_chance(log_alpha)
            payers = w[layer].numel() // len(log_alpha) if self.per == "weight" else 1
            price: float | Tensor = self.lambda0 * payers
            slope = chance * (1 - chance) * torch.sigmoid(v[name]) / self.temperature
            if self.drift:
                moved = w[layer] - start[layer]
                price = price + self.drift / 2 * group_norms(moved).square()
                gradient[layer] = gradient[layer] + self.drift * (along(chance, w[layer]) * moved)
            gradient[name] = gradient[name] - (price - self.ce_scale * prior[name]) * slope

    def message(self, shared: Shared, updates: Tensor, keys: Keys, memory: Memories) -> Messages:
        """Send ``z_s ~ Bern(pi_s)`` and ``z_s * w_s``, and the rest as updates."""
        d, p = shared.weights.d, shared.rest.d
        layers = self.gating(shared)
        local = updates + torch.stack([client["received"] for client in memory])
        gates = []
        for row, key in zip(local, keys, strict=True):
            w, v = split_tree(self.trained(shared).unflatten(row))
            chance = torch.sigmoid(self.gated(shared).flatten(self.log_alpha(w, v)))
            gates.append(key.fold("gates").bernoulli(chance))
        z = torch.stack(gates)
        w_s = torch.where(governed(z, layers), local[:, :d], local.new_zeros(()))
        return GatedVectors(z, w_s, updates[:, d : d + p], layers), [{} for _ in memory]

    def server_step(
        self, shared: Shared, state: Gated, aggregate: Tensor, n: int, key: Key
    ) -> Gated:
        """Take Algorithm 1's step: Adam along ``E[z (w_s - w)]``, Adamax on the thresholds."""
        d, p = shared.weights.d, shared.rest.d
        z, zw, rest = torch.split(aggregate.to(state.w), [len(state.v), d, p])
        theta = torch.sigmoid(self.server_logits(shared, state))
        w = self.pruned(shared, state) if self.prune else state.w
        g_w = torch.cat([governed(z[None], self.gating(shared))[0] * w[:d] - zw, -rest])
        g_v = (z * (1 - theta) - (1 - z) * theta) * torch.sigmoid(state.v) / self.temperature
        trees = shared.layout.unflatten
        tree, adam = self._adam(shared).step(trees(w), trees(g_w), state.adam)
        adamax = Adamax(lr=self.server_threshold_lr)
        moved, memory = adamax.step({"v": state.v}, {"v": g_v}, state.adamax)
        return Gated(shared.layout.flatten(tree), moved["v"], adam, memory)

    def model(self, shared: Shared, state: Gated, key: Key) -> Tree:
        return shared.layout.unflatten(self.pruned(shared, state))

    def local_model(self, shared: Shared, broadcast: Payload, sent: Payload) -> Tree:
        assert isinstance(broadcast, GatedVectors)
        assert isinstance(sent, GatedVectors)
        return shared.layout.unflatten(torch.cat([sent.x[0], broadcast.rest[0] + sent.rest[0]]))

    def model_bits(self, shared: Shared, state: Gated) -> int:
        survive = self.survivors(shared, state)
        weights = int(governed(survive[None], self.gating(shared)).sum())
        return 32 * (weights + shared.rest.d) + len(survive)
