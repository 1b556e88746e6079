"""Top-k masks: the best-scored share of a random network."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedbench.api import Shared
from fedbench.core.errors import require
from fedbench.core.rng import Key
from fedbench.protocols.fsl import kept_edges
from fedbench.protocols.score_training import ScoreTraining
from fedbench.protocols.supermask import mask_rows, top_mask


@dataclass(frozen=True, kw_only=True)
class TopKMask(ScoreTraining):
    """Clients keep the ``k`` share of each layer with the highest scores, and send that mask.

    The baseline "Top-k" of the regularised FedPM: edge-popup in place of sampling, everything else
    as in FedPM with plain averaging (equal clients and a Gaussian start, where that paper weights
    by size and starts uniform: R4, R5). The server's mean of ``n`` masks has ``n + 1`` values, so
    the final mask breaks ties, by position: the higher index is kept. The paper does not say how,
    nor whether k is per layer, as in edge-popup and here, or global. For ``clip`` see `FedMask`
    (E11).

    Args:
        k: Share of each layer's weights that the subnetwork keeps.

    References:
        Mestoukirdi et al., "Communication-Efficient Federated Learning via Regularized Sparse
        Random Networks", https://arxiv.org/abs/2309.10834, section IV; Ramanujan et al., CVPR 2020,
        https://arxiv.org/abs/1911.13299, equation 4.
    """

    clip: float = 0.3
    k: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        require("TopKMask.k", self.k, 0 < self.k <= 1, "in (0, 1]")

    def mask(self, score: Tensor, key: Key) -> Tensor:
        """Take the top mask, straight through with slope 1, without draws."""
        return top_mask(score, kept_edges(math.prod(score.shape), self.k))

    def bits(self, shared: Shared, theta: Tensor, key: Key) -> Tensor:
        """The top mask of each layer; scores whose sigmoids round to one number tie."""
        layers = [
            mask_rows(layer[None], kept_edges(len(layer), self.k))[0]
            for layer in shared.weights.layers(theta)
        ]
        return torch.cat(layers) > 0
