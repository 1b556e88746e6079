"""Momentum of each client, kept by the client or by the server, under a robust rule."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedbench.api import Batches, Grad, Keys, Memories, Memory, Messages, Shared
from fedbench.core.errors import require
from fedbench.core.rng import Key
from fedbench.core.trees import Tree
from fedbench.payload import CoordinatedPatches, FloatVectors, Payload
from fedbench.protocols.compressed import compressed_width, share_of
from fedbench.protocols.fedavg import DenseWeights, weights_in

_SEED = "mask.seed"


@dataclass(frozen=True, kw_only=True)
class WorkerMomentum(DenseWeights):
    """Clients send the average ``m_i <- beta m_i + (1 - beta) u_i`` of their updates over rounds.

    The variance of what honest clients send falls with ``beta``, so that an attack has less noise
    to hide in, and small biases that add up over rounds become visible to a robust rule. The server
    adds what the rule answers; the first paper's rule is ``centered-clipping``. At first ``m_i`` is
    0.

    All clients count the same. In the papers ``u_i`` is one stochastic gradient, all clients take
    part in every round and the server goes ``lr`` times down. Here ``u_i`` is the update after
    local steps, so ``lr`` is the client's: with one step a round both are the same, since ``m_i``
    is linear. A client that is away keeps its ``m_i``, which then is of older models. Running
    statistics travel without momentum. A client whose ``m_i`` is not finite, or too large for its
    norm to be finite, sends it and starts again from 0. The authors' code leaves ``1 - beta`` out:
    another ``lr``.

    Args:
        lr: Learning rate of a local step.
        beta: Weight of the past in a client's average over rounds.
        momentum: Heavy-ball momentum of the steps within a round, which starts afresh in each.

    References:
        Karimireddy, He and Jaggi, "Learning from History for Byzantine Robust Optimization",
        ICML 2021, https://arxiv.org/abs/2012.10333, worker momentum; Farhadkhani et al., "Byzantine
        Machine Learning Made Easy By Resilient Averaging of Momentums", ICML 2022,
        https://arxiv.org/abs/2205.12173.
    """

    sends = FloatVectors
    weighted = False

    lr: float = 0.1
    beta: float = 0.9
    momentum: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require("WorkerMomentum.beta", self.beta, 0 <= self.beta < 1, "in [0, 1)")

    def memory(self, shared: Shared) -> Memory:
        """Return ``m_i`` of every layer but running statistics, 0 at first."""
        layers = zip(shared.layout.names, shared.layout.shapes, strict=True)
        return {
            name: torch.zeros(shape, device=shared.device)
            for name, shape in layers
            if name not in shared.network.statistics
        }

    def local_update(
        self, tree: Tree, batches: Batches, grad: Grad, key: Key, memory: Memory
    ) -> tuple[Tree, Memory]:
        update, _ = super().local_update(tree, batches, grad, key, memory)
        sent = {
            name: (self.beta * m).add_((1 - self.beta) * update[name]) for name, m in memory.items()
        }
        norms = torch.stack([torch.linalg.vector_norm(m) for m in sent.values()])
        finite = torch.isfinite(norms).all()  # far cheaper than to look at every number
        remembered = {name: torch.where(finite, m, 0.0) for name, m in sent.items()}
        return update | sent, remembered


@dataclass(frozen=True, kw_only=True)
class RoSDHB(DenseWeights):
    """The server asks all for the same random coordinates, and keeps a momentum of each client.

    It draws ``K = max(1, floor(k d))`` coordinates anew in every round and broadcasts their seed:
    an integer below ``2**24``, which one more float32 of the broadcast holds. Clients send nothing
    else, and cannot choose others. ``u~_i`` is ``d / K`` times the update at these coordinates and
    0 elsewhere, the rule is given ``m_i <- beta m_i + (1 - beta) u~_i``, 0 at first, and the server
    adds its answer. All clients count the same.

    What travels here is ``m_i`` at the coordinates and not ``u~_i``, of which the server would
    compute the same: as many bits, but the client keeps a copy of ``m_i``, which the paper saves.
    In the paper ``u_i`` is minus the gradient of all of a client's samples; the authors' code takes
    local steps, as here, where ``lr`` is the client's. All clients take part there; here the rule
    is given those of the round, and a client that is away keeps its ``m_i``. Running statistics
    travel as floats, without momentum. The box of the algorithm was not at hand: this follows two
    descriptions of it and the authors' code.

    Args:
        lr: Learning rate of a local step.
        k: Share of the coordinates that is asked for.
        beta: Weight of the past in the momentum.
        momentum: Heavy-ball momentum of the steps within a round, which starts afresh in each.

    References:
        Gupta, Honsell, Xu, Gupta and Neglia, "Reconciling Communication Compression and
        Byzantine-Robustness in Distributed Learning", AISTATS 2026,
        https://arxiv.org/abs/2508.17129, RoSDHB.
    """

    sends = CoordinatedPatches
    weighted = False
    agreed = "m"

    lr: float = 0.1
    k: float = 0.1
    beta: float = 0.9
    momentum: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require("RoSDHB.k", self.k, 0 < self.k <= 1, "in (0, 1]")
        require("RoSDHB.beta", self.beta, 0 <= self.beta < 1, "in [0, 1)")

    def memory(self, shared: Shared) -> Memory:
        """Return ``m_i (d,)``, 0 at first."""
        return {"m": torch.zeros(shared.layout.d, device=shared.device)}

    def broadcast(self, shared: Shared, state: Any, clients: Sequence[int], key: Key) -> Payload:
        w = weights_in(state)
        seed = torch.floor(key.fold("mask").uniform(1, device=w.device) * 2**24)
        return FloatVectors(torch.cat([w, seed.to(w)])[None])

    def receive(self, shared: Shared, broadcast: Payload) -> Tree:
        row = broadcast.values()[0]
        return shared.layout.unflatten(row[:-1]) | {_SEED: row[-1]}

    def local_update(
        self, tree: Tree, batches: Batches, grad: Grad, key: Key, memory: Memory
    ) -> tuple[Tree, Memory]:
        """Train; remember the seed, for `message`."""
        start = {name: x for name, x in tree.items() if name != _SEED}
        update, memory = super().local_update(start, batches, grad, key, memory)
        return update, memory | {"seed": tree[_SEED]}

    def message(self, shared: Shared, updates: Tensor, keys: Keys, memory: Memories) -> Messages:
        t = compressed_width(shared)
        count = share_of(self.k, t)
        past = self.beta * torch.stack([client["m"] for client in memory])[:, :t]
        m = past + (1 - self.beta) * t / count * updates[:, :t]
        blank = CoordinatedPatches(
            entries=past[:, :count].to(torch.float32),
            rest=updates[:, t:].to(torch.float32),
            d=t,
            seed=int(memory[0]["seed"]),
            remembered=past.to(torch.float32),
        )
        sent = blank.nearest(torch.cat([m, updates[:, t:]], dim=1))
        return sent, [{"m": client["m"]} for client in memory]

    def local_model(self, shared: Shared, broadcast: Payload, sent: Payload) -> Tree | None:
        return shared.layout.unflatten(broadcast.values()[0, :-1] + sent.values()[0])
