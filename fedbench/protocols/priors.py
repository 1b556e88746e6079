"""Gaussian, Laplace and mixture priors that tie clients to the server's weights."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedbench.api import Batches, Grad, Keys, Memories, Memory, Messages, Shared
from fedbench.core.errors import require
from fedbench.core.rng import Key
from fedbench.core.trees import Tree
from fedbench.payload import FloatVectors, MixtureVectors, Payload
from fedbench.protocols.fedavg import DenseWeights, FedAvg, LocalSGD


def pulled(
    grad: Grad, lam: float, centre: Callable[[Tree], Tree], statistics: Sequence[str] = ()
) -> Grad:
    """Return a gradient function that adds ``lam (w - centre(w))``, but to running statistics."""

    def pulled_gradient(w: Tree, x: Tensor, y: Tensor, key: Key) -> Tree:
        means = centre(w)
        return {
            name: g if name in statistics else g.add(w[name] - means[name], alpha=lam)
            for name, g in grad(w, x, y, key).items()
        }

    return pulled_gradient


@dataclass(frozen=True, kw_only=True)
class FedProx(FedAvg):
    """FedAvg whose clients minimise ``loss + lam / 2 ||w_s - w||^2``.

    With ``lam = 0`` it is FedAvg, bit by bit. The loss is the mean cross-entropy, so ``lam`` is mu
    of Li et al. Running statistics are not pulled.

    Args:
        lam: Precision ``lambda`` of the prior.

    References:
        Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020,
        https://arxiv.org/abs/1812.06127, equation 2.
    """

    lam: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        require("FedProx.lam", self.lam, self.lam >= 0, ">= 0")

    def local_update(
        self, tree: Tree, batches: Batches, grad: Grad, key: Key, memory: Memory
    ) -> tuple[Tree, Memory]:
        towards = pulled(grad, self.lam, lambda _: tree, batches.statistics)
        return super().local_update(tree, batches, towards, key, memory)


def soft_threshold(x: Tensor, by: float | Tensor) -> Tensor:
    """Shrink values towards 0: ``sign(x) max(|x| - by, 0)``."""
    if isinstance(by, Tensor):
        limit = by.to(x.dtype)
        return x - x.clamp(-limit, limit)
    return x - x.clamp(-by, by)


@dataclass(frozen=True, kw_only=True)
class FedLaplace(DenseWeights):
    """Clients minimise ``loss + lam sum_j |w_sj - w_j|``; the server moves to their median.

    Each SGD step is followed by the proximal step of the prior, a soft threshold of ``w_s - w`` by
    ``lr lam / (1 - momentum)``: parameters whose gradient stays within ``lam`` end exactly at the
    server's. The loss is the mean over samples, where equation 33 has the sum. The median is the
    rule of ``--defense own``. Running statistics have no prior.

    Args:
        lam: Inverse scale ``lambda`` of the prior.

    References:
        Louizos et al. (see `FedSparse`), https://arxiv.org/abs/2111.10192, appendix G.1, equations
        33, 35 and 36.
    """

    sends = FloatVectors
    default_defense = "median"
    weighted = False

    lam: float = 1e-4

    def __post_init__(self) -> None:
        super().__post_init__()
        require("FedLaplace.lam", self.lam, self.lam >= 0, ">= 0")

    def landed(self, trained: Tree, start: Tree, rate: float | Tensor) -> Tree:
        by = rate * self.lam / (1 - self.momentum)
        return {
            name: start[name] + soft_threshold(x - start[name], by) for name, x in trained.items()
        }


_ABSENT = 1e-6  # a component with a smaller mean responsibility stays as it is


@dataclass(frozen=True, kw_only=True)
class FedMoG(LocalSGD[Tensor]):
    """Clients minimise ``loss - log sum_k (1/K) exp(-lam/2 ||w_s - w_k||^2)``; K means are learned.

    The server sends all K means, and a client answers with its weights and its responsibilities
    ``r_k``, the softmax of ``-lam/2 ||w_s - w_k||^2`` (equation 41 with the square that it lacks,
    S5); ``w_k = sum_s r_sk w_s / sum_s r_sk`` (equation 42). The ensemble is deployed.

    The paper does not say where clients start, nor how means are told apart: here means have
    different seeds, the first that of FedAvg, and a client starts each round at one of them, drawn
    at random. The loss is the mean over samples, where equation 38 has the sum. A mean without
    responsibility stays; running statistics have no prior.

    Args:
        k: Number of components ``K``.
        lam: Precision ``lambda`` of each component; large, all responsibilities are 0 or 1, and
            small, the means become one.

    References:
        Louizos et al. (see `FedSparse`), https://arxiv.org/abs/2111.10192, appendix G.2, equations
        37 to 42.
    """

    sends = MixtureVectors
    weighted = False

    k: int = 2
    lam: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        require("FedMoG.k", self.k, 1 <= self.k <= 1000, "in [1, 1000]")
        require("FedMoG.lam", self.lam, self.lam > 0, "> 0")

    def init(self, shared: Shared) -> Tensor:
        keys = [shared.key.fold("init", *([j] if j else [])) for j in range(self.k)]
        trees = [shared.network.init(key, shared.device) for key in keys]
        return torch.stack([shared.layout.flatten(tree) for tree in trees])

    def broadcast(self, shared: Shared, state: Tensor, clients: Sequence[int], key: Key) -> Payload:
        return FloatVectors(state.reshape(1, -1))

    def receive(self, shared: Shared, broadcast: Payload) -> Tree:
        """Read the means, ``(K, *shape)`` for each parameter."""
        return shared.layout.unflatten(broadcast.values()[0].reshape(self.k, -1))

    def responsibilities(self, w: Tree, means: Tree, statistics: Sequence[str] = ()) -> Tensor:
        """Return ``(K,)`` of equation 41; ``1 / K`` if a distance is NaN, or none is finite."""
        squares = [
            (w[name] - mean).square().reshape(self.k, -1).sum(dim=1)
            for name, mean in means.items()
            if name not in statistics
        ]
        r = torch.softmax(-self.lam / 2 * torch.stack(squares).sum(dim=0), dim=0)
        return torch.where(torch.isfinite(r).all(), r, 1 / self.k)

    def local_update(
        self, tree: Tree, batches: Batches, grad: Grad, key: Key, memory: Memory
    ) -> tuple[Tree, Memory]:
        """Train from one of the means; remember it and all means, for `message`."""
        device = next(iter(tree.values())).device
        choice = key.fold("component").bits(1, device) % self.k
        start = {name: mean.index_select(0, choice)[0] for name, mean in tree.items()}

        def centre(w: Tree) -> Tree:
            r = self.responsibilities(w, tree, batches.statistics)
            return {name: torch.tensordot(r, mean, 1) for name, mean in tree.items()}

        towards = pulled(grad, self.lam, centre, batches.statistics)
        update, _ = super().local_update(start, batches, towards, key, memory)
        means = torch.cat([mean.reshape(self.k, -1) for mean in tree.values()], dim=1)
        return update, {"means": means, "start": means.index_select(0, choice)[0]}

    def message(self, shared: Shared, updates: Tensor, keys: Keys, memory: Memories) -> Messages:
        trees = shared.layout.unflatten
        w = updates + torch.stack([client["start"] for client in memory])
        means = [trees(client["means"]) for client in memory]
        still = shared.network.statistics
        r = torch.stack(
            [self.responsibilities(trees(row), m, still) for row, m in zip(w, means, strict=True)]
        )
        return MixtureVectors(r, w * r.max(dim=1, keepdim=True).values), [{} for _ in memory]

    def server_step(
        self, shared: Shared, state: Tensor, aggregate: Tensor, n: int, key: Key
    ) -> Tensor:
        """Average the weights by responsibility, equation 42."""
        r = aggregate[: self.k, None]
        weighted = aggregate[self.k :].reshape(self.k, -1)
        return torch.where(r > _ABSENT, weighted / r.clamp_min(_ABSENT), state).to(state)

    def model(self, shared: Shared, state: Tensor, key: Key) -> list[Tree]:
        return [shared.layout.unflatten(mean) for mean in state]

    def model_bits(self, shared: Shared, state: Tensor) -> int:
        return 32 * state.numel()

    def local_model(self, shared: Shared, broadcast: Payload, sent: Payload) -> Tree:
        assert isinstance(sent, MixtureVectors)
        return shared.layout.unflatten(sent.vectors()[0])
