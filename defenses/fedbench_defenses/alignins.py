"""AlignIns, a filter of updates by their direction."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedbench.api import Defense, ServerView, Traits
from fedbench.core.copies import copied_to
from fedbench.core.errors import require
from fedbench.core.order_statistics import nth_largest
from fedbench.core.tiling import finite_rows
from fedbench.payload import Payload

from .distances import clipped_mean, inner, middle, norms
from .fldetector import NO_UPDATES, sent_model

_WHY = "compares updates with the broadcast weights, which its columns are not"
EQUAL = 1e-9  # scores that differ by less are equal, in whatever order they were summed


def principal_sign(x: Tensor) -> Tensor:
    """Return the sign ``(k,)`` of the sum of the rows' signs; 0 where as many go either way."""
    return x.sign().sum(dim=0).sign()


def alignments(x: Tensor, principal: Tensor, share: float) -> Tensor:
    """Return MPSA ``(n,)``: how many of the largest ``share`` of a row have the principal sign.

    Values that tie for the last places share them, so of a row of signs all values count.

    >>> x = torch.tensor([[5.0, -4.0, 3.0, -3.0, 1.0], [1.0, 1.0, 1.0, -1.0, -1.0]])
    >>> alignments(x, torch.ones(5), 0.6).tolist()  # of the first 5, -4 and half of 3 and -3
    [0.5, 0.6]
    """
    k = x.shape[1]
    count = max(1, int(share * k))
    magnitude = x.abs()
    least = nth_largest(magnitude, count)
    agrees = x.sign() == principal
    larger = magnitude > least
    tied = magnitude == least
    places = count - larger.sum(dim=1)
    among_tied = (agrees & tied).sum(dim=1).double() / tied.sum(dim=1)
    return ((agrees & larger).sum(dim=1) + places * among_tied) / count


def typical(scores: Tensor, limit: float) -> Tensor:
    """Return the scores ``(n,)`` at most ``limit`` standard deviations (ddof 0) off the median.

    >>> typical(torch.tensor([0.0, 1.0, 2.0, 9.0]), 1.0).tolist()
    [True, True, True, False]
    """
    spread = (scores - scores.mean()).square().mean().sqrt()
    return (scores - middle(scores)).abs() <= limit * spread + EQUAL


@dataclass(frozen=True, kw_only=True)
class AlignIns(Defense[None]):
    """Average the rows whose direction is typical in two ways, clipped to their median norm.

    TDA is a row's cosine with the broadcast model, MPSA the share of its largest values that have
    the principal sign, that of the sum of all rows' signs. A row counts if both are within a number
    of standard deviations of their medians over the round. The norm is the median over the rows
    that count. Where all scores are equal all rows count, and values that tie for the last of the
    largest share its places; public code divides by 0, and takes any of them. A score at the limit
    counts, so that of two rows both do; that code leaves it out. With nobody left the answer is 0,
    and `findings` say so. Rows that are not finite are left out before. Ignores the clients' sizes,
    which that code weights by. Of an even number of norms the median is the mean of the middle two,
    where that code takes the smaller one.

    It tolerates nobody for certain: a few rows beyond the medians of others decide who counts, and
    those who count what the median norm is.

    The paper's text was not at hand, but descriptions of it, BackFed's code and copies of the
    authors' were.

    Args:
        share: Share of a row's values, the largest, whose signs are looked at.
        tda: Standard deviations that a cosine may be off the median; ``lambda_c``.
        mpsa: Standard deviations that a share of signs may be off the median; ``lambda_s``.

    References:
        Xu, Zhang and Hu, "Detecting Backdoor Attacks in Federated Learning via Direction Alignment
        Inspection", CVPR 2025, https://arxiv.org/abs/2503.07978; code:
        https://github.com/JiiahaoXU/AlignIns.
    """

    without: ClassVar[dict[type[Payload], str]] = dict.fromkeys(NO_UPDATES, _WHY)
    share: float = 0.3
    tda: float = 1.0
    mpsa: float = 1.0

    def __post_init__(self) -> None:
        require("AlignIns.share", self.share, 0 < self.share <= 1, "in (0, 1]")
        require("AlignIns.tda", self.tda, 0 <= self.tda <= 1e6, "in [0, 1e6]")
        require("AlignIns.mpsa", self.mpsa, 0 <= self.mpsa <= 1e6, "in [0, 1e6]")

    def traits(self) -> Traits:
        return Traits(broadcast=True, detects=True, shift=False, sharp=False)

    def tolerates(self, n: int) -> int:
        return 0

    def aggregate(self, received: Payload, state: None, view: ServerView) -> tuple[Tensor, None]:
        x = received.values()
        model = sent_model("alignins", view, x.shape[1]).to(x.device)
        origin = torch.zeros_like(model)
        lengths = norms(x, origin).cpu()
        counted = finite_rows(x).cpu()
        rows = counted.nonzero()[:, 0]
        if len(rows):
            finite = x if len(rows) == len(x) else x[copied_to(rows, x.device)]
            of_model = float(torch.linalg.vector_norm(model, dtype=torch.float64))
            scale = (lengths[rows] * of_model).clamp_min(1e-300)
            cosines = inner(finite, origin, model).cpu() / scale
            shares = alignments(finite, principal_sign(finite), self.share).cpu()
            counted[rows] = typical(cosines, self.tda) & typical(shares, self.mpsa)
        limit = lengths.new_zeros(())
        if bool(counted.any()):
            limit = middle(lengths[counted])
        else:
            view.findings.notes["fell_back"] = "nobody is typical"
        view.findings.kept = counted
        return clipped_mean(x, origin, lengths, counted, limit), None
