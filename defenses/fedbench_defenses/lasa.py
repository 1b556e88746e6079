"""LASA, a filter of each layer of sparsified updates."""

from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import torch
from torch import Tensor

from fedbench.api import Defense, ServerView, Traits
from fedbench.core.copies import copied_to
from fedbench.core.errors import require
from fedbench.core.order_statistics import nth_largest
from fedbench.core.tiling import finite_rows
from fedbench.payload import (
    GatedVectors,
    MixtureVectors,
    Payload,
    PrunedVectors,
    Rankings,
    Residues,
    TopRankings,
)

from .distances import middle, norms

_SAME = "would be the mean: all rankings have one norm, and as many positions above the middle"
_OTHER = "would sparsify columns that are no coordinates of an update"
_BELOW = 1 - 1e-9  # a score nearer to its radius is at it: at 1 both of two rows are


def mz_scores(x: Tensor) -> Tensor:
    """Return ``|x_i - median| / deviation`` of positive ``x (n,)``; 0 if they are all the same.

    The deviation is the standard deviation of all. They are the same up to rounding where it is
    below 1e-6 medians: of float32, of norms that were clipped.

    >>> mz_scores(torch.tensor([2.0, 2.0, 2.0, 2.0, 7.0])).tolist()  # from the mean: 0.5 and 2
    [0.0, 0.0, 0.0, 0.0, 2.5]
    """
    median = middle(x)
    deviation = x.std(unbiased=False)
    return (x - median).abs() / torch.where(deviation > 1e-6 * median, deviation, torch.inf)


def purity(x: Tensor) -> Tensor:
    """Return ``1/2 (1 + sum sgn(x) / sum |sgn(x)|)`` of each row, 1/2 of one that is all zero.

    >>> purity(torch.tensor([[3.0, 0.0, 2.0, -1.0, 4.0], [0.0, 0.0, 0.0, 0.0, 0.0]])).tolist()
    [0.75, 0.5]
    """
    signs = torch.sign(x).to(torch.float64)
    return (1 + signs.sum(dim=1) / signs.abs().sum(dim=1).clamp_min(1)) / 2


@dataclass(frozen=True, kw_only=True)
class LASA(Defense[None]):
    """Average in each layer the sparsified rows whose norm and share of signs are those of most.

    Every row keeps its largest coordinates, over all layers, and is clipped to the median norm.
    Layer by layer a row passes if the median-based Z-scores (MZ-scores) of its norm and of its
    positive direction purity, the share of positive signs among its non-zero coordinates, are below
    two radii. In a layer in which no row passes both, all are averaged, and `findings` say so. A
    row is ``kept`` if it counts in a layer; ``left_out`` is the share of rows over all layers.

    The clip and its order are those of the authors' code, as are the radii. That code sparsifies
    weights alone, not biases, drops the last coordinate that it should keep, and takes the smaller
    of two middle norms. Here coordinates as large as the last that is kept are kept, too: of signs
    all. Magnitudes and signs are measured from the middle of the alphabet. Rows that are not finite
    are left out before. Messages whose columns are not those of the network, as behind a prefilter
    they may be, are one layer. Ignores the clients' sizes. The paper's text was not at hand, but
    its definitions of purity and MZ-score were.

    Args:
        sparsity: Share of a row's coordinates that are brought to the middle.
        norm: Radius for MZ-scores of norms, the paper's ``lambda_m``.
        sign: Radius for MZ-scores of purities, the paper's ``lambda_d``.

    References:
        Xu, Zhang and Hu, "Achieving Byzantine-Resilient Federated Learning via Layer-Adaptive
        Sparsified Model Aggregation", WACV 2025, https://arxiv.org/abs/2409.01435; code:
        https://github.com/JiiahaoXU/LASA.
    """

    without: ClassVar[dict[type[Payload], str]] = {
        **dict.fromkeys((Rankings, TopRankings), _SAME),
        **dict.fromkeys((GatedVectors, MixtureVectors, PrunedVectors, Residues), _OTHER),
    }
    sparsity: float = 0.3
    norm: float = 1.0
    sign: float = 1.0

    def __post_init__(self) -> None:
        require("LASA.sparsity", self.sparsity, 0 <= self.sparsity < 1, "in [0, 1)")
        require("LASA.norm", self.norm, self.norm > 0, "> 0")
        require("LASA.sign", self.sign, self.sign > 0, "> 0")

    def traits(self) -> Traits:
        return Traits(detects=True, shift=False, sparsifies=self.sparsity > 0)

    def tolerates(self, n: int) -> int:
        return (n - 1) // 2  # then the median norm, which nothing exceeds, is a benign one

    def _least(self, x: Tensor, origin: Tensor) -> Tensor:
        """Return the least magnitude ``(n, 1)`` that each row keeps."""
        k = x.shape[1]
        keeps = max(int((1 - Fraction(str(self.sparsity))) * k), 1)  # in floats (1 - 0.9) * 30 < 3
        least = [nth_largest((row - origin).abs()[None], keeps) for row in x]
        return torch.cat(least)

    def aggregate(self, received: Payload, state: None, view: ServerView) -> tuple[Tensor, None]:
        x = received.values()
        origin = received.origin()
        out = origin.to(x.dtype, copy=True)
        finite = finite_rows(x).cpu()
        counts = torch.zeros(len(x), dtype=torch.int64)
        view.findings.kept = finite
        if not bool(finite.any()):
            return out, None
        x = x[copied_to(finite.nonzero()[:, 0], x.device)]
        lengths = norms(x, origin)
        clip = (middle(lengths) / lengths.clamp_min(1e-300)).clamp_max(1)[:, None]
        least = self._least(x, origin)
        sizes = layers(received, view)
        starts = torch.tensor([0, *sizes]).cumsum(0).tolist()
        for start, size in zip(starts, sizes, strict=False):
            columns = slice(start, start + size)
            part = x[:, columns] - origin[columns]
            part = torch.where(part.abs() >= least, part, 0.0)
            passed = self._pass(part.to(torch.float64) * clip).cpu()
            if not bool(passed.any()):
                passed = torch.ones_like(passed)
                view.findings.notes["fell_back"] = "empty intersection"
            rows = copied_to(passed.nonzero()[:, 0], x.device)
            share = (clip[rows] / len(rows)).T
            mean = share @ part[rows].to(torch.float64)
            out[columns] += mean[0].to(out)
            counts[finite] += passed
        view.findings.kept = counts > 0
        out_of = len(counts) * len(sizes)
        view.findings.notes |= {"layers": len(sizes), "left_out": 1 - int(counts.sum()) / out_of}
        return out, None

    def _pass(self, part: Tensor) -> Tensor:
        """Return the rows ``(n,)`` bool of a layer that are within both radii."""
        lengths = torch.linalg.vector_norm(part, dim=1)
        usual = mz_scores(lengths) < _BELOW * self.norm
        return usual & (mz_scores(purity(part)) < _BELOW * self.sign)


def layers(received: Payload, view: ServerView) -> tuple[int, ...]:
    """Return the numbers of columns of the network's layers, or of all as one layer."""
    k = received.values().shape[1]
    fits = view.layout is not None and view.layout.d == k
    return view.layout.sizes if fits and view.layout is not None else (k,)
