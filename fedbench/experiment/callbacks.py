"""Callbacks of runs: what a notebook, a tracker or a tuner does with each round and each record."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from fedbench.core.blame import shown
from fedbench.core.errors import ConfigError, one_line, require
from fedbench.experiment.measurements import Round
from fedbench.experiment.record import Record
from fedbench.experiment.scenario import Scenario


class Callback:
    """Follower of runs, whose methods do nothing until a subclass overrides them.

    The same object may follow many runs, which in a sweep interleave: their scenario, with every
    default written out, tells them apart. What a method raises ends a run that was played here,
    and a sweep, whose finished runs keep their records.
    """

    def started(self, scenario: Scenario) -> None:
        """Note that a run begins; in a sweep again, if the run lost its first worker."""

    def round(self, scenario: Scenario, round: Round) -> None:
        """Note that a round of the run is over; its accuracy is None unless it was evaluated."""

    def finished(self, record: Record) -> None:
        """Note that the run is over, and what came out."""

    def failed(self, scenario: Scenario, reason: str) -> None:
        """Note that a run that was started has ended without a record, and why, in one line."""


Follower = Callback | Callable[[Round], object]


@dataclass(frozen=True)
class OfRounds(Callback):
    """Callback that is a function of each round, and of nothing else."""

    function: Callable[[Round], object]

    def round(self, scenario: Scenario, round: Round) -> None:
        """Call the function with the round."""
        self.function(round)


def callback(follower: Follower) -> Callback:
    """Return a follower as a `Callback`; `ConfigError` if it is neither one nor a function."""
    if isinstance(follower, Callback):
        return follower
    fits = callable(follower) and not isinstance(follower, type)
    require("callbacks", follower, fits, "objects of Callback, or functions of a Round")
    return OfRounds(follower)


class Callbacks(Callback):
    """Several callbacks as one, which are told everything in their order."""

    def __init__(self, followers: Iterable[Follower]) -> None:
        if not isinstance(followers, Iterable):
            raise ConfigError(f"callbacks must be a list, got {shown(followers)}; write [it]")
        self._callbacks = [callback(follower) for follower in followers]

    def started(self, scenario: Scenario) -> None:
        """Tell all of them in turn."""
        for each in self._callbacks:
            each.started(scenario)

    def round(self, scenario: Scenario, round: Round) -> None:
        """Tell all of them in turn."""
        for each in self._callbacks:
            each.round(scenario, round)

    def finished(self, record: Record) -> None:
        """Tell all of them in turn."""
        for each in self._callbacks:
            each.finished(record)

    def failed(self, scenario: Scenario, reason: str) -> None:
        """Tell all of them in turn."""
        for each in self._callbacks:
            each.failed(scenario, reason)


@contextmanager
def followed(callbacks: Callback, scenario: Scenario) -> Iterator[None]:
    """Tell callbacks that a run begins, and that it failed if the block raises."""
    callbacks.started(scenario)
    try:
        yield
    except BaseException as error:
        callbacks.failed(scenario, one_line(f"{type(error).__name__}: {error}"))
        raise


def replay(record: Record, *followers: Follower) -> None:
    """Tell followers of a run that is over what they would have been told while it was played."""
    callbacks = Callbacks(followers)
    callbacks.started(record.scenario)
    for round in record.rounds:
        callbacks.round(record.scenario, round)
    callbacks.finished(record)
