"""Participation of a client, the observation of the adversary, and the resulting privacy cost."""

from dataclasses import dataclass
from typing import Literal

from fedbench.api import Adjacency, Sees
from fedbench.core.errors import NoTheorem


@dataclass(frozen=True)
class Participation:
    """How often an event happened, and what the adversary observes of it.

    Args:
        rounds: Rounds of the run so far.
        times: Rounds of the client that took part most often.
        clients: All clients of the run, N.
        per_round: Clients sampled in a round, on average under Poisson sampling.
        honest: Fewest clients of any round so far that complied with the mechanism.
        sees: Observation of the adversary: single messages, their sum, the sum without knowing who
            took part, or the models alone.
        sampling: ``fixed`` or ``poisson``.
        adjacency: What may differ between neighbours; None for the event's default.
        noncompliant: Clients of the run that never comply; the adversary knows when they are drawn.
        slow: True to use also the accountants that take a second.
    """

    rounds: int
    times: int
    clients: int
    per_round: int
    honest: int
    sees: Sees = "messages"
    sampling: Literal["fixed", "poisson"] = "fixed"
    adjacency: Adjacency | None = None
    noncompliant: int = 0
    slow: bool = True

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

    def among(self, event: str, reasons: dict[Adjacency, str | None]) -> Adjacency:
        """Return the adjacency that was asked for, by default the first with a theorem.

        Args:
            event: What is priced, for the message.
            reasons: By adjacency, why there is no theorem; None where there is one.

        Raises:
            NoTheorem: there is none for this adjacency.
        """
        proved = [name for name, reason in reasons.items() if reason is None]
        asked = self.adjacency or proved[0]
        reason = reasons.get(asked, "no theorem is known")
        if reason is not None:
            legal = " or ".join(proved)
            raise NoTheorem(f"--adjacency {asked} of {event}: {reason}; use {legal}")
        return asked

    def visible(self) -> str:
        """Describe participation that the adversary can see."""
        return f"visible, {self.times} of {self.rounds} rounds"


@dataclass(frozen=True)
class PrivacyCost:
    """Epsilon of the run so far.

    Args:
        epsilon: The least of the bounds.
        winner: Name of that bound.
        bounds: All bounds by name.
        adjacency: What may differ between neighbours.
        sampler: Description of the participation that the bounds assume.
        paper: Epsilon that the mechanism's own paper would claim, if that differs.
    """

    epsilon: float
    winner: str
    bounds: dict[str, float]
    adjacency: Adjacency
    sampler: str
    paper: float | None = None


def least(
    bounds: dict[str, float], adjacency: Adjacency, sampler: str, paper: float | None = None
) -> PrivacyCost:
    """Return the cost whose epsilon is the least of these bounds."""
    winner = min(bounds, key=lambda name: bounds[name])
    return PrivacyCost(bounds[winner], winner, bounds, adjacency, sampler, paper)
