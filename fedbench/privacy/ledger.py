"""Ledger of a run: the events of its clients so far, and their privacy cost."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from fedbench.api import DpEvent
from fedbench.privacy.accountants import Participation, PrivacyCost, price
from fedbench.privacy.events import GaussianGradients
from fedbench.privacy.sampling import rough_epsilon


@dataclass(eq=False)
class Ledger:
    """Events of a run, and the clients that caused them."""

    # by event: in how many rounds each client caused it
    local: dict[DpEvent, Counter[int]] = field(default_factory=dict)
    central: Counter[DpEvent] = field(default_factory=Counter)  # rounds by event of the whole round
    rounds: int = 0  # skipped ones too, since drawing a client is part of the sampling
    honest: int | None = None  # fewest clients of a round that added noise, which hides others too

    def add(self, events: Sequence[tuple[int, DpEvent]], central: DpEvent | None) -> None:
        """Add a round: the event of each client that complied, and that of the whole round."""
        self.rounds += 1
        for i, event in events:
            others = (counts for other, counts in self.local.items() if other != event)
            assert not any(i in counts for counts in others), "one kind of event for a client"
            self.local.setdefault(event, Counter())[i] += 1
        if central is not None:
            self.central[central] += 1
        elif events:
            self.honest = min(len(events), self.honest or len(events))

    def price(self, participation: Participation, delta: float) -> PrivacyCost | None:
        """Price the client with the largest epsilon; None if there were no events.

        Of ``participation``, ``rounds``, ``times`` and ``honest`` are replaced by the ledger's.
        """
        asked = replace(participation, rounds=self.rounds, honest=self.honest or 1)
        spent = [(event, max(counts.values())) for event, counts in self.local.items()]
        undominated = [s for s in spent if not any(_outdoes(other, s) for other in spent)]
        limits = [(_limit(s, delta), *s) for s in [*undominated, *self.central.items()]]
        worst: PrivacyCost | None = None
        for limit, event, times in sorted(limits, key=lambda limited: -limited[0]):
            if worst is not None and limit <= worst.epsilon:
                break
            cost = price(event, replace(asked, times=times), delta)
            if worst is None or cost.epsilon > worst.epsilon:
                worst = cost
        return worst


Spent = tuple[DpEvent, int]


def _outdoes(other: Spent, spent: Spent) -> bool:
    """True if the other takes no fewer steps at no smaller sampling rate, and is not the same."""
    (a, often), (b, times) = other, spent
    if not (isinstance(a, GaussianGradients) and isinstance(b, GaussianGradients) and a.z == b.z):
        return False
    more, less = (a.rate, a.steps * often), (b.rate, b.steps * times)
    return more[0] >= less[0] and more[1] >= less[1] and more != less


def _limit(spent: Spent, delta: float) -> float:
    """Return a quick upper bound on epsilon: below another client's epsilon it is not priced."""
    event, times = spent
    if isinstance(event, GaussianGradients):
        return rough_epsilon(event.z, event.rate, event.steps * times, delta)
    return math.inf
