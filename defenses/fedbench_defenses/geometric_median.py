"""Geometric median, and RFA's smoothed one."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedbench.api import Defense, ServerView, Traits
from fedbench.errors import require
from fedbench.payload import Payload

from .distances import combine, gram


@dataclass(frozen=True, kw_only=True)
class GeometricMedian(Defense[None]):
    """``argmin_z sum_i |x_i - z|``: ``z <- sum_i b_i x_i / sum_i b_i``, ``b_i = 1 / |x_i - z|``.

    ``z`` is a combination of the rows, so a step needs their inner products only. Where ``z`` is a
    row, ``b`` is not defined and the step is that of Vardi and Zhang. With ``smooth`` it is RFA,
    ``b_i = 1 / max(smooth, |x_i - z|)``. Unlike RFA it starts from the row with the smallest sum of
    distances: from the mean, a far row is forgotten only geometrically. It ignores the clients'
    sizes, by which RFA weighs, and rows that are not finite.

    Args:
        iterations: Steps at most.
        tolerance: Stop where a step is shorter than this share of the median distance to ``z``.
        smooth: Distance below which a row does not weigh more; 0: the exact median.

    References:
        Weiszfeld, Tohoku Mathematical Journal 43, 1937; Vardi and Zhang, "The multivariate
        L1-median and associated data depth", PNAS 97, 2000,
        https://doi.org/10.1073/pnas.97.4.1423; Pillutla, Kakade and Harchaoui, "Robust Aggregation
        for Federated Learning", IEEE Transactions on Signal Processing 70, 2022,
        https://arxiv.org/abs/1912.13445, smoothed Weiszfeld.
    """

    iterations: int = 100
    tolerance: float = 1e-6
    smooth: float = 0.0

    def __post_init__(self) -> None:
        require("GeometricMedian.iterations", self.iterations, self.iterations >= 1, ">= 1")
        require("GeometricMedian.tolerance", self.tolerance, self.tolerance >= 0, ">= 0")
        require("GeometricMedian.smooth", self.smooth, self.smooth >= 0, ">= 0")

    def traits(self) -> Traits:
        """A ``smooth`` in the rows' unit is the only thing that does not scale with them."""
        return Traits(scale=not self.smooth)

    def tolerates(self, n: int) -> int:
        """Fewer than half, after any number of steps.

        The start has at most a benign row's sum of distances and no step adds to it (to RFA's, with
        ``smooth``); where benign rows are the majority that bounds ``z``.
        """
        return (n - 1) // 2

    def aggregate(self, received: Payload, state: None, view: ServerView) -> tuple[Tensor, None]:
        """One Gram matrix, then ``O(n^2)`` a step."""
        x = received.values()
        products, finite = gram(x)
        rows = finite.nonzero()[:, 0]
        share = torch.zeros(len(x), dtype=torch.float64, device=x.device)
        if len(rows):
            share[rows] = self._weights(products[rows][:, rows])
        view.findings.notes["largest_weight"] = float(share.max())
        return combine(share, x), None

    def _weights(self, g: Tensor) -> Tensor:
        """``(n,)`` float64, the median's share of every row."""
        lengths = g.diagonal()
        between = lengths[:, None] + lengths[None, :] - 2 * g
        w = torch.zeros(len(g), dtype=torch.float64, device=g.device)
        w[between.clamp_min(0).sqrt().sum(dim=1).argmin()] = 1
        for _ in range(self.iterations):
            squared = lengths - 2 * g @ w + w @ g @ w
            blur = 1e-14 * (lengths + 2 * g.abs() @ w + w @ g.abs() @ w)  # of float64 there
            distances = squared.clamp_min(0).sqrt()
            here = (squared <= blur) & (self.smooth == 0)
            pull = torch.where(here, 0, 1 / distances.clamp_min(self.smooth))
            if not float(pull.sum()):
                break
            step = pull / pull.sum() - w
            length = math.sqrt(max(float(step @ g @ step), 0.0))
            force = length * float(pull.sum())
            if force <= int(here.sum()):
                break
            w = w + (1 - int(here.sum()) / force) * step
            if length <= self.tolerance * float(distances.median()):
                break
        return w
