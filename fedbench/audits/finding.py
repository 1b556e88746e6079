"""Finding of an audit, beside the claim that it tests."""

from dataclasses import dataclass
from typing import Literal

from fedbench.api import Adjacency

Method = Literal["mechanism", "one-run", "one-shot", "one-shot, max"]


@dataclass(frozen=True)
class AuditFinding:
    """One audit's lower bound and claim.

    Args:
        method: How it was done.
        epsilon: The lower bound, or the estimate.
        claimed: What the accountant says, of the same thing at the same delta.
        delta: Of both.
        unit: Whose data the claim covers.
        adjacency: Of the claim.
        confidence: That a lower bound is one; None: it is an estimate, and bounds nothing.
        audited: What was released, in a few words.
        evidence: What was counted.
        error: Standard error of an estimate.
        exact: Epsilon of the very pair of inputs that was compared, where that is known.
        paper: What the mechanism's own paper would claim, where that is something else.
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
        """A lower bound proves something, an estimate does not."""
        return self.confidence is not None

    @property
    def broken(self) -> bool:
        """Whether the claim is refuted, being below a lower bound."""
        return self.is_bound and self.epsilon > self.claimed
