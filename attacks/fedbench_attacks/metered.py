"""Queries of the server's rule that are charged to a budget."""

from collections.abc import Callable

from fedbench.api import Oracle


class Exhausted(Exception):
    """The queries of a round are spent."""


class Metered(Oracle):
    """The server's rule for an installed attack: each query is charged to a budget.

    Closed forms are counted by raising ``queries``, without a call.

    Args:
        oracle: The oracle of the attack with the budget.
        charge: Function of a number of queries, which raises `Exhausted` if they are too many.
    """

    def __init__(self, oracle: Oracle, charge: Callable[[int], None]) -> None:
        self._charge = charge
        self._queries = 0
        super().__init__(oracle.rule, oracle.ask, checks=oracle.checks)

    @property
    def queries(self) -> int:
        """Number of queries so far."""
        return self._queries

    @queries.setter
    def queries(self, total: int) -> None:
        self._charge(total - self._queries)
        self._queries = total
