"""FSL: rankings of the edges of a random network that is never trained, and its masks."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from fedbench.api import Batches, Grad, Keys, Memories, Memory, Messages, Shared
from fedbench.api.protocol import Variants
from fedbench.core.devices import accelerated
from fedbench.core.errors import require
from fedbench.core.registry import UNWRITTEN
from fedbench.core.rng import Key
from fedbench.core.scatter import scatter_distinct
from fedbench.core.trees import Layout, Tree
from fedbench.models.network import Network
from fedbench.payload import Payload, Rankings, TopRankings, ranking
from fedbench.protocols.fedavg import LocalSGD

WeightInit = Literal["signed-constant", "signed-e", "kaiming-normal", "glorot-normal"]


@lru_cache(maxsize=2)
def random_network(shared: Shared, weight_init: WeightInit) -> Tree:
    """Draw from the seed the weights that are never trained; the rest is as built.

    A layer's fans count its kernel, as in torch.nn.init. Do not write to the result.

    - ``signed-constant``: ``+-sqrt(2 / fan_in)``, the deviation of ``kaiming-normal``.
    - ``signed-e``: ``+-e / sqrt(fan_in)``, 1.92 times as far out, as in FedPM's public code.
    - ``kaiming-normal``: ``N(0, 2 / fan_in)``.
    - ``glorot-normal``: ``N(0, 2 / (fan_in + fan_out))``.

    References:
        Ramanujan et al., "What's Hidden in a Randomly Weighted Neural Network?", CVPR 2020,
        https://arxiv.org/abs/1911.13299, section 5.4, "signed Kaiming constant"; He et al.,
        "Delving Deep into Rectifiers", ICCV 2015, https://arxiv.org/abs/1502.01852, eq. 10; Glorot
        and Bengio, "Understanding the difficulty of training deep feedforward neural networks",
        AISTATS 2010, https://proceedings.mlr.press/v9/glorot10a.html, eq. 12.
    """
    built = shared.network.init(shared.key.fold("init"), shared.device)
    drawn = {}
    for name, shape in zip(shared.weights.names, shared.weights.shapes, strict=True):
        if weight_init in ("signed-constant", "signed-e"):
            unit = shared.key.fold("weights", name).signs(*shape, device=shared.device)
        else:
            unit = shared.key.fold("hidden", name).normal(*shape, device=shared.device)
        drawn[name] = unit * _deviation(shared.network, name, weight_init)
    return built | drawn


def _deviation(network: Network, name: str, weight_init: WeightInit) -> float:
    """Return the standard deviation of the layer's weights."""
    if weight_init == "signed-e":
        return math.e / math.sqrt(network.fan_in(name))
    if weight_init == "glorot-normal":
        return math.sqrt(2 / (network.fan_in(name) + network.fan_out(name)))
    return math.sqrt(2 / network.fan_in(name))


def masked_network(shared: Shared, network: Tree, mask: Tensor) -> Tree:
    """Return the network with its weights multiplied by ``mask (d,)``, floats."""
    masks = shared.weights.unflatten(mask)
    return network | {name: network[name] * mask for name, mask in masks.items()}


def mask_rows(scores: Tensor, count: int) -> Tensor:
    """Return ``(n, d)`` bool: each row's ``count`` largest, of equals those of higher index.

    The last ``count`` edges of a stable argsort, by a threshold instead of a sort: from a partition
    on a CPU, from radix select on an accelerator.
    """
    if accelerated(scores.device):
        return mask_without_asking(scores, count)
    t = scores.shape[1] - count
    threshold = torch.from_numpy(np.partition(scores.numpy(), t, axis=1)[:, t : t + 1])
    mask = scores >= threshold
    surplus = torch.from_numpy(np.count_nonzero(mask.numpy(), axis=1)[:, None]) - count
    if bool(surplus.any()):
        ties = scores == threshold
        mask &= ~(ties & (ties.cumsum(dim=1) <= surplus))
    return mask


def mask_without_asking(scores: Tensor, count: int) -> Tensor:
    """Return `mask_rows` without a branch on ties, which a CUDA graph cannot record.

    Ties are counted through all rows at once, because a scan along rows, as `torch.kthvalue`, is
    one block of threads a row on CUDA.
    """
    threshold = scores.topk(count, dim=1, sorted=False).values.amin(dim=1, keepdim=True)
    mask = scores >= threshold
    surplus = mask.sum(dim=1, keepdim=True) - count
    ties = scores == threshold
    wide = torch.int32 if ties.numel() < 1 << 31 else torch.int64
    counted = ties.reshape(-1).cumsum(dim=0, dtype=wide).reshape(ties.shape)
    before = torch.add(counted[:, :1], ties[:, :1], alpha=-1)  # ties of the rows above
    return torch.where(ties, counted > before + surplus, mask)


class _TopMasked(torch.autograd.Function):
    """Returns weights times `mask_rows`, whose gradient is the identity.

    ``stacked`` dimensions, of ``vmap``, come first.
    """

    @staticmethod
    def forward(weight: Tensor, scores: Tensor, count: int, stacked: int) -> Tensor:
        rows = scores.detach().reshape(math.prod(scores.shape[:stacked]), -1)
        return weight * mask_rows(rows, count).reshape(scores.shape)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[None, Tensor, None, None]:
        (weight,) = ctx.saved_tensors
        return None, grads[0] * weight, None, None

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        weight: Tensor,
        scores: Tensor,
        count: int,
        stacked: int,
    ) -> tuple[Tensor, int]:
        first = [
            x.expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0)
            for x, dim in zip((weight, scores), in_dims, strict=False)
        ]
        masked: Tensor = _TopMasked.apply(*first, count, stacked + 1)  # type: ignore[no-untyped-call]
        return masked, 0


def top_masked(weight: Tensor, scores: Tensor, count: int) -> Tensor:
    """Return the weights of a layer times the 0/1 mask of its ``count`` largest scores.

    The gradient of the mask passes to ``scores`` unchanged; the weights are never trained.

    References:
        Ramanujan et al., https://arxiv.org/abs/1911.13299, equation 4; FSL paper, Algorithm 1
        lines 11 to 15, whose ``m <- sort(theta)`` loses the positions (F2).

    >>> top_masked(torch.ones(4), torch.tensor([0.3, 0.3, 0.3, 0.2]), 2).tolist()
    [0.0, 1.0, 1.0, 0.0]
    """
    masked: Tensor = _TopMasked.apply(weight, scores, count, 0)  # type: ignore[no-untyped-call]
    return masked


@lru_cache(maxsize=256)
def kept_edges(n: int, k: float) -> int:
    """Return ``n - t`` with the ``t = int((1 - k) n)`` of Algorithm 1, in exact arithmetic (A3).

    >>> [kept_edges(10, k) for k in (0.8, 0.9, 0.5, 0.01, 1.0)]
    [8, 9, 5, 1, 10]
    """
    return n - math.floor((1 - Fraction(repr(k))) * n)


def kept_in_floats(n: int, k: float) -> int:
    """Return ``n - t`` as public code computes it, in floats: an edge too many for some k (A3).

    >>> [kept_in_floats(10, k) for k in (0.8, 0.9, 0.5, 0.01, 1.0)]
    [9, 10, 5, 1, 10]
    """
    return n - int((1 - k) * n)


@lru_cache(maxsize=2)
def initial_scores(shared: Shared, signed: bool = False) -> Tensor:
    """Draw ``theta_s (d,)`` from the seed: ``U(-b, b)``, b = fan_in ** -0.5 (Kaiming, a = sqrt 5).

    Unless they are ``signed`` these are magnitudes.
    """
    layers = zip(shared.weights.names, shared.weights.sizes, strict=True)
    parts = []
    for name, size in layers:
        drawn = shared.key.fold("scores", name).uniform(size, device=shared.device)
        unit = 2 * drawn - 1 if signed else drawn
        parts.append(unit / math.sqrt(shared.network.fan_in(name)))
    return torch.cat(parts)


@lru_cache(maxsize=2)
def sorted_scores(shared: Shared, signed: bool = False) -> list[Tensor]:
    """Return ``sort(theta_s)`` of each layer, ``(n_l,)`` each."""
    return [score.sort().values for score in shared.weights.layers(initial_scores(shared, signed))]


@dataclass(frozen=True, kw_only=True)
class FSL(LocalSGD[Tensor]):
    """Clients rank the edges of a frozen random network, the server sorts the sum of their ranks.

    Weights (`random_network`) and Kaiming-uniform scores are from the seed. A client sets
    ``theta_s[R_g] = sort(theta_s)``, trains these scores by edge-popup (Algorithm 1) and sends
    ``R = argsort(S)`` per layer; VOTE sums the positions and sorts (Algorithm 2).

    Where the paper is silent or its code disagrees with itself (docs/errata.md): scores start
    positive, and mask and ranking order the same number (A3); ``fan_in`` is that of an edge's
    target (F8); the mask keeps ``R_g[t:]`` (F1); ties are ordered by edge index (F9); the first
    broadcast is a ranking as well, not a seed (F6).

    The paper's text and its released code are two systems, ``as=paper``, our default, and
    ``as=code``: there scores are ``signed``, the mask keeps the largest magnitudes, but the ranking
    sorts the scores themselves, so that the subnetwork is both ends of a ranking; and the learning
    rate falls from round to round and from epoch to epoch.

    Args:
        k: Share of each layer's edges that the subnetwork keeps.
        scores: ``positive``, as the text says, or ``signed``, as the code has them (A3).
        cut: How many edges a share k is: ``exact``, or in ``floats`` as the code rounds (A3).
        weight_init: Distribution of the frozen weights, see `random_network`; that of text and code
            is ``signed-constant``, the other ones are of the FSL paper's appendix C.1.

    References:
        "FSL: Federated Supermask Learning", Algorithms 1 and 2, published as Mozaffari, Shejwalkar
        and Houmansadr, "Every Vote Counts: Ranking-Based Training of Federated Learning to Resist
        Poisoning Attacks", USENIX Security 2023, https://arxiv.org/abs/2110.04350.
    """

    sends: ClassVar[type[Payload]] = Rankings
    weighted = False
    votes = True
    statistics = False
    space = "scores"

    variants: ClassVar[Variants] = {
        "paper": {"scores": "positive", "cut": "exact", "decay": 1.0, "anneal": "none"},
        "code": {"scores": "signed", "cut": "floats", "decay": 0.999, "anneal": "cosine"},
    }

    lr: float = 0.4
    k: float = 0.5
    scores: Literal["positive", "signed"] = field(default="positive", metadata=UNWRITTEN)
    cut: Literal["exact", "floats"] = field(default="exact", metadata=UNWRITTEN)
    weight_init: WeightInit = field(default="signed-constant", metadata=UNWRITTEN)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(f"{type(self).__name__}.k", self.k, 0 < self.k <= 1, "in (0, 1]")

    @property
    def signed(self) -> bool:
        """True if a score's magnitude, and not the score, says whether its edge is kept."""
        return self.scores == "signed"

    def kept(self, n: int) -> int:
        """Return how many of a layer's ``n`` edges the subnetwork keeps."""
        return kept_edges(n, self.k) if self.cut == "exact" else kept_in_floats(n, self.k)

    def masked(self, weight: Tensor, score: Tensor) -> Tensor:
        """Return a layer's weights times the 0/1 mask of its scores, straight through."""
        scores = score.abs() if self.signed else score
        return top_masked(weight, scores, self.kept(score.numel()))

    def trained(self, shared: Shared) -> Layout:
        return shared.weights

    def frozen(self, shared: Shared) -> Tree:
        return random_network(shared, self.weight_init)

    def init(self, shared: Shared) -> Tensor:
        return ranking(initial_scores(shared, self.signed)[None], shared.weights.sizes)

    def broadcast(self, shared: Shared, state: Tensor, clients: Sequence[int], key: Key) -> Payload:
        return Rankings(state, shared.weights.sizes)

    def receive(self, shared: Shared, broadcast: Payload) -> Tree:
        """Set ``theta_s[R_g] <- sort(theta_s)`` per layer, Algorithm 2 line 10."""
        assert isinstance(broadcast, Rankings)
        return shared.weights.unflatten(self.scored(shared, broadcast.symbols[0]))

    def scored(self, shared: Shared, order: Tensor) -> Tensor:
        """Return ``theta_s (d,)`` in a ranking's order: the edge at position i has the ith one."""
        layers = zip(sorted_scores(shared, self.signed), shared.weights.layers(order), strict=True)
        scored = [scatter_distinct(torch.empty_like(s), 0, e.long(), s) for s, e in layers]
        return torch.cat(scored)

    def idle(self, shared: Shared, broadcast: Payload) -> Tensor:
        trees = [self.receive(shared, broadcast.take([row])) for row in range(len(broadcast))]
        return torch.stack([self.trained(shared).flatten(tree) for tree in trees])

    def weights(self, trained: Tree, frozen: Tree, key: Key) -> Tree:
        """Return ``theta_w * m`` with the straight-through mask of Algorithm 1."""
        return frozen | {name: self.masked(frozen[name], score) for name, score in trained.items()}

    def local_update(
        self, tree: Tree, batches: Batches, grad: Grad, key: Key, memory: Memory
    ) -> tuple[Tree, Memory]:
        """Train the scores ``S``, Algorithm 2 line 11."""
        return self.train(tree, batches, grad, key), memory

    def message(self, shared: Shared, updates: Tensor, keys: Keys, memory: Memories) -> Messages:
        """Send ``R = argsort(S)``, Algorithm 2 line 12."""
        sizes = shared.weights.sizes
        return Rankings(ranking(updates, sizes), sizes), memory

    def server_step(
        self, shared: Shared, state: Tensor, aggregate: Tensor, n: int, key: Key
    ) -> Tensor:
        """Return ``R_g = argsort(A)``: dividing the sum A by n keeps its order."""
        return ranking(aggregate[None], shared.weights.sizes)

    def model(self, shared: Shared, state: Tensor, key: Key) -> Tree:
        """Return the subnetwork of each layer's ``R_g[t:]``; if `signed`, of largest magnitudes."""
        mask = []
        if self.signed:
            scores = shared.weights.layers(self.scored(shared, state[0]))
            mask = [self.masked(torch.ones_like(score), score) for score in scores]
        else:
            for order in shared.weights.layers(state[0]):
                best = order[len(order) - self.kept(len(order)) :].long()
                mask.append(torch.zeros(len(order), device=state.device).index_fill_(0, best, 1.0))
        return masked_network(shared, self.frozen(shared), torch.cat(mask))

    def local_model(self, shared: Shared, broadcast: Payload, sent: Payload) -> Tree | None:
        """Return the subnetwork of the client's own ranking; None where it sends a part of it."""
        return self.model(shared, sent.symbols, Key(0)) if isinstance(sent, Rankings) else None

    def model_bits(self, shared: Shared, state: Tensor) -> int:
        return state.shape[1] + 32


@dataclass(frozen=True, kw_only=True)
class SparseFSL(FSL):
    """FSL whose clients send only the best ``top`` share of each layer's ranking.

    An edge that is not sent has reputation 0, one that is sent its position in the full ranking
    (F7: the paper does not say which). The server still sends whole rankings.

    Args:
        top: Share of each layer's ranking that travels.

    References:
        "FSL: Federated Supermask Learning", section 5.2, https://arxiv.org/abs/2110.04350.
    """

    sends = TopRankings
    variants: ClassVar[Variants] = {}  # no code of it is released

    top: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        require("SparseFSL.top", self.top, 0 < self.top < 1, "in (0, 1)")

    def message(self, shared: Shared, updates: Tensor, keys: Keys, memory: Memories) -> Messages:
        """Send the last ``top`` share of ``argsort(S)``."""
        sizes = shared.weights.sizes
        counts = tuple(kept_edges(size, self.top) for size in sizes)
        blank = updates.new_zeros(len(updates), sum(counts), dtype=torch.int32)
        return TopRankings(blank, sizes, counts).nearest(updates), memory


@dataclass(frozen=True)
class FailureBound:
    """Upper bounds on the probability that more than half of ``n`` clients vote a good edge out.

    A benign client keeps the edge with probability ``p``, a malicious one with ``1 - p``. The proof
    assumes no collusion and counts votes on masks; that the bounds hold for sums of positions is
    asserted in the paper (F4). Where the margin is not positive they are 1.

    References:
        "FSL: Federated Supermask Learning", appendix A.2, equations 1 to 4,
        https://arxiv.org/abs/2110.04350.
    """

    n: int  # clients of the round
    p: float  # probability that a benign client keeps the edge
    alpha: float  # share of malicious clients

    def __post_init__(self) -> None:
        require("FailureBound.n", self.n, self.n >= 1, ">= 1")
        require("FailureBound.p", self.p, 0 <= self.p <= 1, "in [0, 1]")
        require("FailureBound.alpha", self.alpha, 0 <= self.alpha <= 1, "in [0, 1]")

    @property
    def margin(self) -> float:
        """``E[Z] - n/2`` of equation 1: by how many votes the edge leads on average."""
        return self.n * (self.p + self.alpha * (1 - 2 * self.p) - 0.5)

    @property
    def valid(self) -> bool:
        """True if the margin is positive, as the proof needs."""
        return self.margin > 0

    @property
    def variance(self) -> float:
        """Variance of the votes of equation 1."""
        return self.n * self.p * (1 - self.p)

    @property
    def printed(self) -> float:
        """Equation 4, ``sqrt(Var / margin^2) / 2``, which can exceed 1."""
        return self.variance**0.5 / (2 * self.margin) if self.valid else 1.0

    @property
    def cantelli(self) -> float:
        """Equation 3, ``1 / (1 + margin^2 / Var)``, tighter than equation 4 and at most 1."""
        return self.variance / (self.variance + self.margin**2) if self.valid else 1.0
