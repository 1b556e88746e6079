"""Compressed corrections of an estimate of each client's gradient, on which a robust rule acts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from fedbench.api import Batches, Grad, Keys, LocalStep, Memories, Memory, Messages, Shared
from fedbench.core.errors import require
from fedbench.core.rng import Key
from fedbench.core.trees import Layout, Tree
from fedbench.payload import FloatVectors, Payload, SeededPatches, SparsePatches
from fedbench.protocols.compressed import compressed_width, public_seeds, share_of
from fedbench.protocols.fedavg import DenseWeights, weights_in

_COIN = "page.coin"


@dataclass(frozen=True, kw_only=True)
class ByzEF21(DenseWeights):
    """Clients correct the server's estimate of their update where it is furthest off.

    Both ends keep ``g_i``, 0 at first. A client sends the top ``K = max(1, floor(k d))``
    coordinates of ``u_i - g_i``, both ends add them to ``g_i``, the rule is given all ``g_i``, and
    the server adds its answer. All clients count the same. In contrast to error feedback (`TopK`)
    a rule compares dense vectors that come closer to the updates, and not which coordinates a
    client happened to choose.

    What travels are the new values ``u_i`` of these coordinates, not the differences: as many bits,
    and nothing is lost by adding. In the paper ``u_i`` is minus the gradient of all of a client's
    samples and the server goes ``gamma`` times down: that is one local step on one batch, with
    ``lr = gamma``. All clients take part there; here the rule is given those of the round, and the
    ``g_i`` of a client that is away stays as it is. The paper's experiments start from exact
    gradients, for which a dense message would have to travel. Running statistics travel as floats,
    as they are. The box of the algorithm was not at hand: this follows the authors' code.

    Args:
        lr: Learning rate of a local step.
        k: Share of the coordinates that travels.
        index: How positions are encoded, see `TopK`.
        momentum: Heavy-ball momentum of the steps within a round, which starts afresh in each.

    References:
        Rammal, Gruntkowska, Fedin, Gorbunov and Richtarik, "Communication Compression for Byzantine
        Robust Learning: New Efficient Algorithms and Improved Rates", AISTATS 2024,
        https://arxiv.org/abs/2310.09804, Byz-EF21; Richtarik, Sokolov and Fatkhullin, "EF21: A New,
        Simpler, Theoretically Better, and Practically Faster Error Feedback", NeurIPS 2021,
        https://arxiv.org/abs/2106.05203.
    """

    sends = SparsePatches
    weighted = False
    agreed = "g"

    lr: float = 0.1
    k: float = 0.1
    index: Literal["bitmap", "entropy"] = "bitmap"
    momentum: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require("ByzEF21.k", self.k, 0 < self.k <= 1, "in (0, 1]")

    def memory(self, shared: Shared) -> Memory:
        """Return ``g_i (d,)``, 0 at first."""
        return {"g": torch.zeros(shared.layout.d, device=shared.device)}

    def message(self, shared: Shared, updates: Tensor, keys: Keys, memory: Memories) -> Messages:
        t = compressed_width(shared)
        n = len(updates)
        count = share_of(self.k, t)
        blank = SparsePatches(
            indices=torch.zeros(n, count, dtype=torch.int64, device=updates.device),
            entries=torch.zeros(n, count, device=updates.device),
            rest=updates[:, t:].to(torch.float32),
            d=t,
            coded=self.index == "entropy",
            remembered=torch.stack([client["g"] for client in memory])[:, :t].to(torch.float32),
        )
        return blank.nearest(updates), memory


@dataclass(frozen=True, kw_only=True)
class ByzDashaPage(DenseWeights):
    """Clients send random coordinates of what a variance-reduced gradient changes in an estimate.

    ``h_i`` follows the client's gradient (PAGE): in a round in which the server's coin, of chance
    ``p``, says so it is the gradient of all of its samples; else what the client's first minibatch
    has changed since the client's last model is added to it. Both ends keep ``g_i`` (DASHA): to it
    goes ``Q(h_i' - h_i - a (g_i - h_i))``, with ``Q`` the rand-k of ``K = max(1, floor(k d))``
    coordinates times ``d / K``, chosen by a seed that travels. The rule is given all ``g_i``, and
    the server adds its answer. All clients count the same. All is kept as updates, ``-lr`` times a
    gradient.

    The coin is one more float32 of the broadcast. A client that has no ``h_i`` yet takes all of its
    samples, as one does whose ``h_i`` is not finite, which goes on from ``g_i``. At first ``g_i``
    is 0; the paper's experiments start with both exact. There all clients take part; here the rule
    is given those of the round, and a client that was away goes on from the model that it last saw.
    A round is one step: its batches are the samples of a full gradient, and more epochs repeat
    them. Both gradients are computed in every round, since clients are trained in lock step: what
    the coin saves is not seen in the time. What travels are the new values of ``g_i``, not the
    differences, as in `ByzEF21`. The box of the algorithm was not at hand: this follows the
    authors' code.

    Args:
        lr: Learning rate, the paper's ``gamma``.
        momentum: Must be 0: a round has one step.
        decay: Must be 1: what is kept of a client are updates at one rate.
        anneal: Must be ``none``: a round has one step.
        k: Share of the coordinates that travels.
        p: Chance of a round of full gradients.
        a: Share of ``g_i - h_i`` that is taken back in a round; None is ``1 / (2 d / K - 1)``, as
            in the theory of DASHA.

    References:
        Rammal, Gruntkowska, Fedin, Gorbunov and Richtarik, "Communication Compression for Byzantine
        Robust Learning: New Efficient Algorithms and Improved Rates", AISTATS 2024,
        https://arxiv.org/abs/2310.09804, Byz-DASHA-PAGE.
    """

    sends = SeededPatches
    weighted = False
    statistics = False
    agreed = "g"
    extra_gradients = 1

    lr: float = 0.1
    momentum: float = 0.0
    k: float = 0.1
    p: float = 0.1
    a: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require("ByzDashaPage.momentum", self.momentum, self.momentum == 0, "0, a round has a step")
        require("ByzDashaPage.decay", self.decay, self.decay == 1, "1, all updates have one rate")
        require("ByzDashaPage.anneal", self.anneal, self.anneal == "none", "none")
        require("ByzDashaPage.k", self.k, 0 < self.k <= 1, "in (0, 1]")
        require("ByzDashaPage.p", self.p, 0 < self.p <= 1, "in (0, 1]")
        require("ByzDashaPage.a", self.a, self.a is None or 0 < self.a <= 1, "None or in (0, 1]")

    def memory(self, shared: Shared) -> Memory:
        """Return ``g_i``, ``h_i`` and the last model, ``(d,)``, and whether there is an ``h_i``."""
        blank = torch.zeros(shared.layout.d, device=shared.device)
        started = torch.zeros((), device=shared.device)
        return {"g": blank, "h": blank.clone(), "model": blank.clone(), "started": started}

    def broadcast(self, shared: Shared, state: Any, clients: Sequence[int], key: Key) -> Payload:
        w = weights_in(state)
        coin = key.fold("page").uniform(1, device=w.device) < self.p
        return FloatVectors(torch.cat([w, coin.to(w)])[None])

    def receive(self, shared: Shared, broadcast: Payload) -> Tree:
        row = broadcast.values()[0]
        return shared.layout.unflatten(row[:-1]) | {_COIN: row[-1]}

    def local_update(
        self, tree: Tree, batches: Batches, grad: Grad, key: Key, memory: Memory
    ) -> tuple[Tree, Memory]:
        """Return ``h' - (1 - a) (h - g)``, so that ``Q`` is of this minus ``g``."""
        start = {name: x for name, x in tree.items() if name != _COIN}
        layout = Layout.of({name: tuple(x.shape) for name, x in start.items()})
        model = layout.flatten(start)

        def update(at: Tree, step: LocalStep) -> Tensor:
            slope = layout.flatten(grad(at, step.x, step.y, step.key))
            return -self.lr * (slope + self.weight_decay * layout.flatten(at))

        def step(sums: Tree, now: LocalStep) -> Tree:
            size = (now.y >= 0).sum()
            here = update(start, now)
            if not sums:
                change = here - update(layout.unflatten(memory["model"]), now)
                return {"size": size, "updates": here * size, "change": change}
            return sums | {"size": sums["size"] + size, "updates": sums["updates"] + here * size}

        g = memory["g"]
        usable = torch.isfinite(memory["h"]).all()
        h = torch.where(usable, memory["h"], g)
        following = torch.zeros_like(h)
        sums: Tree = batches.scan(step, {}, key)
        if sums:
            sure = (tree[_COIN] > 0.5) | (memory["started"] < 0.5) | ~usable
            full = sums["updates"] / sums["size"]
            following = torch.where(sure, full, h + sums["change"])
        target = following - (1 - self.momentum_of(layout.d)) * (h - g)
        after = {"g": g, "h": following, "model": model}
        return layout.unflatten(target), after | {"started": torch.ones_like(memory["started"])}

    def momentum_of(self, d: int) -> float:
        """Return ``a``, by default ``1 / (2 omega + 1)`` with ``omega = d / K - 1`` of rand-k."""
        return 1 / (2 * d / share_of(self.k, d) - 1) if self.a is None else self.a

    def message(self, shared: Shared, updates: Tensor, keys: Keys, memory: Memories) -> Messages:
        n, d = updates.shape
        count = share_of(self.k, d)
        g = torch.stack([client["g"] for client in memory])
        blank = SeededPatches(
            entries=torch.zeros(n, count, device=updates.device),
            seeds=public_seeds(keys, "indices", updates.device),
            rest=torch.zeros(n, 0, device=updates.device),
            d=d,
            remembered=g.to(torch.float32),
        )
        return blank.nearest(g + d / count * (updates - g)), memory

    def local_model(self, shared: Shared, broadcast: Payload, sent: Payload) -> Tree | None:
        return shared.layout.unflatten(broadcast.values()[0, :-1] + sent.values()[0])
