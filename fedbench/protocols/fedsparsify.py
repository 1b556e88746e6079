"""FedSparsify: weights pruned by magnitude, more of them in every round."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import floor
from typing import Literal

import torch
from torch import Tensor

from fedbench.api import Batches, Grad, Keys, Memories, Memory, Messages, Shared
from fedbench.core.errors import require
from fedbench.core.rng import Key
from fedbench.core.trees import Tree
from fedbench.payload import Payload, PrunedVectors
from fedbench.payload.packets import code_bits
from fedbench.payload.sparse import Alive, largest_alive
from fedbench.protocols.fedavg import LocalSGD, initial_weights, masked

_ALIVE = "pruning.alive"
_ROUND = "pruning.round"
_ROUNDING = 1e-5  # tolerance of a mean of 0 and 1 that should equal a share


@dataclass(frozen=True, eq=False)
class Pruned:
    """State of the FedSparsify server."""

    w: Tensor  # ``(d + p,)`` weights, 0 where pruned, then the rest
    mask: Tensor  # ``(d,)`` bool: which weights are alive
    rounds: int  # that were merged


@dataclass(frozen=True, kw_only=True)
class FedSparsify(LocalSGD[Pruned]):
    """Clients train what is left of the weights; in every round more of them are pruned.

    Round ``t``, counted from 1, prunes the smallest magnitudes to the sparsity
    ``s_t = final + (initial - final) (1 - (t - start) / (until - start))**3``, exactly:
    ``ceil((1 - s_t) d)`` weights stay, among equals those with the lowest index. A pruned weight
    never returns.

    With ``where=client`` (FedSparsify-Local) every client prunes what it has trained, and the
    server merges models of different masks. With ``where=server`` (FedSparsify-Global) the server
    prunes the mean. Clients send the update of the weights that stay, so that attacks flip updates
    and not weights (D13); what they prune is ``w`` plus the update, after a mechanism has clipped
    or noised it. The broadcast has the round's number, so both ends know how many weights a message
    keeps.

    Unlike in the public code (A9), whose majority is ``merge=half``, ties and zeros are pruned as
    the schedule says, only weights are pruned, and votes weigh as much as the client has samples.

    Args:
        final: Sparsity in the end.
        initial: Sparsity in round ``start``.
        start: First round, from 1, that prunes.
        until: Round that reaches ``final``, by default the last one of a default scenario.
        frequency: Sparsity grows only in rounds that it divides, and in ``start``; ``final`` is
            reached in the first such round from ``until`` on.
        per: Magnitudes are compared over all layers together, ``global``, or within a ``layer``.
        where: Whether each ``client`` prunes, or the ``server``.
        merge: What survives of pruned models: what more than half of the clients have,
            ``majority``, or ``n // 2`` of them, ``half``, both as the mean with 0 where it was
            pruned; or what any client has, as the ``average`` over those that do.

    References:
        Stripelis, Gupta, Ver Steeg and Ambite, "Federated Progressive Sparsification (Purge, Merge,
        Tune)+", 2022, https://arxiv.org/abs/2204.12430; schedule as in Zhu and Gupta, "To prune, or
        not to prune", 2017, https://arxiv.org/abs/1710.01878, equation 1.
    """

    sends = PrunedVectors

    final: float = 0.9
    initial: float = 0.0
    start: int = 1
    until: int = 40
    frequency: int = 1
    per: Literal["global", "layer"] = "global"
    where: Literal["client", "server"] = "client"
    merge: Literal["majority", "half", "average"] = "majority"

    def __post_init__(self) -> None:
        super().__post_init__()
        require("FedSparsify.final", self.final, 0 <= self.final < 1, "in [0, 1)")
        requirement = f"in [0, final = {self.final}]"
        require("FedSparsify.initial", self.initial, 0 <= self.initial <= self.final, requirement)
        require("FedSparsify.start", self.start, self.start >= 1, ">= 1")
        requirement = f"> start = {self.start}, <= 2**24"  # a float32 counts so far
        require("FedSparsify.until", self.until, self.start < self.until <= 2**24, requirement)
        require("FedSparsify.frequency", self.frequency, self.frequency >= 1, ">= 1")

    def sparsity(self, t: int) -> Fraction:
        """Return the sparsity ``s_t`` of round ``t``, counted from 1; 0 before ``start``."""
        if t < self.start:
            return Fraction(0)
        at = min(max(t // self.frequency * self.frequency, self.start), self.until)
        left = 1 - Fraction(at - self.start, self.until - self.start)
        final, initial = Fraction(repr(self.final)), Fraction(repr(self.initial))
        return final + (initial - final) * left**3

    def survivors(self, shared: Shared, w: Tensor, alive: Tensor, t: int) -> Tensor:
        """Return ``(n, d)`` bool: which of ``alive`` round ``t`` leaves, by size of ``w``."""
        sizes = list(shared.weights.sizes) if self.per == "layer" else [shared.weights.d]
        parts = []
        for x, own in zip(torch.split(w, sizes, dim=1), torch.split(alive, sizes), strict=True):
            count = len(own) - floor(self.sparsity(t) * len(own))
            parts.append(largest_alive(x.abs(), min(count, int(own.sum())), own))
        return torch.cat(parts, dim=1)

    def init(self, shared: Shared) -> Pruned:
        w = initial_weights(shared)
        return Pruned(w, torch.ones_like(w[: shared.weights.d], dtype=torch.bool), 0)

    def broadcast(self, shared: Shared, state: Pruned, clients: Sequence[int], key: Key) -> Payload:
        d = shared.weights.d
        rest = torch.cat([state.w[d:], state.w.new_tensor([state.rounds + 1])])
        count = int(state.mask.sum())
        return PrunedVectors(state.mask[None], state.w[None, :d], rest[None], count, Alive())

    def receive(self, shared: Shared, broadcast: Payload) -> Tree:
        assert isinstance(broadcast, PrunedVectors)
        x, rest = broadcast.x[0], broadcast.rest[0]
        tree = shared.layout.unflatten(torch.cat([x, rest[:-1]]))
        return tree | {_ALIVE: broadcast.mask[0].to(x), _ROUND: rest[-1]}

    def local_update(
        self, tree: Tree, batches: Batches, grad: Grad, key: Key, memory: Memory
    ) -> tuple[Tree, Memory]:
        """Train what is alive; remember what was received, for `message`."""
        start = {name: x for name, x in tree.items() if name not in (_ALIVE, _ROUND)}
        weights = batches.weights_of(start)
        masks = weights.unflatten(tree[_ALIVE])
        update, memory = super().local_update(start, batches, masked(grad, masks), key, memory)
        received = {"w": weights.flatten(start), "alive": tree[_ALIVE], "round": tree[_ROUND]}
        return update, memory | received

    def message(self, shared: Shared, updates: Tensor, keys: Keys, memory: Memories) -> Messages:
        """Send the updates of the weights that stay: the largest ``w_i = w + update``."""
        d = shared.weights.d
        alive = memory[0]["alive"] > 0.5
        mask = alive.expand(len(updates), d)
        if self.where == "client":
            w = torch.stack([client["w"] for client in memory]) + updates[:, :d]
            mask = self.survivors(shared, w, alive, int(memory[0]["round"]))
        x = torch.where(mask, updates[:, :d], 0.0).to(torch.float32)
        rest = updates[:, d:].to(torch.float32)
        count = int(mask[0].sum())
        return PrunedVectors(mask, x, rest, count, Alive.of(alive)), [{} for _ in memory]

    def merged(self, state: Pruned, share: Tensor, update: Tensor, n: int) -> tuple[Tensor, Tensor]:
        """Merge the models that ``n`` clients pruned: ``(d,)`` weights, and which of them survive.

        Their mean is ``E[m (w + u)] = E[m] w + E[m u]``, with the ``share`` ``E[m]`` that has a
        weight, and the mean ``update`` ``E[m u]``.
        """
        share = share.clamp(0, 1)
        mean = share * state.w[: len(share)] + update
        if self.merge == "average":
            return mean / share, share > 0
        enough = 0.5 + _ROUNDING if self.merge == "majority" else max(n // 2, 1) / n - _ROUNDING
        return mean, share >= enough

    def server_step(
        self, shared: Shared, state: Pruned, aggregate: Tensor, n: int, key: Key
    ) -> Pruned:
        d = shared.weights.d
        t = state.rounds + 1
        share, update, rest = torch.split(aggregate.to(state.w), [d, d, len(state.w) - d])
        if self.where == "client":
            w, mask = self.merged(state, share, update, n)
            mask = mask & state.mask
        else:
            w = state.w[:d] + update
            mask = self.survivors(shared, w[None], state.mask, t)[0]
        w = torch.where(mask, w, 0.0)
        return Pruned(torch.cat([w, state.w[d:] + rest]), mask, t)

    def model(self, shared: Shared, state: Pruned, key: Key) -> Tree:
        return shared.layout.unflatten(state.w)

    def local_model(self, shared: Shared, broadcast: Payload, sent: Payload) -> Tree:
        assert isinstance(broadcast, PrunedVectors)
        assert isinstance(sent, PrunedVectors)
        w = torch.where(sent.mask[0], broadcast.x[0] + sent.x[0], 0.0)
        return shared.layout.unflatten(torch.cat([w, broadcast.rest[0, :-1] + sent.rest[0]]))

    def model_bits(self, shared: Shared, state: Pruned) -> int:
        alive = int(state.mask.sum())
        return 32 * (alive + shared.rest.d) + code_bits(state.mask.cpu().numpy())[1]
