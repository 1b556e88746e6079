"""Momentum of the clients, which averages a client's updates over its rounds."""

from dataclasses import dataclass

import torch

from fedbench.api import Batches, Grad, Memory, Shared
from fedbench.core.errors import require
from fedbench.core.rng import Key
from fedbench.core.trees import Tree
from fedbench.models.network import is_statistic
from fedbench.payload import FloatVectors
from fedbench.protocols.fedavg import DenseWeights


@dataclass(frozen=True, kw_only=True)
class WorkerMomentum(DenseWeights):
    """Clients send the average ``m_i <- beta m_i + (1 - beta) u_i`` of their updates over rounds.

    The variance of what honest clients send falls with ``beta``, so that an attack has less noise
    to hide in, and small biases that add up over rounds become visible to a robust rule. The server
    adds what the rule answers; the first paper's rule is ``centered-clipping``. At first ``m_i`` is
    0.

    In the papers ``u_i`` is one stochastic gradient, all clients take part in every round and the
    server goes ``lr`` times down. Here ``u_i`` is the update after local steps, so ``lr`` is the
    client's: with one step a round both are the same, since ``m_i`` is linear. A client that is
    away keeps its ``m_i``, which then is of older models. Running statistics travel without
    momentum. A client whose ``m_i`` is not finite sends it, and starts again from 0. The authors'
    code leaves ``1 - beta`` out and starts from the first gradient: another ``lr``.

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
            if not is_statistic(name)
        }

    def local_update(
        self, tree: Tree, batches: Batches, grad: Grad, key: Key, memory: Memory
    ) -> tuple[Tree, Memory]:
        update, _ = super().local_update(tree, batches, grad, key, memory)
        sent = {name: self.beta * m + (1 - self.beta) * update[name] for name, m in memory.items()}
        finite = torch.stack([torch.isfinite(m).all() for m in sent.values()]).all()
        kept = {name: torch.where(finite, m, torch.zeros_like(m)) for name, m in sent.items()}
        return update | sent, kept
