"""SignGuard."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedbench.api import Defense, ServerView, Traits
from fedbench.errors import require
from fedbench.payload import Payload, Rankings, TopRankings
from fedbench.rng import Key

from .angles import clipped_mean
from .distances import middle, norms

_SAME = "would cluster noise, since every ranking has as many positions above the middle"


def sign_shares(x: Tensor, origin: Tensor) -> Tensor:
    """``(n, 3)`` float64: the shares of coordinates above, at and below the origin."""
    above, below = (x > origin).double().mean(dim=1), (x < origin).double().mean(dim=1)
    return torch.stack([above, 1 - above - below, below], dim=1)


def largest_cluster(points: Tensor, quantile: float) -> Tensor:
    """``(n,)`` bool: the rows in MeanShift's largest cluster, of equals in the denser one."""
    import numpy as np
    from sklearn.cluster import MeanShift, estimate_bandwidth

    rows = points.cpu().numpy()
    bandwidth = max(float(estimate_bandwidth(rows, quantile=quantile)), 1e-6)
    labels = MeanShift(bandwidth=bandwidth).fit_predict(rows)
    return torch.from_numpy(labels == np.bincount(labels).argmax()).to(points.device)


@dataclass(frozen=True, kw_only=True)
class SignGuard(Defense[None]):
    """Average rows whose norm and shares of signs are those of most, clipped to the median norm.

    First the norm, in ``[low, high]`` medians, before anything is clipped (D10); then the largest
    cluster of the shares of positive, zero and negative coordinates, on a random part of them;
    what passes both is clipped and averaged. Norms and signs are measured from the middle of the
    alphabet. If nothing passes both, what passes the first is averaged, and `findings` say so. A
    row that is not finite passes neither. Ignores the clients' sizes.

    The paper leaves MeanShift's bandwidth open: here scikit-learn's estimate, see ``quantile``.
    Its variants with cosines or distances beside the signs are not here.

    Args:
        low: The smallest norm, in medians.
        high: The largest norm, in medians.
        share: Coordinates whose signs are counted, as a share of all.
        quantile: The bandwidth is the mean distance to so many of the other rows, as a share.

    References:
        Xu, Huang, Song and Lan, "Byzantine-robust Federated Learning through Collaborative
        Malicious Gradient Filtering", ICDCS 2022, https://arxiv.org/abs/2109.05872.
    """

    without: ClassVar[dict[type[Payload], str]] = {Rankings: _SAME, TopRankings: _SAME}

    low: float = 0.1
    high: float = 3.0
    share: float = 0.1
    quantile: float = 0.5

    def __post_init__(self) -> None:
        require("SignGuard.low", self.low, 0 <= self.low <= 1, "in [0, 1]")
        require("SignGuard.high", self.high, self.high >= 1, ">= 1")
        require("SignGuard.share", self.share, 0 < self.share <= 1, "in (0, 1]")
        require("SignGuard.quantile", self.quantile, 0 < self.quantile <= 1, "in (0, 1]")

    def traits(self) -> Traits:
        """Signs are those of ``x - origin``, and the coordinates are drawn."""
        return Traits(randomized=self.share < 1, detects=True, shift=False)

    def tolerates(self, n: int) -> int:
        """Fewer than half: then the median norm, which nothing exceeds, is between benign ones."""
        return (n - 1) // 2

    def _alike(self, x: Tensor, origin: Tensor, finite: Tensor, key: Key) -> Tensor:
        k = x.shape[1]
        if self.share < 1:
            drawn = key.permutation(k)[: max(1, int(self.share * k))].to(x.device)
            x, origin = x[:, drawn], origin[drawn]
        alike = torch.zeros_like(finite)
        if bool(finite.any()):
            alike[finite] = largest_cluster(sign_shares(x, origin)[finite], self.quantile)
        return alike

    def aggregate(self, received: Payload, state: None, view: ServerView) -> tuple[Tensor, None]:
        """Norms, signs, both, clip, mean."""
        x, origin = received.values(), received.origin()
        lengths = norms(x, origin)
        finite, typical = torch.isfinite(lengths), middle(lengths)
        kept = finite & (lengths >= self.low * typical) & (lengths <= self.high * typical)
        both = kept & self._alike(x, origin, finite, view.key.fold("signguard"))
        if bool(both.any()):
            kept = both
        else:
            view.findings.notes["fell_back"] = "empty intersection"
        view.findings.kept = kept.cpu()
        return clipped_mean(x, origin, lengths, kept, typical), None
