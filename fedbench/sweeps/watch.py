"""Watchers that are told what happens in a sweep."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from fedbench.experiment.cells import Cell
    from fedbench.experiment.measurements import Round
    from fedbench.experiment.record import Record


class Watcher:
    """Watcher of a sweep that ignores what it is told; used in a ``with`` statement."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Restore the terminal, also after an error."""

    def recorded(self, cell: Cell, seed: int) -> None:
        """Note a run whose record was there already, or that another sweep has played."""

    def started(self, cell: Cell, seed: int) -> None:
        """Note that a worker has begun with a run; again, if the run lost its first worker."""

    def round(self, cell: Cell, seed: int, round: Round) -> None:
        """Note that a round is over; its accuracy is None unless it was evaluated."""

    def finished(self, cell: Cell, record: Record) -> None:
        """Note that a run is over and has a record."""

    def failed(self, cell: Cell, seed: int, message: str) -> None:
        """Note that a run has ended without a record."""
