"""Votes of rankings: by clipped positions, or with the share of edges that is beyond doubt."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedbench.api import Defense, ServerView, Traits
from fedbench.core.errors import require
from fedbench.core.order_statistics import by_tiles
from fedbench.core.tiling import tiles
from fedbench.payload import Payload, Rankings, TopRankings
from fedbench.protocols.fsl import kept_edges

from .bit_votes import failure_notes
from .mean import exact_mean
from .median import Median


def reach(x: Tensor, f: int, top: Tensor) -> tuple[Tensor, Tensor]:
    """Return the least and the greatest sum ``(d,)`` of ``x (n, d)`` if ``f`` rows are replaced.

    The rows that spoke most for an edge are replaced by ones that put it at 0, or those that spoke
    least by ones that put it at ``top (d,)``, the last position of its layer.
    """
    parts = (slice(len(x) - f), slice(f, None))
    sums = by_tiles(x, lambda rows: torch.stack([rows[part].sum(dim=0) for part in parts], dim=1))
    least, greatest = sums.T.contiguous()
    return least, greatest + f * top


def settled(least: Tensor, greatest: Tensor, m: int) -> Tensor:
    """Return the edges ``(s,)`` bool that are among a layer's ``m`` best, or not, for certain.

    An edge is in if at most ``m - 1`` others can reach its least sum, out if ``m`` others exceed
    its greatest with theirs at their least. A tie settles nothing.
    """
    s = len(least)
    rivals = s - torch.searchsorted(greatest.sort().values, least)  # and the edge itself
    better = s - torch.searchsorted(least.sort().values, greatest, right=True)
    return (rivals <= m) | (better >= m)


@dataclass(frozen=True, kw_only=True)
class RankMargin(Defense[None]):
    """Compute FSL's VOTE, and the share of edges whose place in the mask no ``f`` rows can change.

    The mask keeps the ``m_l`` edges of a layer with the largest sums of positions. `findings`
    ``certified`` is the share of edges that are in it, or out of it, whichever ``f`` of the rows
    are malicious and whatever they would have sent instead. It is a lower bound: every edge is
    given its worst ``f`` rows, even if no row could be that to all. Ignores the clients' sizes.

    `FailureBound`, as in `vote-margin`, is for votes of masks (F4: for positions asserted only).
    Its ``p`` is estimated by the share of rows that have an edge where most have it.

    Args:
        f: Malicious rows the server is prepared for.
        k: Share of each layer's edges that the mask keeps; it must be the protocol's.

    References:
        None: proposed here. VOTE is that of the FSL paper, https://arxiv.org/abs/2110.04350,
        Algorithm 2 lines 17 to 21, the bound its appendix A.2.
    """

    accepts = (Rankings, TopRankings)
    f: int | None = None
    k: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        require("RankMargin.k", self.k, 0 < self.k <= 1, "in (0, 1]")

    def traits(self) -> Traits:
        return Traits(mean_at_zero=True, reports=True)

    def rows_needed(self) -> int:
        return (self.f or 0) + 1

    def tolerates(self, n: int) -> int:
        return 0  # every row moves the sum, if only by a layer's size

    def aggregate(self, received: Payload, state: None, view: ServerView) -> tuple[Tensor, None]:
        assert isinstance(received, Rankings | TopRankings)
        x = received.values()
        n = len(x)
        f = self.f or 0
        sizes = list(received.sizes)
        edges = torch.tensor(sizes, device=x.device)
        least, greatest = reach(x, f, (edges - 1).repeat_interleave(edges))
        counts = [kept_edges(size, self.k) for size in sizes]
        parts = zip(torch.split(least, sizes), torch.split(greatest, sizes), counts, strict=True)
        certain = sum(int(settled(low, high, m).sum()) for low, high, m in parts)
        first = (edges - torch.tensor(counts, device=x.device)).repeat_interleave(edges)
        ones = torch.cat([(tile >= low).sum(dim=0) for tile, low in tiles(x, first)])
        view.findings.notes["certified"] = certain / x.shape[1]
        view.findings.notes |= failure_notes(ones, n, f)
        return exact_mean(x), None


@dataclass(frozen=True, kw_only=True)
class ReputationClipping(Defense[None]):
    """Clip every position to within ``width n_l`` of the edge's median position, then average.

    ``n_l`` is the number of edges of the layer. A client that changes its ranking moves a
    reputation by at most ``2 width n_l / n`` beside what it moves the median. Where ``width`` is 1
    it is FSL's VOTE, at 0 it would be the median. Ignores the clients' sizes.

    Args:
        width: Largest distance, as a share of the layer's edges.

    References:
        None: proposed here. VOTE is that of the FSL paper, https://arxiv.org/abs/2110.04350,
        Algorithm 2 lines 17 to 21.
    """

    accepts = (Rankings, TopRankings)
    width: float = 0.2

    def __post_init__(self) -> None:
        require("ReputationClipping.width", self.width, 0 < self.width <= 1, "in (0, 1]")

    def traits(self) -> Traits:
        return Traits(scale=False, sharp=False)  # the width does not grow with the positions

    def tolerates(self, n: int) -> int:
        return (n - 1) // 2  # then the median position is between two benign ones

    def aggregate(self, received: Payload, state: None, view: ServerView) -> tuple[Tensor, None]:
        assert isinstance(received, Rankings | TopRankings)
        x = received.values()
        centre = Median().aggregate(received, None, view)[0].to(torch.float64)
        sizes = torch.tensor(received.sizes, device=x.device)
        reach = self.width * sizes.repeat_interleave(sizes).to(torch.float64)
        parts = tiles(x, centre - reach, centre + reach)
        means = [tile.double().clamp(low, high).mean(dim=0) for tile, low, high in parts]
        return torch.cat(means), None
