"""Watchers that are told what happens in a sweep."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from fedbench.experiment.cells import Cell
    from fedbench.experiment.measurements import Round
    from fedbench.experiment.record import Record


class Watcher(ABC):
    """Listener to the runs of a sweep, used in a ``with`` statement."""

    @abstractmethod
    def __enter__(self) -> Self:
        """Take over the terminal, if it needs one."""

    @abstractmethod
    def __exit__(self, *error: object) -> None:
        """Give the terminal back as it was, whatever happened."""

    @abstractmethod
    def found(self, cell: Cell, seed: int) -> None:
        """The record of this run was there already, or another sweep has made it."""

    @abstractmethod
    def started(self, cell: Cell, seed: int) -> None:
        """A worker has begun this run; again, if it lost the first one."""

    @abstractmethod
    def round(self, cell: Cell, seed: int, round: Round) -> None:
        """A round is over; its accuracy is None unless it was evaluated."""

    @abstractmethod
    def finished(self, cell: Cell, record: Record) -> None:
        """A run is over and has a record."""

    @abstractmethod
    def failed(self, cell: Cell, seed: int, message: str) -> None:
        """A run has ended without a record."""
