"""Krum, the row with the nearest neighbours."""

from dataclasses import dataclass, field
from typing import Literal

from .multi_krum import MultiKrum


@dataclass(frozen=True, kw_only=True)
class Krum(MultiKrum):
    """Select the row with the least sum of squared distances to its ``n - f - 2`` nearest others.

    `MultiKrum` with ``m = 1``; to score again after the only pick changes nothing, so there is no
    recursive variant. ``public`` counts a row as a neighbour of itself. Ignores the clients' sizes.

    Args:
        f: Malicious rows the server is prepared for; ``n >= 2 f + 3``.
        variant: ``canonical``, the paper's Krum, or ``public``, that of the attacks' public code.

    References:
        Blanchard et al., "Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent",
        NeurIPS 2017, https://arxiv.org/abs/1703.02757, section 4.
    """

    m: int | None = field(default=1, init=False, repr=False)
    variant: Literal["canonical", "public"] = "canonical"
