"""Searches for the strength of an attack. Each keeps the best trial, and says where it ended."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedbench.order import sorted_rows

Trace = tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Search:
    """Result of a search.

    Args:
        gamma: What was found.
        kind: By which search.
        ended: ``converged``, ``bound`` if the largest gamma was the best, ``never`` if none worked.
        trace: Every trial: gamma, and what was sought there: the damage, or 1 if it was accepted.
    """

    gamma: float
    kind: str
    ended: str
    trace: Trace = field(default=(), repr=False, compare=False)


class Traced:
    """A function of gamma that keeps what it was asked and what it answered.

    >>> square = Traced(lambda gamma: gamma**2)
    >>> square(3.0), square.trace
    (9.0, ((3.0, 9.0),))
    """

    def __init__(self, sought: Callable[[float], float]) -> None:
        self.sought = sought
        self.trace: Trace = ()

    def __call__(self, gamma: float) -> float:
        """The answer."""
        value = float(self.sought(gamma))
        self.trace += ((gamma, value),)
        return value


def at_bound(bound: float) -> Search:
    """Damage grows with gamma for ever: take the largest."""
    return Search(bound, "unbounded", "bound")


def selecting(accepted: Callable[[float], bool], bound: float, tolerance: float = 1e-3) -> Search:
    """The supremum of the accepted gammas, from below, within ``tolerance``.

    The accepted gammas need not be an interval, so the search first looks at every doubling of
    ``tolerance`` up to ``bound`` and bisects above the largest that is accepted.

    >>> found = selecting(lambda gamma: gamma <= 2.75, bound=1e5)
    >>> 2.749 <= found.gamma <= 2.75, found.ended
    (True, 'converged')
    >>> selecting(lambda gamma: True, bound=8.0)
    Search(gamma=8.0, kind='selecting', ended='bound')
    """
    asked = Traced(accepted)
    if asked(bound):
        return Search(bound, "selecting", "bound", asked.trace)
    grid = powers(tolerance, bound)
    low = max((gamma for gamma in grid if asked(gamma)), default=0.0)
    if low == 0.0 and not asked(0.0):
        return Search(0.0, "selecting", "never", asked.trace)
    high = min(2 * low if low else grid[0], bound)
    while high - low > tolerance:
        middle = (low + high) / 2
        low, high = (middle, high) if asked(middle) else (low, middle)
    return Search(low, "selecting", "converged", asked.trace)


def with_copies(ordered: Tensor, weights: Tensor, values: Tensor, m: int) -> Tensor:
    """``(d,)``: an L-estimate of the sorted rows ``ordered (n - m, d)`` and ``m`` rows ``values``.

    With ``m`` equal values v among sorted ones b, the order statistic t of all of them is
    ``clamp(v, b[t - m], b[t])``.

    >>> column = torch.tensor([[0.0], [2.0], [5.0]])
    >>> with_copies(column, torch.tensor([0, 0, 1.0, 0, 0]), torch.tensor([3.0]), 2)  # 0 2 3 3 5
    tensor([3.])
    """
    total = torch.zeros_like(values)
    for t, weight in enumerate(weights.tolist()):
        if weight == 0:
            continue
        low = ordered[t - m] if t >= m else None
        high = ordered[t] if t < len(ordered) else None
        total += weight * torch.clamp(values, low, high)
    return total


def far_out(ordered: Tensor, weights: Tensor, mean: Tensor, push: Tensor, m: int) -> Tensor:
    """`with_copies` of ``mean + gamma * push`` for gamma to infinity.

    Far above, every rank counts the row that it counts without colluders; far below, the one ``m``
    places down.

    >>> column, weights = torch.tensor([[0.0], [2.0], [5.0]]), torch.tensor([0, 0, 1.0, 0, 0])
    >>> up, down, none = torch.tensor([[1.0], [-1.0], [0.0]])
    >>> [far_out(column, weights, torch.tensor([3.0]), p, 2).item() for p in (up, down, none)]
    [5.0, 0.0, 3.0]
    """
    b, weights = len(ordered), weights.to(ordered)
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
    tolerance: float = 1e-6,
) -> Search:
    """The smallest gamma whose damage is within ``tolerance`` of its limit, for an L-estimator.

    Those ranks of the benign rows that can count are sorted once, see `with_copies`. A coordinate
    whose value has left the rows that count has reached its limit: a trial looks at the others, of
    which few are left at the end.

    Args:
        weights: ``(n,)`` of the rule, see `Defense.order_weights`.
        benign: ``(n - m, d)``.
        mean: ``(d,)``, what damage is measured from.
        push: ``(d,)``.
        m: Colluders.
        bound: Largest gamma.
        tolerance: Relative to the limit.
    """
    ranks = weights.nonzero()[:, 0].tolist()
    lowest, highest = max(ranks[0] - m, 0), min(ranks[-1], len(benign) - 1)
    ordered = sorted_rows(benign, range(lowest, highest + 1))  # who can be at a rank that counts
    weights = weights[lowest : highest + 1 + m]
    edge = torch.where(push > 0, ordered[-1], ordered[0])
    leaves = torch.where(push != 0, (edge - mean) / push, 0.0)  # the gamma at which v leaves
    limits = (far_out(ordered, weights, mean, push, m) - mean).double().square_()
    limit = float(limits.sum())
    enough = (1 - tolerance) * math.sqrt(limit)
    near = (leaves, mean, push, limits, ordered)  # of coordinates that may not be there yet

    @Traced
    def damage(gamma: float) -> float:
        nonlocal near
        inside = (near[0] > gamma).nonzero()[:, 0]
        left, base, line, ends, rows = (part[..., inside] for part in near)
        moved = with_copies(rows, weights, base + gamma * line, m) - base
        short = float((ends - moved.double().square_()).sum())
        found = math.sqrt(max(limit - short, 0.0))
        if found < enough:  # the answer is larger: who is there by now stays there
            near = (left, base, line, ends, rows)
        return found

    high = top = min(max(float(leaves.max()), 0.0), bound)
    if not math.isfinite(limit) or damage(high) < enough:
        return Search(bound, "saturating", "bound", damage.trace)
    low = 0.75 * high
    while low > 1e-6 * top and damage(low) >= enough:  # from above, where few are inside
        low, high = 0.75 * low, low
    while high - low > 1e-4 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if damage(middle) >= enough else (middle, high)
    return Search(high, "saturating", "converged", damage.trace)


def best_of_grid(
    damage: Callable[[float], float], bound: float, refine: int = 3, flat: float = 1e-3
) -> Search:
    """The gamma of most damage on powers of 4 up to ``bound``, then around it on a finer grid.

    Damage through a discrete alphabet is a step function: nothing better than looking is sound. It
    saturates, so of the gammas within a relative ``flat`` of the best the smallest is returned.
    """

    def finite(gamma: float) -> float:
        value = damage(gamma)
        return value if math.isfinite(value) else -1.0

    trials = {gamma: finite(gamma) for gamma in powers(2.0**-6, bound, 4.0)}
    step = 2.0
    for _ in range(refine):
        best = max(trials, key=lambda gamma: trials[gamma])
        for gamma in (best / step, min(best * step, bound)):
            if gamma not in trials:
                trials[gamma] = finite(gamma)
        step **= 0.5
    most, trace = max(trials.values()), tuple(trials.items())
    if most < 0:
        return Search(bound, "grid", "never", trace)
    best = min(gamma for gamma in trials if trials[gamma] >= (1 - flat) * most)
    return Search(best, "grid", "bound" if best == bound else "converged", trace)


def published(
    damage: Callable[[float], float],
    start: float,
    accepted: Callable[[float], bool] | None = None,
    tolerance: float = 1e-5,
) -> Search:
    """The search of the attack's public code, faults included (A5).

    Accepts when ``accepted`` does, or when the damage exceeds that of the previous trial.

    >>> published(lambda gamma: 0.0, 3.0, lambda gamma: gamma <= 2.75).gamma
    2.7499923706054688
    >>> published(lambda gamma: min(gamma, 4.0), 10.0).gamma  # already flat: returns its start
    10.0
    """
    gamma = step = start
    found, previous = 0.0, -1.0
    sought = Traced(accepted or damage)
    while abs(found - gamma) > tolerance:
        now = sought(gamma)
        good, previous = bool(now) if accepted else now > previous, now
        if good:
            found, gamma = gamma, gamma + step / 2
        else:
            gamma -= step / 2
        step /= 2
    return Search(found, "published", "converged", sought.trace)


def powers(low: float, high: float, base: float = 2.0) -> list[float]:
    """``low, low * base, ...`` up to ``high``, which is the last.

    >>> powers(1.0, 10.0), powers(1.0, 0.5)
    ([1.0, 2.0, 4.0, 8.0, 10.0], [0.5])
    """
    if low >= high:
        return [high]
    grid = [low]
    while grid[-1] * base < high:
        grid.append(grid[-1] * base)
    return [*grid, high]
