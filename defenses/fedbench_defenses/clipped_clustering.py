"""Clipped clustering, the larger of two clusters by angle."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedbench.api import Defense, ServerView, Traits
from fedbench.payload import Payload, Spec

from .distances import clipped_mean, cosines, gram, middle

TIE = 1e-9  # distances that differ by less are equal, in whatever order they were summed


def larger_cluster(distances: Tensor) -> Tensor:
    """Return the rows ``(n,)`` bool of the larger of two clusters; of equal ones, those of both.

    Average linkage: the two clusters that are nearest in the mean of their distances are joined
    until two are left. Pairs that are equally near are joined at once, so that the order of the
    rows does not matter; if that leaves one cluster, it is returned.

    >>> x = torch.tensor([0.0, 1.0, 5.0, 2.5])
    >>> larger_cluster((x[:, None] - x).abs()).tolist()
    [True, True, False, True]
    """
    from scipy.sparse.csgraph import connected_components

    n = len(distances)
    cluster = torch.arange(n)
    sums = distances.to(torch.float64)
    while len(sums) > 2:
        sizes = cluster.bincount().to(torch.float64)
        linkage = (sums / sizes[:, None] / sizes).fill_diagonal_(torch.inf)
        near = linkage <= linkage.min() + TIE
        count, joined = connected_components(near.numpy(), directed=False)
        into = torch.from_numpy(joined).long()
        rows = torch.zeros(count, len(sums), dtype=torch.float64).index_add_(0, into, sums)
        sums = torch.zeros(count, count, dtype=torch.float64).index_add_(1, into, rows)
        cluster = into[cluster]
    sizes = cluster.bincount()
    return (sizes == sizes.max())[cluster]


@dataclass(frozen=True, kw_only=True)
class ClippedClustering(Defense[Tensor]):
    """Average the larger of two clusters by angle, clipped to the median norm of all rounds.

    The norm is the median over the rows of this round and of all earlier ones. Clusters are those
    of average linkage on ``1 - cosine``. Norms and angles are measured from the middle of the
    alphabet. Of two clusters of one size both are averaged, where the authors' code takes one by
    the order of the rows. Rows that are not finite are left out before, and their norms are not
    remembered. Ignores the clients' sizes. The code's limit of 1e5 on that norm is left out.

    The paper's text was not at hand, but the authors' code was.

    References:
        Li, Ngai and Voigt, "An Experimental Study of Byzantine-Robust Aggregation Schemes in
        Federated Learning", IEEE Transactions on Big Data, 2023; code:
        https://github.com/lishenghui/blades.
    """

    def traits(self) -> Traits:
        return Traits(history=True, detects=True, shift=False)

    def init(self, spec: Spec) -> Tensor:
        """Return the norms of no rows."""
        return torch.empty(0, dtype=torch.float64)

    def tolerates(self, n: int) -> int:
        return (n - 1) // 2  # then the median norm of all rounds is at most a benign one's

    def aggregate(
        self, received: Payload, state: Tensor | None, view: ServerView
    ) -> tuple[Tensor, Tensor]:
        x = received.values()
        origin = received.origin()
        past = self.init({}) if state is None else state
        products, averaged = (part.cpu() for part in gram(x, origin))
        norms = products.diagonal().sqrt()
        past = torch.cat([past, norms[averaged]])
        limit = middle(past) if len(past) else norms.new_zeros(())
        view.findings.notes["limit"] = float(limit)
        if bool(averaged.any()):
            angles = cosines(products[averaged][:, averaged])
            averaged[averaged.clone()] = larger_cluster((1 - angles).fill_diagonal_(0))
        view.findings.kept = averaged
        return clipped_mean(x, origin, norms, averaged, limit), past
