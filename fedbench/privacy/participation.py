"""How often something happened, before whose eyes, and what that comes to."""

from dataclasses import dataclass
from typing import Literal

from fedbench.api import Adjacency, Sees
from fedbench.core.errors import NoTheorem


@dataclass(frozen=True)
class Participation:
    """How often something happened, and before whose eyes.

    Args:
        rounds: Of the run so far.
        times: In how many of them the client took part that did so most often.
        clients: All of them, N.
        per_round: How many a round samples, on average if by coins.
        honest: The fewest clients of any round so far that kept to the mechanism.
        sees: What the adversary sees: single messages, their sum, that without who took part, or
            the models alone.
        sampling: ``fixed`` or ``poisson``.
        adjacency: What may differ; None: the one for which the event has the most theorems.
        noncompliant: Of all clients, how many never keep to the mechanism; the adversary knows when
            they are drawn.
        slow: Also the accountants that take a second.
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
        """The chance of an honest client to take part in a round, at most.

        Of a fixed number with ``k`` noncompliant ones the others are a set of ``n - k`` honest
        ones, all alike: the rate is at most ``n / (N - m)``.
        """
        if self.sampling == "poisson":
            return self.per_round / self.clients
        return min(1.0, self.per_round / max(1, self.clients - self.noncompliant))

    @property
    def surely(self) -> int:
        """The fewest honest clients of any set that might have been drawn."""
        return max(1, min(self.honest, self.per_round - self.noncompliant))

    def among(self, event: str, reasons: dict[Adjacency, str | None]) -> Adjacency:
        """The adjacency, if there is no reason against it; the first that has none by default.

        Raises:
            NoTheorem: there is one.
        """
        proved = [name for name, reason in reasons.items() if reason is None]
        asked = self.adjacency or proved[0]
        reason = reasons.get(asked, "no theorem is known")
        if reason is not None:
            legal = " or ".join(proved)
            raise NoTheorem(f"--adjacency {asked} of {event}: {reason}; use {legal}")
        return asked

    def visible(self) -> str:
        """Describe who took part, where everybody can see it."""
        return f"visible, {self.times} of {self.rounds} rounds"


@dataclass(frozen=True)
class PrivacyCost:
    """Epsilon of everything so far.

    Args:
        epsilon: The least of the bounds.
        winner: Its name.
        bounds: All of them, by name.
        adjacency: What may differ.
        sampler: Who took part, as the bounds use it.
        paper: What the mechanism's own paper would claim, if that is something else.
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
    """The price that these bounds come to."""
    winner = min(bounds, key=lambda name: bounds[name])
    return PrivacyCost(bounds[winner], winner, bounds, adjacency, sampler, paper)
