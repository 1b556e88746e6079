"""Rank reversal, the worst case that the FSL paper considers."""

from dataclasses import dataclass
from typing import Any

import torch

from fedbench.api import Attack, AttackView, Knowledge
from fedbench.payload import Payload, Rankings, TopRankings, ranking, reputation


@dataclass(frozen=True, kw_only=True)
class RankReversal(Attack):
    """Colluders vote on their honest rankings, layer by layer, and all send the reverse of it.

    ``R_m = REVERSE(VOTE(R_1 .. R_m))``. A client that sends only its top edges (Sparse-FSL) sends
    the top of the reversed ranking. Only the malicious clients of the round vote; the released code
    lets 25 malicious clients of the whole pool train for it (A3).

    References:
        "FSL: Federated Supermask Learning", Algorithm 3, https://arxiv.org/abs/2110.04350.
    """

    accepts = (Rankings, TopRankings)

    def needs(self) -> Knowledge:
        return Knowledge("colluders")

    def craft(self, view: AttackView, memory: Any) -> tuple[Payload, Any]:
        assert isinstance(view.own, Rankings | TopRankings)
        sizes = view.own.sizes
        votes = view.seen.values().sum(dim=0, dtype=torch.int64)[None]
        position = reputation(ranking(votes, sizes), sizes)
        return view.own.nearest(-position.expand(len(view.own), -1)), memory
