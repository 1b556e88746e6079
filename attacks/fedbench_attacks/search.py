"""Searches for the strength of an attack; each returns its best trial and where it ended."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor

Trace = tuple[tuple[float, float], ...]
GAP = 1e-3  # largest relative distance of a search's result from the supremum
SMALLEST = 2.0**-40  # smallest gamma of a search, in units of `Scale.near`
FLAT = 1e-3  # difference of damages on a grid that does not count, relative to the most
PEAKS = 3  # of a grid that are climbed, at most


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
    selection changes. Trials are those of `line`; between two that select differently the search
    bisects wherever one selection at the other's gamma would do more than the best trial.
    ``chosen(gamma)`` is the rows ``(n,)`` bool that the rule selects, ``damage(gamma, rows)`` that
    of selecting them, below 0 if it does not count.
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


def best_of(
    damages: dict[float, float], kind: str, flat: float, bound: float, none: float
) -> Search:
    """Return the gamma nearest to 0 of those within a relative ``flat`` of the most damage.

    Without any damage that is not negative the answer is ``none``.

    >>> best_of({1.0: 2.0, -2.0: 3.0, 4.0: 3.0}, "grid", 1e-3, 4.0, 0.0)
    Search(gamma=-2.0, kind='grid', ended='converged')
    """
    trace = tuple(damages.items())
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

    Coarse trials from ``near / 256`` to the bound, half doublings from ``near / 4`` to ``4 near``,
    say which ``sides`` (1: positive gammas, -1: negative) are worth more: on those within a tenth
    of the best these four doublings get ``per_doubling`` trials each. A peak's search ends where
    the trials on both sides are relatively ``close``. Damage saturates, so of the gammas within
    `FLAT` of the best the one nearest to 0 is returned, and 0 itself if no other does more.
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
