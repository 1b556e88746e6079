"""Pareto fronts of systems that are compared by several numbers."""

from collections.abc import Callable, Sequence


def pareto(
    points: Sequence[Sequence[float]], comparable: Callable[[int, int], bool] = lambda i, j: True
) -> list[int]:
    """Return the indices, in ascending order, of the points that no other point dominates.

    A point dominates another one if it is at least as large in every coordinate and larger in one.
    Equal points do not dominate each other. Pass costs with their sign changed.

    Args:
        points: Coordinates of each point; more is better.
        comparable: Tells whether point ``i`` may dominate point ``j`` at all.

    >>> pareto([(-2, 0.9), (-1, 0.5), (-3, 0.9), (-1, 0.4), (-2, 0.9)])
    [0, 1, 4]
    """

    def dominates(i: int, j: int) -> bool:
        pairs = list(zip(points[i], points[j], strict=True))
        return all(a >= b for a, b in pairs) and any(a > b for a, b in pairs)

    every = range(len(points))
    return [j for j in every if not any(dominates(i, j) and comparable(i, j) for i in every)]
