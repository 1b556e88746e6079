"""Random rankings, votes without content."""

from dataclasses import dataclass
from typing import Any

import torch

from fedbench.api import Attack, AttackView
from fedbench.payload import Payload, Rankings, TopRankings


@dataclass(frozen=True, kw_only=True)
class Shuffle(Attack):
    """Every malicious client sends a uniform random permutation of each layer.

    A client that sends only its top edges sends the top of that.

    References:
        None: proposed here. The idea is a floor, the least that an attack on rankings must beat.
    """

    accepts = (Rankings, TopRankings)

    def craft(self, view: AttackView, memory: Any) -> tuple[Payload, Any]:
        """Rank the edges by random words."""
        own = view.own
        assert isinstance(own, Rankings | TopRankings)
        key = view.key.fold("shuffle")
        device = own.symbols.device
        words = [key.fold(row).bits(sum(own.sizes), device) for row in range(len(own))]
        return own.nearest(torch.stack(words)), memory
