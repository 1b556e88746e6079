"""Many coordinates share one budget: the most that they give away together."""

from fedbench.core.errors import require
from fedbench.privacy.conversion import Floats


def concave_hull(x: Floats, y: Floats, at: float) -> float:
    """The concave hull of the points ``(x, y)`` at ``at``; ``x (k,)`` rises from 0 to ``at`` or on.

    If one coordinate of cost ``x`` gives at most ``y(x)``, ``d`` coordinates whose costs have a
    mean of ``at`` give at most ``d`` times the hull there (Jensen), and can give that but for one
    coordinate (Shapley, Folkman). Where ``at`` is beyond the last point, the last point counts:
    no coordinate can spend more.
    """
    require("at", at, at >= x[0], ">= the first x")
    before = x <= at
    after = x > at
    if not after.any():
        return float(y.max())
    share = (at - x[before][:, None]) / (x[after] - x[before][:, None])
    return float(((1 - share) * y[before][:, None] + share * y[after]).max())
