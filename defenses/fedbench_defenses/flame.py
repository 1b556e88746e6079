"""FLAME, clustering by angle, clipping and noise."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedbench.api import ServerView, Traits
from fedbench.core.errors import require
from fedbench.payload import Rows

from .distances import Geometric, clipped_mean, cosines, gram, hdbscan, middle


@dataclass(frozen=True, kw_only=True)
class FLAME(Geometric[None]):
    """Average the largest cluster by angle, clipped to the median norm ``S``, and add noise.

    HDBSCAN on cosine distances, with clusters of ``n // 2 + 1`` rows or more, finds at most one:
    the first majority when rows are joined in order of distance. ``S`` is the median over *all*
    rows, and the noise ``N(0, (noise S)^2)`` in each coordinate. Norms and angles are those of
    updates, from the middle of the alphabet; Algorithm 1 takes the angles of whole models. Without
    a cluster, because half of the rows are not finite, all finite rows are averaged, ``S`` is the
    median of their norms, and `findings` say so. Ignores the clients' sizes.

    Args:
        noise: Standard deviation of a coordinate's noise, in median norms. The norm of all of it
            is ``sqrt(d)`` times larger.

    References:
        Nguyen et al., "FLAME: Taming Backdoors in Federated Learning", USENIX Security 2022,
        https://arxiv.org/abs/2101.02281, Algorithm 1.
    """

    noise: float = 0.001

    def __post_init__(self) -> None:
        require("FLAME.noise", self.noise, self.noise >= 0, ">= 0")

    def traits(self) -> Traits:
        return Traits(randomized=self.noise > 0, detects=True, shift=False)

    def rows_needed(self) -> int:
        return 2

    def tolerates(self, n: int) -> int:
        return (n - 1) // 2  # then the median norm, which nothing exceeds, is a benign one

    def answer(self, x: Rows, origin: Tensor, state: None, view: ServerView) -> tuple[Tensor, None]:
        products, averaged = (part.cpu() for part in gram(x, origin))
        norms = torch.where(averaged, products.diagonal().sqrt(), torch.inf)
        typical = middle(norms)
        distances = (1 - cosines(products[averaged][:, averaged])).fill_diagonal_(0)
        cluster = hdbscan(distances, len(x) // 2 + 1) == 0  # more than half: there is no other
        if bool(cluster.any()):
            averaged[averaged.clone()] = cluster
        else:
            view.findings.notes["fell_back"] = "no cluster"
            typical = middle(norms[averaged]) if bool(averaged.any()) else torch.zeros_like(typical)
        view.findings.kept = averaged
        out = clipped_mean(x, origin, norms, averaged, typical)
        if self.noise > 0:
            drawn = view.key.fold("flame").normal(len(out), device=origin.device)
            out = out + self.noise * typical.to(out.dtype) * drawn
        return out, None
