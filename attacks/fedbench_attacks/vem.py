"""Edges near the cut, whose membership in the subnetwork the colluders can change."""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from fedbench.api import AttackView
from fedbench.payload import Payload, Rankings, ranking
from fedbench.protocols.fsl import kept_edges

from .crafted import Reader
from .rankings import kept_share, require_share


@dataclass(frozen=True, kw_only=True)
class VEM(Reader):
    """Colluders spend their positions where they move most edges over the cut of a layer.

    The server keeps the k of a layer's n_l edges with the largest sums of positions. Let S be the
    sums of the benign clients, among equals the higher index the larger; the m colluders add
    between 0 and ``R = m (n_l - 1)`` to each. *Bounds.* A kept edge with
    ``S > max S of the pruned + R`` stays whatever is sent, likewise a pruned one with
    ``S < min S of the kept - R``. Only edges between these bounds are vulnerable.

    *Choice.* All colluders send the same ranking. To exchange j edges, the j pruned ones with the
    largest S enter and the j kept ones with the smallest S leave: any other is further away. The
    new top gets the k top positions, its smallest S the highest; the new bottom the others, its
    largest S position 0. Exchanging two positions of a side never widens the gap, so j edges, and
    with j every smaller number, can be moved iff (top ascending, bottom descending)

        min over i < k of S_top(i) + m (n_l - 1 - i)  >  max over i of S_bottom(i) + m i

    *Limit.* Rankings that differ cannot move j unless the means over the first i of both sides
    satisfy that, for all i: m permutations add to i edges at most m times the i top positions, and
    at least m times the i bottom ones. It is recorded, hardly ever one edge above what is moved.

    Only the paper's abstract was read: bounds and proofs here are ours.

    Args:
        kept: Share of each layer's edges that the server keeps. Default: the protocol's ``k``,
            which is public, or 0.5 of a protocol without that parameter.
        knows: Rankings it reads: those of ``all`` benign clients; or those of the ``colluders`` as
            if honest, whose mean then stands for each benign ranking.

    References:
        "Vulnerable Edge Manipulation", https://arxiv.org/abs/2503.08976, abstract.
    """

    accepts = (Rankings,)

    kept: float | None = None
    knows: Literal["colluders", "all"] = "all"

    def __post_init__(self) -> None:
        require_share("VEM.kept", self.kept)

    @property
    def folds(self) -> bool:
        return True

    def look(self, view: AttackView, memory: Any) -> tuple[Tensor, Any]:
        """Return the positions ``(d,)`` int64 that all colluders send."""
        own = view.own
        m = view.m
        assert isinstance(own, Rankings)
        if view.sums is None:
            messages = view.seen if len(view.seen) else own
            sums = messages.values().sum(dim=0, dtype=torch.int64)
        else:
            sums = view.sums.total.long()
        if self.knows == "colluders" and view.n > m:
            sums = (sums.double() * ((view.n - m) / m)).round().long()
        share = kept_share(self.kept, view)
        positions = []
        totals = {"vulnerable": 0, "moved": 0, "limit": 0}
        for s in torch.split(sums, list(own.sizes)):
            cut = Cut(s, kept_edges(len(s), share), m)
            most = min(cut.vulnerable())
            moved = largest_true(cut.common, 0, most)
            positions.append(cut.position(moved))
            totals["vulnerable"] += sum(cut.vulnerable())
            totals["moved"] += moved
            totals["limit"] += largest_true(cut.conceivable, moved, most)
        view.notes.update(totals)
        return torch.cat(positions), memory

    def craft(self, view: AttackView, memory: Any) -> tuple[Payload, Any]:
        positions = view.looked
        if positions is None:
            positions, memory = self.look(view, memory)
        return view.own.nearest(positions.expand(len(view.own), -1)), memory


class Cut:
    """A layer whose ``n`` edges have sums ``s (n,)`` int64, of which the ``k`` largest are kept."""

    def __init__(self, s: Tensor, k: int, m: int) -> None:
        self.n = len(s)
        self.k = k
        self.m = m
        self.order = ranking(s[None], (len(s),))[0].long()  # ascending, ties by index
        # In units of 1 / n, edge indices break ties as the server does.
        self.key = s * self.n + torch.arange(self.n, device=s.device)

    def vulnerable(self) -> tuple[int, int]:
        """Return how many kept edges and how many pruned ones lie between the bounds."""
        ascending = self.key[self.order]
        low = ascending[: self.n - self.k]
        high = ascending[self.n - self.k :]
        if not len(low) or not len(high):
            return 0, 0
        reach = self.m * (self.n - 1) * self.n
        return int((high <= low[-1] + reach).sum()), int((low >= high[0] - reach).sum())

    def sides(self, j: int) -> tuple[Tensor, Tensor]:
        """Return the edges of the new top and of the new bottom, both in the order of ``s``."""
        order = self.order
        cut = self.n - self.k
        top = torch.cat([order[cut - j : cut], order[cut + j :]])
        bottom = torch.cat([order[: cut - j], order[cut : cut + j]])
        return top, bottom

    def common(self, j: int) -> bool:
        """Return whether one ranking of all colluders can move ``j`` edges."""
        low, high = self._reached(j)
        return bool(low.min() > high.max())

    def conceivable(self, j: int) -> bool:
        """Return False if no rankings can, as sums over the first i edges of both sides tell."""
        low, high = (
            side.double().cumsum(0) / torch.arange(1, len(side) + 1, device=side.device)
            for side in self._reached(j)
        )
        return bool(low.min() * (1 + 1e-9) >= high.max())

    def _reached(self, j: int) -> tuple[Tensor, Tensor]:
        """Return the sums that both sides reach: top ascending, bottom descending in ``s``."""
        top, bottom = self.sides(j)
        step = self.m * self.n
        i = torch.arange(self.n, device=self.key.device)
        low = self.key[top] + step * (self.n - 1 - i[: len(top)])
        return low, self.key[bottom].flip(0) + step * i[: len(bottom)]

    def position(self, j: int) -> Tensor:
        """Return the ranking ``(n,)`` int64 that moves ``j`` edges, as positions."""
        top, bottom = self.sides(j)
        worst_first = torch.cat([bottom.flip(0), top.flip(0)])
        position = torch.empty_like(self.key)
        position[worst_first] = torch.arange(self.n, device=self.key.device)
        return position


def largest_true(holds: Callable[[int], bool], low: int, high: int) -> int:
    """Return the largest j in ``[low, high]`` that holds, if ``low`` does and so do all below it.

    >>> largest_true(lambda j: j <= 5, 0, 9)
    5
    """
    return low + bisect_left(range(low + 1, high + 1), True, key=lambda j: not holds(j))
