"""Several runs in one process, whose clients train in the same launches.

A sweep of small networks cannot fill a machine run by run. Here every run has a thread; they take
turns, one at a time, and each goes on until it needs training or ends. Then the clients of all
waiting runs are trained at once. A run notices nothing but its executor's name.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, TypeVar

from fedbench.core.settings import Settings
from fedbench.executors.cuda_graphs import Recorder, cuda_graphs
from fedbench.executors.training import Client, Trained
from fedbench.executors.vmap import Part, Stacked, train_all

Ending = TypeVar("Ending")
_thread = threading.local()  # its attribute ``seat`` is that of the thread's run


@dataclass(frozen=True, eq=False)
class Together(Stacked):
    """`Stacked` with the clients of all runs at the table; without a table, with its own."""

    def train(self, clients: Sequence[Client]) -> Trained:
        seat: Seat[object] | None = getattr(_thread, "seat", None)
        return super().train(clients) if seat is None else seat.ask((self, clients))


def recorder() -> Recorder:
    """Recorder of this run's table, or a new one without a table."""
    seat: Seat[object] | None = getattr(_thread, "seat", None)
    return Recorder(cuda_graphs()) if seat is None else seat.table.recorder


def now() -> float:
    """Seconds of the clock, for a run at a table without the time it waited for others."""
    seat: Seat[object] | None = getattr(_thread, "seat", None)
    return time.perf_counter() - (0.0 if seat is None else seat.waited)


def settings_restorer() -> Callable[[], list[str]]:
    """Return a function that restores process-wide settings, and says which had changed.

    It restores those of now; for runs at a table those of the time at which its first run asked,
    since another one may have changed them in between.
    """
    seat: Seat[object] | None = getattr(_thread, "seat", None)
    if seat is None:
        return Settings().restore
    table = seat.table
    if table.settings is None:
        table.settings = Settings()
    before = table.settings
    return lambda: [*seat.changes, *before.restore()]


class Seat(Generic[Ending]):
    """A run in its own thread, which moves only while `resume` waits for it.

    ``wanted`` is what it wants trained, ``answer`` the result, which took its ``share`` of seconds;
    ``ended`` is its result or error; ``waited`` counts seconds that other runs took; ``changes``
    are process-wide settings that it changed and the table has restored.
    """

    def __init__(self, name: int, work: Callable[[], Ending], table: Table[Ending]) -> None:
        self.name = name
        self.table = table
        self.wanted: Part | None = None
        self.answer: Trained | BaseException | None = None
        self.ended: Ending | BaseException | None = None
        self.share = self.waited = 0.0
        self.changes: list[str] = []
        self._work = work
        self._go = threading.Semaphore(0)
        self._stopped = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def resume(self) -> None:
        """Let the run go on until it wants something trained or has ended."""
        self._go.release()
        self._stopped.acquire()

    def ask(self, part: Part) -> Trained:
        """Hand clients over to be trained, and wait for the answer; the run calls this."""
        start = time.perf_counter()
        self.wanted = part
        self._stopped.release()
        self._go.acquire()
        self.waited += time.perf_counter() - start - self.share
        answer = self.answer
        self.wanted = self.answer = None
        assert answer is not None
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def _run(self) -> None:
        _thread.seat = self
        self._go.acquire()
        try:
            self.ended = self._work()
        except BaseException as error:
            self.ended = error
        self._stopped.release()


class Table(Generic[Ending]):
    """Runs that are played together; they may come and go."""

    def __init__(self) -> None:
        self.seats: list[Seat[Ending]] = []
        self.settings: Settings | None = None

    @cached_property
    def recorder(self) -> Recorder:
        """One recorder for the launches of all runs, which share its memory."""
        return Recorder(cuda_graphs())

    def seat(self, name: int, work: Callable[[], Ending]) -> None:
        """Add a run; it begins with the next `turn`."""
        self.seats.append(Seat(name, work, self))

    def turn(self) -> list[Seat[Ending]]:
        """Let every run go on to its next training, and train for all; return those that ended.

        A launch that fails is tried run by run: an error is its own run's.
        """
        for seat in self.seats:
            seat.resume()
            seat.changes += self._restored()
        ended = [seat for seat in self.seats if seat.ended is not None]
        self.seats = [seat for seat in self.seats if seat.ended is None]
        parts = [seat.wanted for seat in self.seats if seat.wanted is not None]
        start = time.perf_counter()
        answers = _trained(parts)
        changes = self._restored()  # by any run: it may have changed the numbers of all
        for seat, answer in zip(self.seats, answers, strict=True):
            seat.answer = answer
            seat.changes += changes
        spent = time.perf_counter() - start
        clients = sum(len(part[1]) for part in parts)
        for seat, part in zip(self.seats, parts, strict=True):
            seat.share = spent * len(part[1]) / max(1, clients)
        return ended

    def _restored(self) -> list[str]:
        return [] if self.settings is None else self.settings.restore()


def _trained(parts: Sequence[Part]) -> list[Trained | BaseException]:
    try:
        return list(train_all(parts))
    except Exception as error:
        if len(parts) == 1:
            return [error]
    return [answer for part in parts for answer in _trained([part])]
