"""Probability that a simplified VOTE drops a good edge."""

from dataclasses import dataclass

from fedbench.core.errors import require


@dataclass(frozen=True)
class FailureBound:
    """Upper bounds on the probability that more than half of ``n`` clients vote a good edge out.

    A benign client keeps the edge with probability ``p``, a malicious one with ``1 - p``. The proof
    assumes no collusion, while the attack of Algorithm 3 colludes; and it counts votes on masks:
    that the bound holds for the sum of positions is asserted in the paper, not proved (F4).

    Both bounds come from Cantelli's inequality and need a positive margin,
    ``p + alpha (1 - 2 p) > 1/2``; elsewhere they are 1.

    References:
        "FSL: Federated Supermask Learning", appendix A.2, equations 1 to 4,
        https://arxiv.org/abs/2110.04350.

    >>> bound = FailureBound(n=25, p=0.6, alpha=0.4)
    >>> round(bound.printed, 3), round(bound.cantelli, 3)
    (2.449, 0.96)
    >>> FailureBound(n=25, p=0.6, alpha=0.6).cantelli
    1.0
    """

    n: int  # clients of the round
    p: float  # probability that a benign client keeps the edge
    alpha: float  # share of malicious clients

    def __post_init__(self) -> None:
        require("FailureBound.n", self.n, self.n >= 1, ">= 1")
        require("FailureBound.p", self.p, 0 <= self.p <= 1, "in [0, 1]")
        require("FailureBound.alpha", self.alpha, 0 <= self.alpha <= 1, "in [0, 1]")

    @property
    def margin(self) -> float:
        """``E[Z] - n/2`` of equation 1: by how many votes the edge leads on average."""
        return self.n * (self.p + self.alpha * (1 - 2 * self.p) - 0.5)

    @property
    def valid(self) -> bool:
        """True if the margin is positive, as the proof needs."""
        return self.margin > 0

    @property
    def printed(self) -> float:
        """Equation 4, ``sqrt(Var / margin^2) / 2``, which can exceed 1."""
        variance = self.n * self.p * (1 - self.p)
        return float(variance**0.5 / (2 * self.margin)) if self.valid else 1.0

    @property
    def cantelli(self) -> float:
        """Equation 3, ``1 / (1 + margin^2 / Var)``, tighter than equation 4 and at most 1."""
        variance = self.n * self.p * (1 - self.p)
        return variance / (variance + self.margin**2) if self.valid else 1.0
