"""Rankings whose kept part and pruned part change places."""

from dataclasses import dataclass
from typing import Any

import torch

from fedbench.api import Attack, AttackView
from fedbench.core.errors import require
from fedbench.payload import Payload, Rankings, TopRankings, ranking, reputation
from fedbench.protocols.fsl import kept_edges


@dataclass(frozen=True, kw_only=True)
class Swap(Attack):
    """Every malicious client sends position ``(p + k_l) mod n_l`` for its edge at position p.

    So the ``k_l`` edges that its own ranking of a layer keeps come last, the others first, and the
    order within both stays. A client that sends only its top edges puts the absent ones first, by
    edge index, before they are swapped.

    Args:
        kept: Share of each layer's edges that the server keeps; an attack is not told.

    References:
        None: proposed here. The idea is a reversal that leaves each part its order.
    """

    accepts = (Rankings, TopRankings)

    kept: float = 0.5

    def __post_init__(self) -> None:
        require("Swap.kept", self.kept, 0 < self.kept <= 1, "in (0, 1]")

    def craft(self, view: AttackView, memory: Any) -> tuple[Payload, Any]:
        """Send the positions, turned by ``k_l``."""
        own = view.own
        assert isinstance(own, Rankings | TopRankings)
        positions = own.values()
        if isinstance(own, TopRankings):
            positions = reputation(ranking(positions, own.sizes), own.sizes)
        layers = [
            (p + kept_edges(p.shape[1], self.kept)) % p.shape[1]
            for p in torch.split(positions, list(own.sizes), dim=1)
        ]
        return own.nearest(torch.cat(layers, dim=1)), memory
