"""Colluders in front of an L-estimator: a rule that combines every coordinate's sorted rows."""

import math
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from fedbench.core.order_statistics import sorted_rows
from fedbench.core.tiling import tiles

from .search import GAP, Scale, Search, Traced, best_of_grid

TOLERANCE = 1e-6  # relative distance to the limit of damage that counts as reached


def with_copies(ordered: Tensor, weights: Tensor, values: Tensor, m: int) -> Tensor:
    """Return the L-estimate ``(d,)`` of sorted rows ``ordered (n - m, d)`` and ``m`` of ``values``.

    With ``m`` equal values v among sorted ones b, the order statistic t of all of them is
    ``clamp(v, b[t - m], b[t])``.

    >>> column = torch.tensor([[0.0], [2.0], [5.0]])
    >>> with_copies(column, torch.tensor([0, 0, 1.0, 0, 0]), torch.tensor([3.0]), 2)  # 0 2 3 3 5
    tensor([3.])
    """
    total = torch.zeros_like(values)
    for t, weight in enumerate(weights.tolist()):
        if weight != 0:
            low = ordered[t - m] if t >= m else None
            high = ordered[t] if t < len(ordered) else None
            total += weight * torch.clamp(values, low, high)
    return total


def far_out(ordered: Tensor, weights: Tensor, mean: Tensor, push: Tensor, m: int) -> Tensor:
    """Return the limit of `with_copies` of ``mean + gamma * push`` for gamma to infinity.

    Far above, every rank counts the row that it counts without colluders; far below, ``m`` down.

    >>> column, weights = torch.tensor([[0.0], [2.0], [5.0]]), torch.tensor([0, 0, 1.0, 0, 0])
    >>> up, down, none = torch.tensor([[1.0], [-1.0], [0.0]])
    >>> [far_out(column, weights, torch.tensor([3.0]), p, 2).item() for p in (up, down, none)]
    [5.0, 0.0, 3.0]
    """
    b = len(ordered)
    weights = weights.to(ordered)
    above = weights[:b] @ ordered + (torch.inf if bool(weights[b:].any()) else 0.0)
    below = weights[m:] @ ordered - (torch.inf if bool(weights[:m].any()) else 0.0)
    out = torch.where(push > 0, above, below)
    still = (push == 0).nonzero()[:, 0]
    out[still] = with_copies(ordered[:, still], weights, mean[still], m)
    return out


def saturating(
    weights: Tensor,
    benign: Tensor,
    mean: Tensor,
    push: Tensor,
    m: int,
    bound: float,
    sides: tuple[int, ...] = (1,),
) -> Search:
    """Return the least gamma whose damage to an L-estimator is within `TOLERANCE` of its limit.

    A coordinate moves one way as gamma grows, so its damage is nowhere more than the larger of that
    at 0 and its limit. If all of these together are within `GAP` of the limit, no gamma does more;
    otherwise some gammas about the answer are tried, and if one does more, a grid.

    Of the rule are the ``weights (n,)`` of `Defense.order_weights`, damage is measured from the
    ``mean (d,)`` of ``benign (n - m, d)``, ``bound`` is the largest gamma, and of two ``sides`` (1:
    positive gammas, -1: negative) the one of more damage counts.
    """
    ranks = weights.nonzero()[:, 0].tolist()
    lowest = max(ranks[0] - m, 0)  # only rows between these two can have a rank that counts
    highest = min(ranks[-1], len(benign) - 1)
    ordered = sorted_rows(benign, range(lowest, highest + 1))
    line = Line(ordered, weights[lowest : highest + 1 + m], mean, push, m)
    ends = {side: line.limit(side, bound) for side in sides}
    end, damage = max(ends.values(), key=lambda pair: pair[1])
    end = replace(end, trace=tuple(trial for search, _ in ends.values() for trial in search.trace))
    enough = (1 + GAP) * damage
    open_ = tuple(side for side in sides if line.most(side) > enough)
    if end.ended == "bound" or not open_:
        return end
    near = max(abs(search.gamma) for search, _ in ends.values())
    tried = [side * near * 2.0**doubling for side in open_ for doubling in range(-3, 3)]
    if max(line.damages([0.0, *tried])) <= enough:
        return end
    scale = Scale(near, near, bound)
    inside = best_of_grid(lambda gamma: line.damages([gamma])[0], scale, sides=open_)
    return replace(inside, kind="saturating", trace=end.trace + inside.trace)


@dataclass(frozen=True, eq=False)
class Line:
    """Damage of ``m`` rows ``mean + gamma * push`` to an L-estimator, from rows sorted once."""

    ordered: Tensor  # (r, d), those ranks of the benign rows that can count
    weights: Tensor  # (r + m,) of the ranks of these and the colluders
    mean: Tensor
    push: Tensor
    m: int
    limits: dict[int, Tensor] = field(default_factory=dict)  # squared, (d,) at infinity, by side

    def limit(self, side: int, bound: float) -> tuple[Search, float]:
        """Return the smallest gamma within `TOLERANCE` of this side's limit, and the limit.

        A coordinate whose value has left the rows that count has reached its limit: a trial looks
        at the others, of which few are left at the end.
        """
        ordered, weights, mean, m = self.ordered, self.weights, self.mean, self.m
        push = side * self.push
        edge = torch.where(push > 0, ordered[-1], ordered[0])
        leaves = torch.where(push != 0, (edge - mean) / push, 0.0)  # the gamma at which v leaves
        limits = (far_out(ordered, weights, mean, push, m) - mean).double().square_()
        self.limits[side] = limits
        limit = float(limits.sum())
        enough = (1 - TOLERANCE) * math.sqrt(limit)
        near = (leaves, mean, push, limits, ordered)  # coordinates that may not be at their limit

        @Traced
        def damage(gamma: float) -> float:
            nonlocal near
            inside = (near[0] > gamma).nonzero()[:, 0]
            left, base, slope, ends, rows = (part[..., inside] for part in near)
            moved = with_copies(rows, weights, base + gamma * slope, m) - base
            short = float((ends - moved.double().square_()).sum())
            reached = math.sqrt(max(limit - short, 0.0))
            if reached < enough:  # the answer is larger: what is at its limit stays there
                near = (left, base, slope, ends, rows)
            return reached

        def search(gamma: float, ended: str) -> tuple[Search, float]:
            trace = tuple((side * trial, reached) for trial, reached in damage.trace)
            return Search(side * gamma, "saturating", ended, trace), math.sqrt(limit)

        high = top = min(max(float(leaves.max()), 0.0), bound)
        if not math.isfinite(limit) or damage(high) < enough:
            return search(bound, "bound")
        low = 0.75 * high
        while low > 1e-6 * top and damage(low) >= enough:  # from above, where few are inside
            high = low
            low = 0.75 * low
        while high - low > 1e-4 * high:
            middle = (low + high) / 2
            low, high = (low, middle) if damage(middle) >= enough else (middle, high)
        return search(high, "converged")

    def most(self, side: int) -> float:
        """Return an upper bound over a side whose `limit` is known, of each coordinate's ends."""
        still = with_copies(self.ordered, self.weights, self.mean, self.m) - self.mean
        worst = torch.maximum(still.double().square_(), self.limits[side])
        return math.sqrt(float(worst.sum()))

    def damages(self, gammas: list[float]) -> list[float]:
        """Return the damage at each gamma, in one pass over the sorted rows."""
        totals = torch.zeros(len(gammas), dtype=torch.float64, device=self.mean.device)
        for ordered, mean, push in tiles(self.ordered, self.mean, self.push):
            for i, gamma in enumerate(gammas):
                moved = with_copies(ordered, self.weights, mean + gamma * push, self.m) - mean
                totals[i] += moved.double().square_().sum()
        return [math.sqrt(total) for total in totals.tolist()]
