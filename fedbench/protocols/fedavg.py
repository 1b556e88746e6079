"""Local SGD, and FedAvg: dense weights, averaged."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal

import torch
from torch import Tensor

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
    State,
)
from fedbench.core.errors import require
from fedbench.core.registry import UNWRITTEN
from fedbench.core.rng import Key
from fedbench.core.trees import Tree
from fedbench.payload import FloatVectors, HalfVectors, Payload
from fedbench.payload.floats import DTYPES, Half
from fedbench.protocols.optimizers import SGD, Adam, Optimizer, Yogi


def initial_weights(shared: Shared) -> Tensor:
    """Return ``(d,)`` parameters as the network draws them from the seed."""
    return shared.layout.flatten(shared.network.init(shared.key.fold("init"), shared.device))


def masked(grad: Grad, masks: Tree) -> Grad:
    """Return a gradient function whose layers named in ``masks`` are multiplied by their mask."""

    def masked_gradient(trained: Tree, x: Tensor, y: Tensor, key: Key) -> Tree:
        gradient = grad(trained, x, y, key)
        return gradient | {name: gradient[name] * mask for name, mask in masks.items()}

    return masked_gradient


@dataclass(frozen=True, kw_only=True)
class LocalSGD(Protocol[State], Generic[State]):
    """Clients run SGD with momentum from the broadcast and return how far they moved.

    Args:
        lr: Learning rate of a local step.
        momentum: Heavy-ball momentum, without dampening.
        weight_decay: Added to the gradient as ``weight_decay * parameter``.
        decay: Factor of the learning rate from each round to the next.
        anneal: Decay within a round: ``none``, or ``cosine``, by ``(1 + cos(pi e / epochs)) / 2``
            in epoch ``e``, from 0.
    """

    lr: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 1e-4
    decay: float = field(default=1.0, metadata=UNWRITTEN)
    anneal: Literal["none", "cosine"] = field(default="none", metadata=UNWRITTEN)

    def __post_init__(self) -> None:
        name = type(self).__name__
        require(f"{name}.lr", self.lr, self.lr > 0, "> 0")
        require(f"{name}.momentum", self.momentum, 0 <= self.momentum < 1, "in [0, 1)")
        require(f"{name}.weight_decay", self.weight_decay, self.weight_decay >= 0, ">= 0")
        require(f"{name}.decay", self.decay, 0 < self.decay <= 1, "in (0, 1]")

    def train(
        self,
        tree: Tree,
        batches: Batches,
        grad: Grad,
        key: Key,
        seen: Callable[[Tree, LocalStep], Tree] | None = None,
    ) -> Tree:
        """Return the tree after all steps; the optimiser starts afresh in every round.

        The gradient of a step is taken at what ``seen`` makes of the tree: by default the same.
        """
        sgd = SGD(
            lr=self.lr,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            statistics=batches.statistics,
        )

        def step(carried: tuple[Tree, Tree], now: LocalStep) -> tuple[Tree, Tree]:
            trained, velocity = carried
            rate = self.rate(batches, now)
            at = trained if seen is None else seen(trained, now)
            gradient = grad(at, now.x, now.y, now.key)
            trained, velocity = sgd.step(trained, gradient, velocity, rate)
            landed = self.landed(trained, tree, rate)
            return landed | {name: trained[name] for name in batches.statistics}, velocity

        return batches.scan(step, (tree, sgd.init(tree)), key)[0]

    def rate(self, batches: Batches, step: LocalStep) -> float | Tensor:
        """Return the learning rate of a step; a tensor where it depends on round or client."""
        peak: float | Tensor = self.lr
        if self.decay != 1:
            peak = self.lr * self.decay ** batches.round.to(torch.float64)
        if self.anneal == "none":
            return peak
        epoch = step.number * batches.epochs // step.of
        if isinstance(epoch, Tensor):
            return peak * ((1 + torch.cos(math.pi * epoch.to(torch.float64) / batches.epochs)) / 2)
        return peak * ((1 + math.cos(math.pi * epoch / batches.epochs)) / 2)

    def landed(self, trained: Tree, start: Tree, rate: float | Tensor) -> Tree:
        """Return the tree after a step at this ``rate`` from the round's ``start``.

        There is room here for a proximal step. What it says of running statistics is not used.
        """
        return trained

    def local_update(
        self, tree: Tree, batches: Batches, grad: Grad, key: Key, memory: Memory
    ) -> tuple[Tree, Memory]:
        trained = self.train(tree, batches, grad, key)
        return {name: trained[name] - x for name, x in tree.items()}, memory


@dataclass(frozen=True, eq=False)
class Optimised:
    """State of a server whose optimiser remembers something from step to step."""

    w: Tensor  # ``(d,)`` weights
    memory: Tree  # of the optimiser


def weights_in(state: Tensor | Optimised) -> Tensor:
    """Return ``(d,)`` weights in the state of a server of `DenseWeights`."""
    return state.w if isinstance(state, Optimised) else state


@dataclass(frozen=True, kw_only=True)
class DenseWeights(LocalSGD[Any]):
    """State is the weights ``(d,)``; clients send updates, not weights, to attacks and defenses.

    A subclass says in `move` how far the server would go; a server with an optimiser takes that for
    minus a gradient, and its state is `Optimised` weights. Running statistics are averaged,
    whatever the optimiser.

    ``yogi`` is FedYogi (`optimizers.Yogi`). ``adam`` is Kingma and Ba's, as in `FedSparse`, with
    beta1 = 0.9 and beta2 = 0.999 (`optimizers.Adam`); FedAdam is not quite that: it corrects no
    bias, starts the second moment at tau squared, and has beta2 = 0.99 in its experiments.

    Args:
        server: How the server moves: by the ``mean`` update, or along it by SGD with ``momentum``
            0.9, by ``adam`` or by ``yogi``.
        server_lr: Learning rate of the server; by default 1 for mean and momentum, else 0.001.
        server_tau: Number that adam and yogi add to the root of the second moment; by default 1e-8
            for adam, 0.001 for yogi.
    """

    server: Literal["mean", "momentum", "adam", "yogi"] = field(default="mean", metadata=UNWRITTEN)
    server_lr: float | None = field(default=None, metadata=UNWRITTEN)
    server_tau: float | None = field(default=None, metadata=UNWRITTEN)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("server_lr", "server_tau"):
            value = getattr(self, name)
            require(f"{type(self).__name__}.{name}", value, value is None or value > 0, "> 0")
        used = self.server_tau is None or self.server in ("adam", "yogi")
        requirement = "left out unless server is adam or yogi"
        require(f"{type(self).__name__}.server_tau", self.server_tau, used, requirement)

    @property
    def adds(self) -> bool:
        """True if the server moves by the mean as it is."""
        return self.server == "mean" and self._server_rate == 1

    @property
    def _server_rate(self) -> float:
        if self.server_lr is not None:
            return self.server_lr
        return 1.0 if self.server in ("mean", "momentum") else 1e-3

    def _server_optimizer(self, shared: Shared) -> Optimizer:
        rate = self._server_rate
        statistics = shared.network.statistics
        if self.server == "momentum":
            return SGD(lr=rate, momentum=0.9, statistics=statistics)
        kind = Adam if self.server == "adam" else Yogi
        if self.server_tau is None:
            return kind(lr=rate, statistics=statistics)
        return kind(lr=rate, epsilon=self.server_tau, statistics=statistics)

    def init(self, shared: Shared) -> Any:
        w = initial_weights(shared)
        if self.server == "mean":
            return w
        return Optimised(w, self._server_optimizer(shared).init(shared.layout.unflatten(w)))

    def broadcast(self, shared: Shared, state: Any, clients: Sequence[int], key: Key) -> Payload:
        return FloatVectors(weights_in(state)[None])

    def receive(self, shared: Shared, broadcast: Payload) -> Tree:
        return shared.layout.unflatten(broadcast.values()[0])

    def message(self, shared: Shared, updates: Tensor, keys: Keys, memory: Memories) -> Messages:
        return FloatVectors(updates), memory

    def move(self, shared: Shared, w: Tensor, aggregate: Tensor, n: int, key: Key) -> Tensor:
        """Return the move ``(d,)`` of the weights ``w`` by the ``aggregate`` of ``n`` clients."""
        return aggregate.to(w)

    def server_step(self, shared: Shared, state: Any, aggregate: Tensor, n: int, key: Key) -> Any:
        """Go along `move`, or have the optimiser go down its negative."""
        w = weights_in(state)
        move = self.move(shared, w, aggregate, n, key)
        if self.server == "mean":
            rate = self._server_rate
            t = len(w) - shared.statistics.d
            return w + (move if rate == 1 else torch.cat([rate * move[:t], move[t:]]))
        trees = shared.layout.unflatten
        tree, memory = self._server_optimizer(shared).step(trees(w), trees(-move), state.memory)
        return Optimised(shared.layout.flatten(tree), memory)

    def model(self, shared: Shared, state: Any, key: Key) -> Tree:
        return shared.layout.unflatten(weights_in(state))

    def local_model(self, shared: Shared, broadcast: Payload, sent: Payload) -> Tree | None:
        return shared.layout.unflatten(broadcast.values()[0] + sent.values()[0])

    def model_bits(self, shared: Shared, state: Any) -> int:
        return 32 * len(weights_in(state))


@dataclass(frozen=True, kw_only=True)
class FedAvg(DenseWeights):
    """Clients train the weights locally, the server adds the mean of their updates.

    ``w <- w + sum_i (n_i / n) (w_i - w)``, with sizes ``n_i`` known at enrolment. With another
    ``server`` it is FedOpt, whose gradient is minus that mean.

    References:
        McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data",
        AISTATS 2017, https://arxiv.org/abs/1602.05629, Algorithm 1; Reddi et al., "Adaptive
        Federated Optimization", ICLR 2021, https://arxiv.org/abs/2003.00295, Algorithm 2.
    """

    sends = FloatVectors


@dataclass(frozen=True, kw_only=True)
class Cast(DenseWeights):
    """FedAvg whose clients cast their update to 16 bits: half the bits without a codec.

    Values are rounded to nearest even, finite ones beyond the largest to the largest. The server
    computes and broadcasts in 32 bits.

    Args:
        form: ``fp16`` (IEEE 754 binary16) or ``bf16`` (the upper half of a float32).

    References:
        McMahan et al., AISTATS 2017, https://arxiv.org/abs/1602.05629, Algorithm 1; the formats:
        IEEE 754-2019, and Kalamkar et al., https://arxiv.org/abs/1905.12322.
    """

    sends = HalfVectors

    form: Half = "fp16"

    def message(self, shared: Shared, updates: Tensor, keys: Keys, memory: Memories) -> Messages:
        blank = HalfVectors(torch.zeros_like(updates, dtype=DTYPES[self.form]), self.form)
        return blank.nearest(updates), memory
