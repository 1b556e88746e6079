"""A backdoor on the rare samples of a class."""

import math
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from fedbench.api import Attack, Local
from fedbench.core.errors import require, require_label


@dataclass(frozen=True, kw_only=True)
class EdgeCase(Attack):
    """Train honestly, but with the oddest images of the class ``source`` labelled ``target``.

    Odd are the ``ceil(tail N)`` of a set's ``N`` source images with the largest L2 distance, over
    all normalised pixels, to their own mean; of equal ones the first. A client relabels those of
    its local images (none: it is honest), and success is measured on those of the held-out ones.
    Unlike the paper's they are of no other distribution, and it neither projects nor scales. So
    where honest clients have as odd images, with their true labels, they outvote it: on IID
    ``digits`` success is 0 %, with 40 % malicious clients under a mean, too.

    Args:
        source: Class whose tail is relabelled.
        target: Class that the tail is to be taken for.
        tail: Share of the source images.

    References:
        Wang et al., "Attack of the Tails: Yes, You Really Can Backdoor Federated Learning", NeurIPS
        2020, https://arxiv.org/abs/2007.05084, the definition of edge-case examples; with the
        distance in pixel space for their density.
    """

    works_on = ("image", "numbers")

    source: int = 7
    target: int = 1
    tail: float = 0.2

    def __post_init__(self) -> None:
        require("EdgeCase.source", self.source, self.source >= 0, ">= 0")
        fits = self.target >= 0 and self.target != self.source
        require("EdgeCase.target", self.target, fits, ">= 0, and not the source")
        require("EdgeCase.tail", self.tail, 0 < self.tail <= 1, "in (0, 1]")

    def require_samples(self, image: tuple[int, ...], classes: int) -> None:
        require_label("EdgeCase.source", self.source, classes)
        require_label("EdgeCase.target", self.target, classes)

    def odd(self, xs: Tensor, ys: Tensor) -> Tensor:
        """Return the row numbers of the tail of the source class."""
        rows = (ys == self.source).nonzero()[:, 0]
        if not len(rows):
            return rows
        images = xs[rows].flatten(1)
        distances = torch.linalg.vector_norm(images - images.mean(dim=0), dim=1)
        farthest = distances.sort(descending=True, stable=True).indices
        return rows[farthest[: math.ceil(Fraction(str(self.tail)) * len(rows))]]

    def poison(self, xs: Tensor, ys: Tensor, local: Local) -> tuple[Tensor, Tensor]:
        return xs, ys.index_fill(0, self.odd(xs, ys), self.target)

    def trigger(self, xs: Tensor, ys: Tensor, learned: Tensor | None = None) -> tuple[Tensor, int]:
        return xs[self.odd(xs, ys)], self.target
