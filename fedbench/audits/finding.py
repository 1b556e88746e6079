"""Finding of an audit, beside the claim that it tests."""

from dataclasses import dataclass
from typing import Literal

from fedbench.api import Adjacency

Method = Literal["mechanism", "one-run", "one-shot", "one-shot, max"]


@dataclass(frozen=True)
class AuditFinding:
    """Measured epsilon of one audit, and the claim.

    Args:
        method: Method of the audit.
        epsilon: The lower bound, or the estimate.
        claimed: Epsilon of the accountant for the same release.
        delta: Delta of both.
        unit: Data that the claim covers.
        adjacency: Adjacency of the claim.
        confidence: Probability that a lower bound is right; None for an estimate.
        audited: Description of the release.
        evidence: Description of the counts.
        error: Standard error of an estimate.
        exact: Epsilon of the pair of inputs that was compared, where that is known.
        paper: Epsilon that the mechanism's own paper would claim, if that differs.
    """

    method: Method
    epsilon: float
    claimed: float
    delta: float
    unit: Literal["client", "example"]
    adjacency: Adjacency
    confidence: float | None
    audited: str
    evidence: str
    error: float | None = None
    exact: float | None = None
    paper: float | None = None

    @property
    def is_bound(self) -> bool:
        """True for a lower bound, false for an estimate."""
        return self.confidence is not None

    @property
    def broken(self) -> bool:
        """True if the claim is refuted: it is below a lower bound."""
        return self.is_bound and self.epsilon > self.claimed
