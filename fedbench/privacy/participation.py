"""Participation of a client, the observation of the adversary, and the resulting privacy cost."""

from dataclasses import dataclass
from typing import Literal

from fedbench.api import Adjacency, Sees
from fedbench.core.errors import NoTheorem


@dataclass(frozen=True)
class Participation:
    """How often an event happened, and what the adversary observes of it."""

    rounds: int  # of the run so far
    times: int  # rounds of the client that took part most often
    clients: int  # of the run, N
    per_round: int  # clients sampled in a round, on average under Poisson sampling
    honest: int  # fewest clients of any round so far that complied with the mechanism
    sees: Sees = "messages"
    sampling: Literal["fixed", "poisson"] = "fixed"
    adjacency: Adjacency | None = None  # None: the first of the event that has a theorem
    noncompliant: int = 0  # clients that never comply; the adversary knows when they are drawn
    slow: bool = True  # use also the accountants that take a second

    @property
    def rate(self) -> float:
        """Largest probability that an honest client takes part in a round.

        Given ``k`` noncompliant clients in a round of fixed size ``n``, the others are ``n - k`` of
        the ``N - m`` honest clients: the rate is at most ``n / (N - m)``.
        """
        if self.sampling == "poisson":
            return self.per_round / self.clients
        return min(1.0, self.per_round / max(1, self.clients - self.noncompliant))

    @property
    def surely(self) -> int:
        """Fewest honest clients in any round that might have been drawn."""
        return max(1, min(self.honest, self.per_round - self.noncompliant))

    @property
    def visible(self) -> str:
        """Sampler in words where the adversary sees who takes part."""
        return f"visible, {self.times} of {self.rounds} rounds"

    def among(self, event: str, reasons: dict[Adjacency, str | None]) -> Adjacency:
        """Return the adjacency that was asked for, by default the first with a theorem.

        ``reasons`` says for each why there is no theorem, in a `NoTheorem`; None where there is.
        """
        proved = [name for name, reason in reasons.items() if reason is None]
        asked = self.adjacency or proved[0]
        if asked not in proved:
            reason = reasons.get(asked, "no theorem is known")
            legal = " or ".join(proved)
            raise NoTheorem(f"--adjacency {asked} of {event}: {reason}; use {legal}")
        return asked


@dataclass(frozen=True)
class PrivacyCost:
    """Epsilon of the run so far, the least of all ``bounds``."""

    epsilon: float
    winner: str  # name of the least bound
    bounds: dict[str, float]
    adjacency: Adjacency
    sampler: str  # the participation that the bounds assume, in words
    paper: float | None = None  # epsilon that the mechanism's own paper would claim, if it differs


def least(
    bounds: dict[str, float], adjacency: Adjacency, sampler: str, paper: float | None = None
) -> PrivacyCost:
    """Return the cost whose epsilon is the least of these bounds."""
    winner = min(bounds, key=lambda name: bounds[name])
    return PrivacyCost(bounds[winner], winner, bounds, adjacency, sampler, paper)
