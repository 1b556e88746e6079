"""Events of a privacy mechanism, as data for an accountant."""

from dataclasses import dataclass


class DpEvent:
    """Event of releasing something: a frozen dataclass, equal and hashed by value.

    A mechanism of your own may use the events of `fedbench.privacy.events`, or bring one with an
    accountant of its own (``fedbench.privacy.accountants.price.register``).
    """


@dataclass(frozen=True)
class Release:
    """One client's part in a round, as far as its privacy depends on it, all public.

    Args:
        d: Number of symbols of a message, one for each parameter.
        size: Number of training samples of the client.
        batch_size: Number of samples of a local step.
        steps: Number of local steps of the client in a round.
        clients: Number of clients, N.
        per_round: Number of clients that a round samples, on average if it does so by coins.
    """

    d: int
    size: int
    batch_size: int
    steps: int
    clients: int
    per_round: int
