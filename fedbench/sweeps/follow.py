"""Callbacks of a sweep, whose runs are played by other processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from fedbench.experiment.callbacks import Callbacks, Follower
from fedbench.experiment.cells import Cell, Run
from fedbench.experiment.measurements import Round
from fedbench.experiment.record import Record
from fedbench.sweeps.watch import Watcher


class Following(Watcher):
    """Watcher that tells callbacks what it is told, in the process that started the sweep.

    A run whose record was there already is not played, so nobody is told of it. An engine that
    sends no rounds while they are played (Ray) sends them with the record. Callbacks cannot see
    models or clients, which stay with the worker, and what one raises ends the sweep.

    Args:
        watcher: The watcher that is told as well, and was entered by the caller.
        callbacks: What follows the runs.
    """

    def __init__(self, watcher: Watcher, callbacks: Iterable[Follower]) -> None:
        self._watcher = watcher
        self._callbacks = Callbacks(callbacks)
        self._told: Counter[Run] = Counter()  # rounds of the runs that were started

    def recorded(self, cell: Cell, seed: int) -> None:
        """Tell the watcher only."""
        self._watcher.recorded(cell, seed)

    def started(self, cell: Cell, seed: int) -> None:
        """Tell that a run begins, perhaps anew."""
        self._watcher.started(cell, seed)
        run = Run(cell, seed)
        self._told[run] = 0
        self._callbacks.started(run.resolved)

    def round(self, cell: Cell, seed: int, round: Round) -> None:
        """Tell that a round is over."""
        self._watcher.round(cell, seed, round)
        run = Run(cell, seed)
        self._told[run] += 1
        self._callbacks.round(run.resolved, round)

    def finished(self, cell: Cell, record: Record) -> None:
        """Tell the rounds that were not told yet, and the record."""
        self._watcher.finished(cell, record)
        run = Run(cell, record.scenario.seed)
        for round in record.rounds[self._told.pop(run, 0) :]:
            self._callbacks.round(record.scenario, round)
        self._callbacks.finished(record)

    def failed(self, cell: Cell, seed: int, message: str) -> None:
        """Tell how a run failed, unless it did so before this sweep."""
        self._watcher.failed(cell, seed, message)
        run = Run(cell, seed)
        if self._told.pop(run, None) is not None:
            self._callbacks.failed(run.resolved, message)
