"""Finding of an audit, beside the claim that it tests."""

from dataclasses import dataclass
from typing import Literal

from fedbench.api import Adjacency

Method = Literal["mechanism", "one-run", "one-shot", "one-shot, max"]


@dataclass(frozen=True)
class AuditFinding:
    """Measured epsilon of one audit, and the claim."""

    method: Method
    epsilon: float  # the lower bound, or the estimate
    claimed: float  # epsilon of the accountant for the same release
    delta: float  # of both
    unit: Literal["client", "example"]  # whose data the claim covers
    adjacency: Adjacency  # of the claim
    confidence: float | None  # probability that a lower bound is right; None for an estimate
    audited: str  # description of the release
    evidence: str  # description of the counts
    error: float | None = None  # standard error of an estimate
    exact: float | None = None  # epsilon of the pair of inputs that was compared, where known
    paper: float | None = None  # epsilon that the mechanism's own paper would claim, if it differs

    @property
    def is_bound(self) -> bool:
        """True for a lower bound, false for an estimate."""
        return self.confidence is not None

    @property
    def broken(self) -> bool:
        """True if the claim is refuted: it is below a lower bound."""
        return self.is_bound and self.epsilon > self.claimed
