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

import torch

from fedbench.core.devices import finish
from fedbench.core.settings import Settings
from fedbench.executors.cuda_graphs import Recorder, cuda_graphs
from fedbench.executors.training import Client, Trained
from fedbench.executors.vmap import Part, Stacked, train_all

Ending = TypeVar("Ending")
_thread = threading.local()  # its attribute ``member`` is that of the thread's run


@dataclass(frozen=True, eq=False)
class Together(Stacked):
    """`Stacked` with the clients of all runs of the group; without a group, with its own."""

    def train(self, clients: Sequence[Client]) -> Trained:
        member: GroupedRun[object] | None = getattr(_thread, "member", None)
        return super().train(clients) if member is None else member.ask((self, clients))


def recorder() -> Recorder:
    """Recorder of this run's group, or a new one without a group."""
    member: GroupedRun[object] | None = getattr(_thread, "member", None)
    return Recorder(cuda_graphs()) if member is None else member.group.recorder


def now(device: torch.device | None = None) -> float:
    """Seconds of the clock, for a run of a group without the time it waited for others.

    With a device the clock is read when that has done what it was given: whatever comes next is not
    charged for what was launched before.
    """
    if device is not None:
        finish(device)
    member: GroupedRun[object] | None = getattr(_thread, "member", None)
    return time.perf_counter() - (0.0 if member is None else member.waited)


def settings_restorer() -> Callable[[], list[str]]:
    """Return a function that restores process-wide settings, and says which had changed.

    It restores those of now; for runs of a group those of when its first run asked.
    """
    member: GroupedRun[object] | None = getattr(_thread, "member", None)
    if member is None:
        return Settings().restore
    group = member.group
    if group.settings is None:
        group.settings = Settings()
    before = group.settings
    return lambda: [*member.changes, *before.restore()]


class GroupedRun(Generic[Ending]):
    """A run in its own thread, which moves only while `resume` waits for it."""

    def __init__(self, name: int, work: Callable[[], Ending], group: RunGroup[Ending]) -> None:
        self.name = name
        self.group = group
        self.wanted: Part | None = None  # what it wants trained
        self.answer: Trained | BaseException | None = None
        self.ended: Ending | BaseException | None = None  # its result or error
        self.share = 0.0  # seconds of the last training that are its own
        self.waited = 0.0  # seconds that other runs took
        self.changes: list[str] = []  # settings of the process that the group has restored
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
        _thread.member = self
        self._go.acquire()
        try:
            self.ended = self._work()
        except BaseException as error:
            self.ended = error
        self._stopped.release()


class RunGroup(Generic[Ending]):
    """Runs that are played together; they may come and go."""

    def __init__(self) -> None:
        self.members: list[GroupedRun[Ending]] = []
        self.settings: Settings | None = None

    @cached_property
    def recorder(self) -> Recorder:
        """One recorder for the launches of all runs, which share its memory."""
        return Recorder(cuda_graphs())

    def add(self, name: int, work: Callable[[], Ending]) -> None:
        """Add a run; it begins with the next `turn`."""
        self.members.append(GroupedRun(name, work, self))

    def turn(self) -> list[GroupedRun[Ending]]:
        """Let every run go on to its next training, and train for all; return those that ended.

        A launch that fails is tried run by run: an error is its own run's.
        """
        for member in self.members:
            member.resume()
            member.changes += self._restored()
        ended = [member for member in self.members if member.ended is not None]
        self.members = [member for member in self.members if member.ended is None]
        parts = [member.wanted for member in self.members if member.wanted is not None]
        start = time.perf_counter()
        answers = _trained(parts)
        changes = self._restored()  # by any run: it may have changed the numbers of all
        for member, answer in zip(self.members, answers, strict=True):
            member.answer = answer
            member.changes += changes
        spent = time.perf_counter() - start
        clients = sum(len(part[1]) for part in parts)
        for member, part in zip(self.members, parts, strict=True):
            member.share = spent * len(part[1]) / max(1, clients)
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
