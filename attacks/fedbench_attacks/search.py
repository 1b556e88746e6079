"""Searches for the strength of an attack; each returns its best trial and where it ended."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import torch
from torch import Tensor

from fedbench.core.order_statistics import sorted_rows
from fedbench.core.tiling import tiles

Trace = tuple[tuple[float, float], ...]
GAP = 1e-3  # largest relative distance of a search's result from the supremum
SMALLEST = 2.0**-40  # smallest gamma of a search, in units of `Scale.near`
FLAT = 1e-3  # difference of damages on a grid that does not count, relative to the most
PEAKS = 3  # of a grid that are climbed, at most
TOLERANCE = 1e-6  # relative distance to the limit of damage that counts as reached


@dataclass(frozen=True)
class Search:
    """Result of a search for gamma."""

    gamma: float  # negative on the other side of the mean
    kind: str
    ended: str  # converged, bound if the largest gamma was the best, never if none worked
    # Every trial: gamma, and the damage there, or 1 if it was accepted.
    trace: Trace = field(default=(), repr=False, compare=False)
    # Relative distance to the next trial above gamma, which is too large; 0 without one.
    gap: float = field(default=0.0, repr=False, compare=False)

    @property
    def most(self) -> float:
        """Damage at gamma; -1 if it was not tried."""
        return dict(self.trace).get(self.gamma, -1.0)

    def on(self, side: int) -> "Search":
        """Return the search with its gammas multiplied by ``side``."""
        trace = tuple((side * gamma, sought) for gamma, sought in self.trace)
        return replace(self, gamma=side * self.gamma, trace=trace)

    @property
    def notes(self) -> dict[str, float | str]:
        """Fields of the record that every search fills, but for the strength itself."""
        return {"search": self.kind, "ended": self.ended} | ({"gap": self.gap} if self.gap else {})


@dataclass(frozen=True)
class Scale:
    """Gammas that matter for the rows at hand, so that no search has a unit of its own."""

    near: float  # a push as long as the rows are from their middle
    far: float  # a colluder is farther from all rows than these are from each other
    bound: float  # the largest

    def about(self, per_doubling: int) -> list[float]:
        """Return gammas from a quarter to four times `near`, so many in each doubling.

        >>> Scale(1.0, 2.0, 3.0).about(1)
        [0.25, 0.5, 1.0, 2.0]
        """
        steps = range(-2 * per_doubling, 2 * per_doubling + 1)
        every = (self.near * 2.0 ** (step / per_doubling) for step in steps)
        return [gamma for gamma in every if gamma <= self.bound]


class Traced:
    """A function of gamma that records its arguments and values in ``trace``."""

    def __init__(self, sought: Callable[[float], float]) -> None:
        self.sought = sought
        self.trace: Trace = ()

    def __call__(self, gamma: float) -> float:
        value = float(self.sought(gamma))
        self.trace += ((gamma, value),)
        return value


def selecting(accepted: Callable[[float], bool], scale: Scale) -> Search:
    """Return the largest accepted gamma, from below, within a relative `GAP` of the supremum.

    Trials go down from the bound along `line` to the first that is accepted; between that and the
    trial before it the supremum is bisected. The accepted gammas need not be an interval, but an
    island of them that is narrower than a step (9 %) can be missed.

    >>> search = selecting(lambda gamma: gamma <= 2.75, Scale(1.0, 8.0, 1e5))
    >>> 2.75 / 1.001 <= search.gamma <= 2.75, search.ended, 0 < search.gap <= 1e-3
    (True, 'converged', True)
    >>> selecting(lambda gamma: True, Scale(1.0, 8.0, 8.0))
    Search(gamma=8.0, kind='selecting', ended='bound')
    """
    trial = Traced(accepted)
    if trial(scale.bound):
        return Search(scale.bound, "selecting", "bound", trial.trace)
    steps = reversed(list(pairwise([0.0, *line(scale)])))
    step = next((step for step in steps if trial(step[0])), None)
    if step is None:
        return Search(0.0, "selecting", "never", trial.trace)
    low, high = step
    while high - low > GAP * low and high > SMALLEST * scale.near:
        middle = (low + high) / 2
        low, high = (middle, high) if trial(middle) else (low, middle)
    gap = (high - low) / low if low else 0.0
    return Search(low, "selecting", "converged", trial.trace, gap)


def line(scale: Scale) -> list[float]:
    """Return gammas to the bound: eighths of a doubling from ``near / 64`` to ``far``, doublings.

    >>> [round(gamma, 2) for gamma in line(Scale(64.0, 2.0, 9.0))]
    [1.0, 1.09, 1.19, 1.3, 1.41, 1.54, 1.68, 1.83, 2.0, 4.0, 8.0, 9.0]
    """
    low = scale.near / 64
    far = min(max(scale.far, low), scale.bound)
    return [*powers(low, far, 2**0.125)[:-1], *powers(far, scale.bound)]


def most_damaging(
    chosen: Callable[[float], Tensor], damage: Callable[[float, Tensor], float], scale: Scale
) -> Search:
    """Return the gamma of most damage against a rule that selects rows, within a relative `GAP`.

    While the selected rows stay the same damage is convex in gamma, so it is largest where the
    selection changes. Between two trials of `line` that select differently the search bisects
    wherever one selection at the other's gamma would do more than the best trial. Rows that are
    ``chosen`` are ``(n,)`` bool; a ``damage`` below 0 does not count.
    """
    selected: dict[float, Tensor] = {}
    damages: dict[float, float] = {}

    def ask(gamma: float) -> None:
        selected[gamma] = chosen(gamma)
        damages[gamma] = damage(gamma, selected[gamma])

    def hope(low: float, high: float) -> float:
        return max(damage(high, selected[low]), damage(low, selected[high]))

    grid = [0.0, *line(scale)]
    for gamma in grid:
        ask(gamma)
    pairs = sorted(pairwise(grid), key=lambda ends: hope(*ends))
    while pairs:
        low, high = pairs.pop()
        narrow = high - low <= GAP * low or high <= SMALLEST * scale.near
        if narrow or torch.equal(selected[low], selected[high]):
            continue
        if hope(low, high) > max(damages.values()):
            middle = (low + high) / 2
            ask(middle)
            pairs += [(low, middle), (middle, high)]
    return best_of(damages, "pieces", 1e-9, scale.bound, 0.0)


def worst(searches: Sequence[Search], margin: float = 0.0) -> Search:
    """Return the first search, or a later one with more damage by ``margin``, relatively.

    Its trace holds the trials of all.

    >>> up, down = (Search(gamma, "grid", "converged", ((gamma, 5 + gamma),)) for gamma in (-1, 1))
    >>> worst([up, down]).gamma, worst([up, down], 0.4).gamma, worst([up, down], 0.6).gamma
    (1, 1, -1)
    """
    best = searches[0]
    for search in searches[1:]:
        if search.most > (1 + margin) * best.most:
            best = search
    return replace(best, trace=tuple(trial for search in searches for trial in search.trace))


def best_of(
    damages: dict[float, float], kind: str, flat: float, bound: float, none: float
) -> Search:
    """Return the gamma nearest to 0 of those within a relative ``flat`` of the most damage.

    Damage that is not a number, of a model that has diverged, counts as none. Without any damage
    that is not negative the answer is ``none``.

    >>> best_of({1.0: 2.0, -2.0: 3.0, 4.0: 3.0}, "grid", 1e-3, 4.0, 0.0)
    Search(gamma=-2.0, kind='grid', ended='converged')
    >>> best_of({1.0: math.nan, 2.0: 1.0}, "grid", 1e-3, 4.0, 0.0).gamma
    2.0
    """
    trace = tuple(damages.items())
    damages = {gamma: -1.0 if math.isnan(damages[gamma]) else damages[gamma] for gamma in damages}
    most = max(damages.values())
    best = min((gamma for gamma in damages if damages[gamma] >= most - flat * abs(most)), key=abs)
    if damages[best] < 0:
        return Search(none, kind, "never", trace)
    return Search(best, kind, "bound" if abs(best) == bound else "converged", trace)


def best_of_grid(
    damage: Callable[[float], float],
    scale: Scale,
    *,
    sides: tuple[int, ...] = (1,),
    per_doubling: int = 6,
    close: float = 0.01,
) -> Search:
    """Return the gamma of most damage on a grid about `Scale.near`, and around its highest peaks.

    Coarse trials from ``near / 256`` to the bound say which ``sides`` (1: positive gammas, -1:
    negative) are within a tenth of the best: on these, doublings from ``near / 4`` to ``4 near``
    get ``per_doubling`` trials each. A peak's search ends where the trials on both sides are
    relatively ``close``. Damage saturates: of gammas within `FLAT` of the best the least counts.
    """
    damages: dict[float, float] = {}

    def ask(gamma: float) -> float:
        if gamma not in damages:
            value = damage(gamma)
            damages[gamma] = value if math.isfinite(value) else -1.0
        return damages[gamma]

    ask(0.0)
    coarse = _coarse(scale, min(per_doubling, 2))
    most = {side: max(ask(side * gamma) for gamma in coarse) for side in sides}
    for side in sides:
        if per_doubling > 2 and most[side] >= 0.9 * max(most.values()):
            for gamma in scale.about(per_doubling):
                ask(side * gamma)
    for at, inner, outer in _peaks(damages)[:PEAKS]:
        # else a line from 0 through the peak stays below the most damage
        if abs(outer) * damages[at] >= abs(at) * max(damages.values()):
            _climb(ask, at, inner, outer, close)
    return best_of(damages, "grid", FLAT, scale.bound, scale.bound)


def _coarse(scale: Scale, per_doubling: int) -> list[float]:
    near = scale.near
    far = max(16 * near, 4 * scale.far)
    below = [near / 256, near / 64, near / 16, near / 8]
    inside = [*below, *scale.about(per_doubling), *powers(8 * near, far)[:-1]]
    beyond = powers(far, scale.bound, 16.0)
    return [*(gamma for gamma in inside if gamma < beyond[0]), *beyond]


def _peaks(damages: dict[float, float]) -> list[tuple[float, float, float]]:
    """Return gammas above their neighbours, highest first, each with its inner and outer one."""
    order = sorted(damages)
    peaks = []
    for left, at, right in zip([order[0], *order], order, [*order[1:], order[-1]], strict=False):
        low, high = sorted((damages[left], damages[right]))
        if damages[at] >= high and damages[at] - low > FLAT * damages[at]:
            inner, outer = sorted((left, right), key=abs)
            peaks.append((at, inner, outer))
    return sorted(peaks, key=lambda peak: (-damages[peak[0]], abs(peak[0])))


def _climb(
    ask: Callable[[float], float], at: float, inner: float, outer: float, close: float
) -> None:
    """Try between a peak and its neighbours until these are ``close``, at most eight times."""
    for _ in range(8):
        if abs(outer - inner) <= close * abs(at):
            return
        farther = _between(at, outer)
        if ask(farther) > ask(at):
            inner, at = at, farther
            continue
        nearer = _between(inner, at)
        if ask(nearer) > ask(at):
            outer, at = at, nearer
        else:
            inner, outer = nearer, farther


def _between(a: float, b: float) -> float:
    return math.copysign(math.sqrt(a * b), a) if a * b > 0 else (a + b) / 2


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
    otherwise some gammas about the answer are tried, and if one does more, a grid. ``weights (n,)``
    are the rule's `Defense.order_weights`, ``mean (d,)`` is that of ``benign (n - m, d)``.
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
        ordered = self.ordered
        weights = self.weights
        mean = self.mean
        m = self.m
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


def published(
    damage: Callable[[float], float],
    start: float,
    accepted: Callable[[float], bool] | None = None,
) -> Search:
    """Return the result of the attack's public code, faults included (A5).

    A gamma is good when ``accepted`` says so, or when its damage exceeds the previous trial's.

    >>> published(lambda gamma: 0.0, 3.0, lambda gamma: gamma <= 2.75).gamma
    2.7499923706054688
    >>> published(lambda gamma: min(gamma, 4.0), 10.0).gamma  # already flat: returns its start
    10.0
    """
    gamma = step = start
    best = 0.0
    previous = 0.0 if accepted else -1.0
    trial = Traced(accepted or damage)
    while abs(best - gamma) > 1e-5:
        value = trial(gamma)
        step /= 2
        if value > previous:
            best = gamma
            gamma += step
        else:
            gamma -= step
        previous = previous if accepted else value
    return Search(best, "published", "converged", trial.trace)


def powers(low: float, high: float, base: float = 2.0) -> list[float]:
    """Return ``low, low * base, ...`` up to ``high``, which is the last.

    >>> powers(1.0, 10.0), powers(1.0, 0.5)
    ([1.0, 2.0, 4.0, 8.0, 10.0], [0.5])
    """
    grid = []
    while low < high:
        grid.append(low)
        low *= base
    return [*grid, high]
