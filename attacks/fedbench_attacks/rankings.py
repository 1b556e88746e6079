"""Attacks on rankings, layer by layer."""

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from fedbench.api import Attack, AttackView, Deployed, Knowledge, Variants
from fedbench.core.errors import require
from fedbench.core.registry import UNWRITTEN
from fedbench.payload import Payload, Rankings, TopRankings, ranking, reputation
from fedbench.protocols.fsl import kept_edges


@dataclass(frozen=True, kw_only=True)
class RankReversal(Attack):
    """Colluders vote on their honest rankings, layer by layer, and all send the reverse of it.

    ``R_m = REVERSE(VOTE(R_1 .. R_m))``. A client that sends only its top edges (Sparse-FSL) sends
    the top of the reversed ranking.

    The paper's text and its released code say other things of who votes, ``as=paper`` and
    ``as=code`` (A3): all malicious clients there are, or 25 of them, drawn anew in every round.
    Those that are not in the round have to train for it, from what the others received.

    Args:
        voters: Malicious clients that vote: those of the ``round``, ``all``, or a number of all.

    References:
        "FSL: Federated Supermask Learning", Algorithm 3, https://arxiv.org/abs/2110.04350.
    """

    accepts = (Rankings, TopRankings)
    variants: ClassVar[Variants] = {"paper": {"voters": "all"}, "code": {"voters": 25}}

    voters: Literal["round", "all"] | int = field(default="round", metadata=UNWRITTEN)

    def __post_init__(self) -> None:
        valid = isinstance(self.voters, str) or self.voters >= 1
        require("RankReversal.voters", self.voters, valid, "round, all or a number >= 1")

    @property
    def recruits(self) -> int | None:
        if isinstance(self.voters, int):
            return self.voters
        return None if self.voters == "all" else 0

    @property
    def folds(self) -> bool:
        return True

    def needs(self) -> Knowledge:
        return Knowledge("colluders")

    def craft(self, view: AttackView, memory: Any) -> tuple[Payload, Any]:
        own: Any = view.own
        voting = view.seen if view.recruits is None else view.recruits
        if view.sums is None:
            votes = voting.values().sum(dim=0, dtype=torch.int64)[None]
        else:
            votes = view.sums.total.long()[None]
        position = reputation(ranking(votes, own.sizes), own.sizes)
        return own.nearest(-position.expand(len(own), -1)), memory


@dataclass(frozen=True, kw_only=True)
class Shuffle(Attack):
    """Every malicious client sends a uniform random permutation of each layer.

    A client that sends only its top edges sends the top of that.

    References:
        None: proposed here. The idea is a floor, the least that an attack on rankings must beat.
    """

    accepts = (Rankings, TopRankings)

    def craft(self, view: AttackView, memory: Any) -> tuple[Payload, Any]:
        own: Any = view.own
        key = view.key.fold("shuffle")
        device = own.symbols.device
        words = [key.fold(row).bits(sum(own.sizes), device) for row in range(len(own))]
        return own.nearest(torch.stack(words)), memory


def require_share(name: str, kept: float | None) -> None:
    """Raise `ConfigError` unless it is a share of edges in (0, 1], or None."""
    require(name, kept, kept is None or 0 < kept <= 1, "in (0, 1], or none")


def kept_share(kept: float | None, view: AttackView) -> float:
    """Return the share of a layer's edges that the server keeps, as given or as public."""
    if kept is not None:
        return kept
    public = view.protocol.get("k")
    if isinstance(public, float) and 0 < public <= 1:
        return public
    return 0.5  # of a protocol without that parameter, or where it means something else


@dataclass(frozen=True, kw_only=True)
class Swap(Attack):
    """Every malicious client sends position ``(p + k_l) mod n_l`` for its edge at position p.

    So the ``k_l`` edges that its own ranking of a layer keeps become the least important ones. A
    client that sends only its top edges ranks the absent ones below these, by index, before that.

    Args:
        kept: Share of each layer's edges that the server keeps. Default: the protocol's ``k``,
            which is public, or 0.5 of a protocol without that parameter.

    References:
        None: proposed here. The idea is a reversal that leaves each part its order.
    """

    accepts = (Rankings, TopRankings)

    kept: float | None = None

    def __post_init__(self) -> None:
        require_share("Swap.kept", self.kept)

    def craft(self, view: AttackView, memory: Any) -> tuple[Payload, Any]:
        own: Any = view.own
        positions = own.values()
        if isinstance(own, TopRankings):
            positions = reputation(ranking(positions, own.sizes), own.sizes)
        share = kept_share(self.kept, view)
        layers = [
            (p + kept_edges(p.shape[1], share)) % p.shape[1]
            for p in torch.split(positions, list(own.sizes), dim=1)
        ]
        return own.nearest(torch.cat(layers, dim=1)), memory


FARTHER = 1.2  # times as far as the cut, since in a ranking edges push each other back


def crossing(s: Tensor, g: Tensor, kept: int, m: int, share: float) -> Tensor:
    """Return positions ``(n_l,)`` that carry edges over the cut whose change raises the loss.

    The server keeps the edges with the ``kept`` largest sums; ``m`` colluders add at most
    ``m n_l`` to one. Of the edges within that distance of the cut as many pruned ones with a
    positive gradient are to enter as kept ones with a negative one are to leave. The new top gets
    the top positions, its smallest sum the highest; the new bottom the others, its largest sum 0.

    Args:
        s: ``(n_l,)`` sums of the benign positions.
        g: ``(n_l,)`` gradient of the loss in the edges' scores.
        kept: Edges that the server keeps.
        m: Number of colluders.
        share: Share of the exchanges that is sought, steepest gradients first.

    >>> s = torch.tensor([0.0, 10.0, 11.0, 12.0, 13.0, 30.0])
    >>> g = torch.tensor([9.0, 1.0, 2.0, -1.0, 3.0, -9.0])
    >>> crossing(s, g, 3, 1, 1.0).tolist()  # edge 2 enters for edge 3; 0 and 5 are out of reach
    [2.0, 1.0, 5.0, 0.0, 4.0, 3.0]
    """
    n = len(s)
    falling = s.argsort(descending=True, stable=True)
    top = torch.zeros(n, dtype=torch.bool, device=s.device)
    top[falling[:kept]] = True
    if 0 < kept < n:
        near = (s - s[falling[kept - 1]]).abs() < m * n
        enter = (near & ~top & (g > 0)).nonzero()[:, 0]
        leave = (near & top & (g < 0)).nonzero()[:, 0]
        count = math.ceil(share * min(len(enter), len(leave)))
        top[enter[g[enter].argsort(descending=True)[:count]]] = True
        top[leave[g[leave].argsort()[:count]]] = False
    worst_first = torch.cat([falling[~top[falling]], falling[top[falling]]])
    positions = torch.empty(n, dtype=s.dtype, device=s.device)
    positions[worst_first] = torch.arange(n, dtype=s.dtype, device=s.device)
    return positions


def crossings(
    sums: Tensor, gradient: Tensor, model: Deployed, own: Rankings | TopRankings, share: float
) -> Tensor:
    """Return `crossing` of all layers ``(d,)``, where colluders send as many rankings as ``own``.

    Args:
        sums: ``(d,)`` of the benign positions.
        gradient: ``(d,)`` of the loss in the edges' scores.
        model: Network that these sums deploy, in which edges that are not kept are 0.
        own: Messages of the colluders.
        share: As in `crossing`.
    """
    assert isinstance(model, dict)  # not an ensemble
    sizes = list(own.sizes)
    kept = [int((leaf != 0).sum()) for leaf in model.values()][: len(sizes)]
    layers = zip(torch.split(sums, sizes), torch.split(gradient, sizes), kept, strict=True)
    return torch.cat([crossing(s, g, k, len(own), share) for s, g, k in layers])


def cheap_crossings(
    base: Tensor,
    answer: Tensor,
    gradient: Tensor,
    model: Deployed,
    own: Rankings | TopRankings,
    n: int,
    room: float,
) -> Tensor:
    """Return positions ``(d,)`` near ``base`` that carry the edges over the cut that cost least.

    A `crossing` moves all edges as far as it can, and rules that leave out or clip what is far look
    at the sum of squares of all these ways. Here an edge moves only if its change raises the loss,
    and just over the cut: in the order of gradient per squared way, until the room is spent.

    Args:
        base: ``(d,)`` positions of the ranking of the honest mean.
        answer: ``(d,)`` of the rule, if all colluders send that.
        gradient: ``(d,)`` of the loss in the edges' scores.
        model: Network that this answer deploys, in which edges that are not kept are 0.
        own: Messages of the colluders.
        n: Rows that the server receives; each moves an edge of the answer by an ``n``-th.
        room: Largest sum of squared ways.

    >>> own = Rankings(torch.arange(4, dtype=torch.int32).expand(2, -1), (4,))
    >>> s = torch.tensor([0.0, 1.0, 2.0, 3.0])  # the cut is at 1.5
    >>> g = torch.tensor([9.0, 1.0, -1.0, -2.0])
    >>> cheap_crossings(s, s, g, {"layer": torch.tensor([0, 0, 1, 1])}, own, 5, 5.0).tolist()
    [0.0, 2.5, 0.5, 3.0]
    """
    assert isinstance(model, dict)  # not an ensemble
    layers = torch.split(answer.double(), list(own.sizes))
    kept = [int((leaf != 0).sum()) for leaf in model.values()]
    falling = [s.sort(descending=True).values for s in layers]
    cuts = [s[k - 1 : k + 1].mean() for s, k in zip(falling, kept, strict=False)]
    ways = torch.cat([cut - s for cut, s in zip(cuts, layers, strict=True)])
    ways = ways * (FARTHER * n / len(own))
    row = base + ways
    last = torch.cat([torch.full_like(s, len(s) - 1) for s in layers])
    useful = (ways * gradient > 0) & (row >= 0) & (row <= last)
    cost = torch.where(useful, ways.square(), torch.inf)
    order = (gradient.abs() / cost).argsort(descending=True, stable=True)
    moved = order[cost[order].cumsum(dim=0) <= room]
    return base.to(row).index_copy(0, moved, row[moved])
