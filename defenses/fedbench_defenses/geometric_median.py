"""Geometric median, exact or smoothed as in RFA."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedbench.api import ServerView, Traits
from fedbench.core.errors import require
from fedbench.payload import Rows

from .distances import Geometric, combine, gram


@dataclass(frozen=True, kw_only=True)
class GeometricMedian(Geometric[None]):
    """Compute ``argmin_z F(z) = sum_i |x_i - z|``, to a relative error of ``tolerance`` in ``F``.

    A search from the row with the smallest ``F``, which it leaves by the step of Vardi and Zhang.
    Every other step is the best of Weiszfeld's, ``z <- sum_i b_i x_i / sum_i b_i`` with ``b_i = 1 /
    |x_i - z|``, and of Newton's, whole, halved, quartered and so on. None makes ``F`` larger.
    Of two rows every point between them has the smallest ``F``; the answer is the lower row.

    With ``smooth`` it is RFA's objective, ``b_i = 1 / max(smooth, |x_i - z|)``; RFA takes a few of
    Weiszfeld's steps from the mean. Ignores the clients' sizes, by which RFA weighs, and rows that
    are not finite.

    Args:
        iterations: Largest number of steps.
        tolerance: Relative error of ``F`` at which it stops. The findings say which one was reached
            (``gap``), and if that is more than this (``stopped``).
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
        steps = 1 <= self.iterations <= 10**4
        require("GeometricMedian.iterations", self.iterations, steps, "in [1, 10000]")
        require("GeometricMedian.tolerance", self.tolerance, self.tolerance >= 0, ">= 0")
        require("GeometricMedian.smooth", self.smooth, self.smooth >= 0, ">= 0")

    def traits(self) -> Traits:
        return Traits(scale=not self.smooth)  # it is in the rows' unit

    def tolerates(self, n: int) -> int:
        # After any number of steps: the start has at most a benign row's sum of distances, and no
        # step adds to it (to RFA's, with `smooth`). If most rows are benign that bounds z.
        return (n - 1) // 2

    def answer(self, x: Rows, origin: Tensor, state: None, view: ServerView) -> tuple[Tensor, None]:
        products, finite = (part.cpu() for part in gram(x))  # the search is the processor's
        rows = finite.nonzero()[:, 0]
        share = torch.zeros(len(x), dtype=torch.float64)
        gap = 0.0
        if len(rows):
            share[rows], gap = self._minimise(products[rows][:, rows])
        notes = view.findings.notes
        notes["largest_weight"] = float(share.max())
        notes["gap"] = gap
        if gap > self.tolerance:
            notes["stopped"] = f"{self.iterations} steps did not find the geometric median"
        return combine(share, x), None

    def _minimise(self, g: Tensor) -> tuple[Tensor, float]:
        """Return the shares ``(n,)`` of the rows in ``z``, and a bound on the error of ``F(z)``."""
        start = lowest_cost(g)
        lengths = g.diagonal()
        blur = 1e-14 * (lengths + lengths[start])  # rounding error of a squared distance of 0
        # About the start, so that an answer very close to that row is told from it.
        centred = g - g[start] - g[:, start, None] + g[start, start]
        same = centred.diagonal() <= blur
        centred[same] = 0
        centred[:, same] = 0
        objective = Distances(centred, self.smooth)
        share = torch.zeros_like(lengths)
        for taken in range(self.iterations + 1):
            step, gradient = objective.step(share)
            # F(z) - F(z*) <= |g| |z - z*| as F is convex, with any subgradient g at z, and
            # n |z - z*| <= F(z) + F(z*) by the triangle inequality; RFA's F is no less.
            gap = 2 * gradient / len(g)
            if gap <= self.tolerance or taken == self.iterations or not bool(step.any()):
                break
            share = share + step
        share[start] += 1 - share.sum()
        return share, gap


def lowest_cost(g: Tensor) -> int:
    """Return the row with the smallest sum of distances to all, from products ``g (n, n)``.

    Sums are compared by differences: of the sums themselves a row very far away leaves nothing.
    """
    lengths = g.diagonal()
    distances = (lengths[:, None] + lengths - 2 * g).clamp_min(0).sqrt()
    base = int(distances.sum(dim=0).argmin())
    more = lengths - lengths[base] - 2 * (g - g[:, base, None])  # squares, [i, k] less [i, base]
    sums = distances + distances[:, base, None]
    return int(torch.where(sums > 0, more / sums, 0.0).sum(dim=0).argmin())


@dataclass(frozen=True, eq=False)
class Distances:
    """Objective ``F(z)`` for ``z = x_k + sum_i v_i (x_i - x_k)``, given as ``v (n,)``."""

    g: Tensor  # (n, n) float64 products <x_i - x_k, x_j - x_k>; rows equal to x_k are 0
    smooth: float  # distance below which a row does not weigh more

    def step(self, v: Tensor) -> tuple[Tensor, float]:
        """Return the step from ``v``, and the norm of the smallest subgradient known there."""
        if not self.smooth and not bool(v.any()):
            return self._leave()
        products = self.g @ v
        size = v @ products
        lengths = self.g.diagonal()
        squared = torch.maximum(lengths - 2 * products + size, 1e-16 * lengths).clamp_min(1e-300)
        distances = squared.sqrt()
        pull = 1 / distances.clamp_min(self.smooth)
        weiszfeld = pull / pull.sum() - v
        gradient = float(pull.sum()) * math.sqrt(max(float(weiszfeld @ self.g @ weiszfeld), 0.0))
        # With c_i = b_i / sum b and unit vectors u_i the Hessian is sum b times I - sum c_i u_i
        # u_i', and Newton's step sum_i s_i c_i (x_i - z) with (I - C U'U) s = 1, by Woodbury.
        # Rows within `smooth` have a share b_i I of the Hessian, and no other part in it.
        cosines = pull[:, None] * pull * (self.g - products[:, None] - products + size)
        bends = torch.where(distances > self.smooth, pull / pull.sum(), 0.0)
        matrix = torch.eye(len(v), dtype=v.dtype) - bends[:, None] * cosines
        solved = torch.linalg.solve_ex(matrix, torch.ones_like(v)).result * pull / pull.sum()
        newton = solved - solved.sum() * v
        steps = torch.stack([weiszfeld, *(newton / 2**i for i in range(10))])
        gains = self._changes(v, squared, steps).nan_to_num(nan=torch.inf)
        best = gains.argmin()
        return torch.where(gains[best] < 0, steps[best], 0.0), gradient

    def _leave(self) -> tuple[Tensor, float]:
        """Return the step from ``x_k``: others pull, and the rows there hold with force 1 each."""
        lengths = self.g.diagonal()
        pull = torch.where(lengths > 0, lengths.rsqrt(), 0.0)
        force = math.sqrt(max(float(pull @ self.g @ pull), 0.0))
        left = max(force - int((lengths <= 0).sum()), 0.0)
        return (left / force * pull / pull.sum() if left else pull * 0), left

    def _changes(self, v: Tensor, squared: Tensor, steps: Tensor) -> Tensor:
        """Return ``F(v + step) - F(v)`` of ``steps (m, n)``, without the loss of subtracting."""
        moved = steps @ self.g
        shift = 2 * moved @ v + (moved * steps).sum(dim=1)
        more = shift[:, None] - 2 * moved
        before = squared.sqrt()
        after = (squared + more).clamp_min(0).sqrt()
        changes = more / (before + after)
        if self.smooth:  # h(t) = t + max(smooth - t, 0)^2 / (2 smooth)
            now = (self.smooth - after).clamp_min(0) ** 2
            then = (self.smooth - before).clamp_min(0) ** 2
            changes = changes + (now - then) / (2 * self.smooth)
        return changes.sum(dim=1)
