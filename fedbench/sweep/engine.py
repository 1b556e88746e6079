"""What plays runs: worker processes of this machine, or a cluster."""

from __future__ import annotations

import traceback
from abc import ABC, abstractmethod
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Self

from fedbench.core.blame import line, message_of
from fedbench.core.errors import ConfigError, FedbenchError, PluginError, Unavailable
from fedbench.experiment.cells import Run
from fedbench.experiment.measurements import Round
from fedbench.experiment.record import Record
from fedbench.experiment.scenario import Scenario


@dataclass(frozen=True)
class Crash:
    """Why a run ended without a record, with the fields of `fedbench.results.store.Failure`."""

    kind: Literal["user", "machine", "crash", "memory", "lost", "timeout"]
    error: str
    message: str
    traceback: str = ""


@dataclass(frozen=True)
class News:
    """What an engine has to say of a run: it was begun (None), a round, or how it ended."""

    run: Run
    what: Round | Record | Crash | None


@dataclass(frozen=True)
class Job:
    """What a worker is told to do.

    Args:
        scenario: To play.
        device: ``auto``, ``cpu`` or ``cuda``.
        executor: ``auto``, ``loop``, ``stacked``, ``recorded``, ``forked``, or ``together`` with
            the worker's other runs.
        chunk: Clients that are trained at once.
        number: What the worker calls it in its news.
        isolate: Are attack and defense in processes of their own?
    """

    scenario: Scenario
    device: str
    executor: str
    chunk: int
    number: int = 0
    isolate: bool = False


class Engine(ABC):
    """Plays runs, several at once. Use it in a ``with`` statement; its end ends the workers."""

    @abstractmethod
    def __enter__(self) -> Self:
        """Start."""

    @abstractmethod
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the workers, whatever they are doing."""

    @abstractmethod
    def free(self) -> int:
        """How many more runs it takes now."""

    @abstractmethod
    def submit(self, run: Run, chunk: int) -> None:
        """Play this run, so many clients at once; called only if something is `free`."""

    @abstractmethod
    def news(self, wait_seconds: float) -> list[News]:
        """What has happened; waits up to so many seconds for the first.

        Of every submitted run the last news is a `Record` or a `Crash`, exactly one.
        """


LONGEST = 100_000  # characters of a traceback that are kept; more are cut out of its middle


def crash(error: BaseException) -> Crash:
    """What a worker says of an exception: text, since the exception itself may not travel."""
    kind: Literal["user", "machine", "crash", "memory"] = "crash"
    advice = error  # what a plug-in tells the user in a round is the cause of what names it
    if isinstance(error, PluginError) and isinstance(error.__cause__, ConfigError):
        advice = error.__cause__
    if isinstance(advice, Unavailable):
        kind = "machine"
    elif is_out_of_memory(error):
        kind = "memory"
    elif isinstance(advice, FedbenchError) and not isinstance(advice, PluginError):
        kind = "user"
    message = str(error) if isinstance(error, FedbenchError) else message_of(error)
    text = "".join(traceback.format_exception(error))
    if len(text) > LONGEST:
        text = f"{text[: LONGEST // 2]}\n...\n{text[-LONGEST // 2 :]}"
    notes = [line(note) for note in getattr(error, "__notes__", []) if "\n" not in note]
    return Crash(kind, type(error).__name__, "; ".join([message, *notes]), text)


def is_out_of_memory(error: BaseException) -> bool:
    """True for the accelerator's memory and the machine's, in a plug-in or elsewhere.

    Torch has a type of its own only for the former.
    """
    import torch

    if isinstance(error, PluginError) and error.__cause__ is not None:
        return is_out_of_memory(error.__cause__)
    allocator = isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    return allocator or isinstance(error, MemoryError | torch.OutOfMemoryError)
