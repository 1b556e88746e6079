"""Ledger of a run: what its clients have given away so far, and its price."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from fedbench.api import DpEvent
from fedbench.privacy.accountants import price
from fedbench.privacy.events import GaussianGradients
from fedbench.privacy.gaussian import rough_epsilon
from fedbench.privacy.participation import Participation, PrivacyCost


@dataclass(eq=False)
class Ledger:
    """Events, and who took part in them.

    Args:
        local: Per event, how often each client has caused it by taking part.
        central: Per event of the whole round, in how many rounds it happened.
        rounds: So far, skipped ones too: that a client was in one is part of the sampling.
        honest: The fewest clients of a round that added their noise: the others' protect nobody.
    """

    local: dict[DpEvent, Counter[int]] = field(default_factory=dict)
    central: Counter[DpEvent] = field(default_factory=Counter)
    rounds: int = 0
    honest: int | None = None

    def add(self, events: Sequence[tuple[int, DpEvent]], central: DpEvent | None) -> None:
        """A round: what each client that kept to the mechanism caused, and the round itself."""
        self.rounds += 1
        for i, event in events:
            others = (counts for other, counts in self.local.items() if other != event)
            assert not any(i in counts for counts in others), "one kind of event for a client"
            self.local.setdefault(event, Counter())[i] += 1
        if central is not None:
            self.central[central] += 1
        elif events:
            count = len(events)
            self.honest = count if self.honest is None else min(self.honest, count)

    def price(self, exposure: Participation, delta: float) -> PrivacyCost | None:
        """Price the client that gave away most; None if nothing was.

        Args:
            exposure: Before whose eyes; ``rounds``, ``times`` and ``honest`` are counted here.
            delta: Of (epsilon, delta).

        Raises:
            NoTheorem: nobody has proved what that costs.
        """
        spent = [(event, max(counts.values())) for event, counts in self.local.items()]
        asked = replace(exposure, rounds=self.rounds, honest=self.honest or 1)
        rough = [(_rough(one, delta), *one) for one in [*_worst(spent), *self.central.items()]]
        worst: PrivacyCost | None = None
        for limit, event, times in sorted(rough, key=lambda one: -one[0]):
            if worst is not None and limit <= worst.epsilon:
                break
            found = price(event, replace(asked, times=times), delta)
            worst = found if worst is None or found.epsilon > worst.epsilon else worst
        return worst


Spent = tuple[DpEvent, int]


def _worst(spent: list[Spent]) -> list[Spent]:
    """Drop clients that another one outdoes: of many sizes only a few have to be priced."""
    return [one for one in spent if not any(_outdoes(other, one) for other in spent)]


def _outdoes(other: Spent, one: Spent) -> bool:
    """More steps, each on a larger share of its samples, and not the same."""
    (a, often), (b, times) = other, one
    if not (isinstance(a, GaussianGradients) and isinstance(b, GaussianGradients) and a.z == b.z):
        return False
    more, less = (a.rate, a.steps * often), (b.rate, b.steps * times)
    return more[0] >= less[0] and more[1] >= less[1] and more != less


def _rough(one: Spent, delta: float) -> float:
    """No less than its price, in no time: who is below another's price need not be priced."""
    event, times = one
    if isinstance(event, GaussianGradients):
        return rough_epsilon(event.z, event.rate, event.steps * times, delta)
    return math.inf
