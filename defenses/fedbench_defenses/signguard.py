"""SignGuard, clustering by shares of signs."""

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from fedbench.api import Defense, ServerView, Traits
from fedbench.core.copies import copied_to
from fedbench.core.errors import require
from fedbench.core.rng import Key
from fedbench.core.tiling import row_sums
from fedbench.payload import Payload, Rankings, TopRankings

from .distances import clipped_mean, cosines, gram, middle, norms, squared_distances

Similarity = Literal["off", "cosine", "distance"]
_SAME = "would cluster noise, since every ranking has as many positions above the middle"


def sign_shares(x: Tensor, origin: Tensor) -> Tensor:
    """Return the shares ``(n, 3)`` of coordinates above, at and below the origin."""
    above = row_sums(x > origin, torch.int32).double() / x.shape[1]
    below = row_sums(x < origin, torch.int32).double() / x.shape[1]
    return torch.stack([above, 1 - above - below, below], dim=1)


def middle_of_others(pairs: Tensor) -> Tensor:
    """Return the median of each row of ``pairs (m, m)`` without the diagonal; 0 if ``m`` is 1.

    >>> middle_of_others(torch.tensor([[9.0, 1, 2], [1, 9, 5], [2, 5, 9]])).tolist()
    [1.5, 3.0, 3.5]
    """
    m = len(pairs)
    if m == 1:
        return torch.zeros_like(pairs[0])
    away = ~torch.eye(m, dtype=torch.bool, device=pairs.device)
    others = pairs[away].view(m, m - 1).sort(dim=1).values
    return others[:, (m - 2) // 2 : (m - 1) // 2 + 1].mean(dim=1)


def largest_cluster(points: Tensor, quantile: float) -> Tensor:
    """Return the rows ``(n,)`` bool in MeanShift's largest cluster, of equals in the denser one."""
    import numpy as np
    from sklearn.cluster import MeanShift, estimate_bandwidth

    rows = points.numpy()
    bandwidth = max(float(estimate_bandwidth(rows, quantile=quantile)), 1e-6)
    labels = MeanShift(bandwidth=bandwidth).fit_predict(rows)
    return torch.from_numpy(labels == np.bincount(labels).argmax())


@dataclass(frozen=True, kw_only=True)
class SignGuard(Defense[None]):
    """Average rows whose norm and shares of signs are those of most, clipped to the median norm.

    First the norm, in ``[low, high]`` medians, before anything is clipped (D10); then the largest
    cluster of the shares of positive, zero and negative coordinates, on a random part of them. Rows
    that pass both are clipped and averaged; without any, those that pass the first, and `findings`
    say so. Norms and signs are measured from the middle of the alphabet. A row that is not finite
    passes neither. Ignores the clients' sizes.

    The paper's variants add a fourth feature. ``cosine`` (SignGuard-Sim): the median cosine with
    the other rows. ``distance`` (SignGuard-Dist): the median distance to them, in medians of all
    rows and at most ``high``, a bound of ours, since one row far out would set the bandwidth for
    all. The public code compares with the last answer from its third round on, and scales features.

    Args:
        low: The smallest norm, in medians.
        high: The largest norm, in medians.
        share: Coordinates whose signs are counted, as a share of all.
        quantile: MeanShift's bandwidth, which the paper leaves open: the mean distance to so many
            of the other rows, as a share.
        similarity: off, cosine or distance.

    References:
        Xu, Huang, Song and Lan, "Byzantine-robust Federated Learning through Collaborative
        Malicious Gradient Filtering", ICDCS 2022, https://arxiv.org/abs/2109.05872.
    """

    without: ClassVar[dict[type[Payload], str]] = {Rankings: _SAME, TopRankings: _SAME}
    low: float = 0.1
    high: float = 3.0
    share: float = 0.1
    quantile: float = 0.5
    similarity: Similarity = "off"

    def __post_init__(self) -> None:
        require("SignGuard.low", self.low, 0 <= self.low <= 1, "in [0, 1]")
        require("SignGuard.high", self.high, self.high >= 1, ">= 1")
        require("SignGuard.share", self.share, 0 < self.share <= 1, "in (0, 1]")
        require("SignGuard.quantile", self.quantile, 0 < self.quantile <= 1, "in (0, 1]")
        names = get_args(Similarity)
        require("SignGuard.similarity", self.similarity, self.similarity in names, f"in {names}")

    def traits(self) -> Traits:
        return Traits(randomized=self.share < 1, detects=True, shift=False)

    def tolerates(self, n: int) -> int:
        return (n - 1) // 2  # then the median norm, which nothing exceeds, is a benign one

    def _alike(self, x: Tensor, origin: Tensor, finite: Tensor, key: Key) -> Tensor:
        alike = torch.zeros_like(finite)
        if not bool(finite.any()):
            return alike
        features = [self._likeness(x, origin, finite)]
        if self.share < 1:
            k = x.shape[1]
            drawn = copied_to(key.permutation(k)[: max(1, int(self.share * k))], x.device)
            x = x[:, drawn]
            origin = origin[drawn]
        features.append(sign_shares(x, origin).cpu()[finite])
        alike[finite] = largest_cluster(torch.cat(features, dim=1), self.quantile)
        return alike

    def _likeness(self, x: Tensor, origin: Tensor, finite: Tensor) -> Tensor:
        """Return the fourth feature ``(m, 1)`` of the finite rows, or ``(m, 0)`` without one."""
        if self.similarity == "cosine":
            products = gram(x, origin)[0].cpu()
            return middle_of_others(cosines(products[finite][:, finite]))[:, None]
        if self.similarity == "distance":
            far = middle_of_others(squared_distances(x).cpu()[finite][:, finite].sqrt())
            return (far / middle(far).clamp_min(1e-300)).clamp_max(self.high)[:, None]
        return torch.empty(int(finite.sum()), 0, dtype=torch.float64)

    def aggregate(self, received: Payload, state: None, view: ServerView) -> tuple[Tensor, None]:
        x = received.values()
        origin = received.origin()
        lengths = norms(x, origin).cpu()
        finite = torch.isfinite(lengths)
        typical = middle(lengths)
        passed = finite & (lengths >= self.low * typical) & (lengths <= self.high * typical)
        both = passed & self._alike(x, origin, finite, view.key.fold("signguard"))
        if bool(both.any()):
            passed = both
        else:
            view.findings.notes["fell_back"] = "empty intersection"
        view.findings.kept = passed
        return clipped_mean(x, origin, lengths, passed, typical), None
