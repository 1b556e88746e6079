"""Bound on what many coordinates that share one budget release together."""

import numpy as np

from fedbench.core.errors import require
from fedbench.privacy.conversion import Floats


def concave_hull(x: Floats, y: Floats, at: float) -> float:
    """Return the concave hull of the origin and the points ``(x, y)`` at ``at``, ``x (k,)`` rising.

    If one coordinate of cost ``x`` releases at most ``y(x)``, ``d`` coordinates of mean cost ``at``
    release at most ``d`` times the hull (Jensen), which is tight up to one coordinate (Shapley,
    Folkman). Beyond the last point the largest ``y`` counts: no coordinate can cost more.
    """
    require("at", at, at >= 0, ">= 0")
    x = np.append(0.0, x)
    y = np.append(0.0, y)
    before = x <= at
    after = x > at
    if not after.any():
        return float(y.max())
    share = (at - x[before][:, None]) / (x[after] - x[before][:, None])
    return float(((1 - share) * y[before][:, None] + share * y[after]).max())
