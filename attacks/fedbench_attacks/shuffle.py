"""Rankings that say nothing."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from fedbench.api import Alphabets, Attack, AttackView
from fedbench.payload import Payload, Rankings, TopRankings


@dataclass(frozen=True, kw_only=True)
class Shuffle(Attack):
    """Every malicious client sends a uniform random permutation of each layer.

    A client that sends only its top edges sends the top of that. The least that an attack on
    rankings must beat. Proposed here, no published source.

    References:
        None: proposed here. The idea is a floor: votes without content.
    """

    accepts: ClassVar[Alphabets] = (Rankings, TopRankings)

    def craft(self, view: AttackView, memory: Any) -> tuple[Payload, Any]:
        """Sorted random words."""
        own = view.own
        assert isinstance(own, Rankings | TopRankings)
        d, device, key = sum(own.sizes), own.symbols.device, view.key.fold("shuffle")
        words = [key.fold(row).bits(d, device) for row in range(len(own))]
        return own.nearest(torch.stack(words)), memory
