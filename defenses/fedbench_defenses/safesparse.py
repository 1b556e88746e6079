"""SafeSparse, a filter of sparse messages by their supports, then by their signs."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fedbench.api import Defense, ServerView, Traits
from fedbench.core.copies import copied_to
from fedbench.core.errors import require
from fedbench.core.tiling import finite_rows, tiles
from fedbench.payload import Payload

from .distances import combine, cosines, middle
from .signguard import middle_of_others

CLOSE = 0.1  # what is within such a share of the median is no outlier
EQUAL = 1e-9  # scores that differ by less are equal: shares of few coordinates often are


def sign_products(x: Tensor, origin: Tensor) -> tuple[Tensor, Tensor]:
    """Return for each two rows how many coordinates both hold, and the product of their signs.

    Both are ``(n, n)`` float64, and exact. A row holds the coordinates that are not at ``origin``.

    >>> both, products = sign_products(torch.tensor([[5.0, -1, 0], [2, 3, 4]]), torch.zeros(3))
    >>> both.tolist(), products.tolist()
    ([[2.0, 2.0], [2.0, 3.0]], [[2.0, 0.0], [0.0, 3.0]])
    """
    both = torch.zeros(len(x), len(x), dtype=torch.float64, device=x.device)
    products = torch.zeros_like(both)
    for tile, centre in tiles(x, origin):
        signs = torch.sign(tile - centre).to(torch.float64)
        products += signs @ signs.T
        both += signs.abs_() @ signs.T
    return both, products


def jaccard(both: Tensor) -> Tensor:
    """Return ``|A n B| / |A u B|`` of each two supports, ``(n, n)``; 1 of two that are empty.

    >>> jaccard(torch.tensor([[2.0, 1.0, 0.0], [1.0, 3.0, 0.0], [0.0, 0.0, 0.0]])).tolist()
    [[1.0, 0.25, 0.0], [0.25, 1.0, 0.0], [0.0, 0.0, 1.0]]
    """
    sizes = both.diagonal()
    union = sizes[:, None] + sizes[None, :] - both
    return torch.where(union > 0, both / union.clamp_min(1), 1.0)


def median_and_room(x: Tensor, mads: float) -> tuple[Tensor, Tensor]:
    """Return the median of ``x (n,)``, and how far from it a value is no outlier.

    That is ``mads`` median absolute deviations, or a tenth of the median where these are less.

    >>> [float(part) for part in median_and_room(torch.tensor([1.0, 2.0, 4.0, 7.0, 99.0]), 2)]
    [4.0, 6.0]
    """
    median = middle(x)
    deviation = middle((x - median).abs())
    return median, torch.maximum(mads * deviation, CLOSE * median)


def typical_supports(similarity: Tensor, mads: float) -> Tensor:
    """Return the rows ``(n,)`` bool whose support is as similar to the others' as is usual.

    A row stays unless its median similarity with the other rows is an outlier below the median of
    these medians.
    """
    typical = middle_of_others(similarity)
    median, room = median_and_room(typical, mads)
    return typical >= median - room - EQUAL


def clusters(near: Tensor, core: Tensor) -> Iterator[Tensor]:
    """Yield DBSCAN's clusters ``(n,)`` bool, from who is ``near (n, n)`` whom and ``core (n,)``.

    A row that is no core row belongs to every cluster with a core row near it, not to the first
    one, so that the clusters do not depend on the order of the rows.

    >>> near = (torch.arange(7)[:, None] - torch.arange(7)).abs() <= 1
    >>> core = torch.tensor([0, 1, 1, 0, 1, 0, 0]).bool()
    >>> [cluster.nonzero()[:, 0].tolist() for cluster in clusters(near, core)]
    [[0, 1, 2, 3], [3, 4, 5]]
    """
    left = core.clone()
    while bool(left.any()):
        cluster = near[left.nonzero()[0, 0]]
        grown = near[cluster & core].any(dim=0)
        while not torch.equal(grown, cluster):
            cluster = grown
            grown = near[cluster & core].any(dim=0)
        left &= ~cluster
        yield cluster


def dense_rows(distances: Tensor, mads: float) -> Tensor:
    """Return DBSCAN's largest cluster ``(n,)`` bool; if several are as large, the rows of all.

    A row's reach is the distance at which it has more than half of all rows, itself among them. The
    radius is the median reach and as much as a reach may lie above it, and a core row one with no
    longer reach: at least half of all are.
    """
    reach = distances.sort(dim=1).values[:, len(distances) // 2]
    median, room = median_and_room(reach, mads)
    radius = median + room + EQUAL
    groups = torch.stack(list(clusters(distances <= radius, reach <= radius)))
    sizes = groups.sum(dim=1)
    return groups[sizes == sizes.max()].any(dim=0)


@dataclass(frozen=True, kw_only=True)
class SafeSparse(Defense[None]):
    """Average the rows with the support of most that also have the signs of most.

    A row's support is the coordinates that it does not leave at the middle of the alphabet. First
    the supports: a row is left out if its median Jaccard similarity with the other rows is below
    the median of all rows by more than ``support`` median absolute deviations. Then the signs, -1,
    0 or 1: DBSCAN by ``1 - cosine`` of sign vectors, where a core row has more than half of the
    rows that are left within the radius, and the largest cluster is averaged. The radius is the
    median distance at which rows have so many, and ``sign`` median absolute deviations. In both
    stages a tenth of the median is allowed in any case. Where all coordinates are sent, supports
    are all the same, and signs alone decide.

    Magnitudes are not looked at: a row with honest signs may be of any length, so the rule
    tolerates nobody by itself; ``clip+safesparse`` bounds it. Rows that are not finite are left out
    before. Ignores the clients' sizes. `findings` count the rows that each stage left out.

    The paper's text was not at hand, only the abstracts of its versions (the first call it FLARE),
    and no code was found. Theirs are the two stages: Jaccard similarity against index poisoning,
    and density-based clustering of update signs. Ours is everything else: that a row is compared
    with the other rows and not with a mask of the server's, medians, both bounds, DBSCAN and its
    distance, what a core row is, and that kept rows are averaged as they are.

    Args:
        support: Median absolute deviations that a row's similarity may lie below the median.
        sign: Median absolute deviations that DBSCAN's radius lies above the median distance at
            which a row has more than half of the rows, itself among them.

    References:
        Jin, Xu, Li, Liu, Li and Joshi, "Sparsification Under Siege: Dual-Level Defense Against
        Poisoning in Communication-Efficient Federated Learning", 2025,
        https://arxiv.org/abs/2505.01454.
    """

    support: float = 4.5
    sign: float = 3.0

    def __post_init__(self) -> None:
        require("SafeSparse.support", self.support, 0 <= self.support <= 1e6, "in [0, 1e6]")
        require("SafeSparse.sign", self.sign, 0 <= self.sign <= 1e6, "in [0, 1e6]")

    def traits(self) -> Traits:
        return Traits(detects=True, shift=False)

    def tolerates(self, n: int) -> int:
        return 0  # a row with the support and the signs of the others is kept at any length

    def aggregate(self, received: Payload, state: None, view: ServerView) -> tuple[Tensor, None]:
        x = received.values()
        origin = received.origin()
        accepted = finite_rows(x).cpu()
        rows = accepted.nonzero()[:, 0]
        if len(rows):
            finite = x if len(rows) == len(x) else x[copied_to(rows, x.device)]
            both, products = (part.cpu() for part in sign_products(finite, origin))
            usual = typical_supports(jaccard(both), self.support)
            cluster = dense_rows(1 - cosines(products[usual][:, usual]), self.sign)
            view.findings.notes["other_supports"] = int((~usual).sum())
            view.findings.notes["other_signs"] = int((~cluster).sum())
            usual[usual.clone()] = cluster
            accepted[rows] = usual
        view.findings.kept = accepted
        share = accepted.to(torch.float64) / accepted.sum().clamp_min(1)
        return combine(share, x, origin), None
