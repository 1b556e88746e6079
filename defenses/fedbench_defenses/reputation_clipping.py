"""A vote of rankings in which no position is far from the middle one."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedbench.api import Defense, ServerView, Traits
from fedbench.core.errors import require
from fedbench.core.tiling import tiles
from fedbench.payload import Payload, Rankings, TopRankings

from .median import Median


@dataclass(frozen=True, kw_only=True)
class ReputationClipping(Defense[None]):
    """Clip every position to within ``width n_l`` of the edge's median position, then average.

    ``n_l`` is the number of edges of the layer. So every reputation is within ``width n_l`` of the
    median position, and a client that changes its ranking moves it by at most ``2 width n_l / n``
    beside what it moves that median: the clipped mean goes no farther than the median does. Where
    ``width`` is 1 it is FSL's VOTE, at 0 it would be the median.

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
        """Declare no scale: the width does not grow with the positions."""
        return Traits(scale=False, sharp=False)

    def tolerates(self, n: int) -> int:
        """Return fewer than half: then the median position is between two benign ones."""
        return (n - 1) // 2

    def aggregate(self, received: Payload, state: None, view: ServerView) -> tuple[Tensor, None]:
        assert isinstance(received, Rankings | TopRankings)
        x = received.values()
        centre = Median().aggregate(received, None, view)[0].to(torch.float64)
        sizes = torch.tensor(received.sizes, device=x.device)
        reach = self.width * sizes.repeat_interleave(sizes).to(torch.float64)
        parts = tiles(x, centre - reach, centre + reach)
        means = [tile.double().clamp(low, high).mean(dim=0) for tile, low, high in parts]
        return torch.cat(means), None
