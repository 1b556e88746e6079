"""What a mechanism does to the clients' data, as data for an accountant."""

from dataclasses import dataclass
from typing import Literal

Sees = Literal["messages", "sum", "hidden-sum", "model"]
Adjacency = Literal["replace-one", "zero-out", "add-remove"]


class DpEvent:
    """Something that was released: a frozen dataclass, equal and hashed by value.

    It says what happened; `fedbench.privacy.accountants.price` says what that costs. A mechanism of
    your own may use the events of `fedbench.privacy.events`, or bring one with an accountant of
    its own (``price.register``).
    """


@dataclass(frozen=True)
class Release:
    """One client's part in a round, as far as its privacy depends on it; all of it is public.

    Args:
        d: Symbols of a message: parameters that the message speaks of.
        size: Training samples of the client.
        batch_size: Samples of a local step.
        steps: Local steps of the client in a round.
        clients: All of them, N.
        per_round: How many a round samples, on average if it does so by coins.
    """

    d: int
    size: int
    batch_size: int
    steps: int
    clients: int
    per_round: int
