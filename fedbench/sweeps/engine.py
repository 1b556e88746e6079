"""Engines that play runs: worker processes of this machine, or a cluster."""

import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from fedbench.core.blame import line, message_of
from fedbench.core.errors import ConfigError, FedbenchError, PluginError, Unavailable
from fedbench.data.datasets import Data
from fedbench.experiment.cells import Run
from fedbench.experiment.checkpoints import Checkpoint
from fedbench.experiment.deployed import DeployedModel
from fedbench.experiment.measurements import Round
from fedbench.experiment.record import Record, file_name
from fedbench.experiment.scenario import Scenario


@dataclass(frozen=True)
class Crash:
    """Reason why a run ended without a record, with fields of `fedbench.results.store.Failure`."""

    kind: Literal["user", "machine", "crash", "memory", "lost", "timeout"]
    error: str
    message: str
    traceback: str = ""


@dataclass(frozen=True)
class News:
    """News of a run from an engine: it was begun (None), a round, or how it ended."""

    run: Run
    what: Round | Record | Crash | None


@dataclass(frozen=True)
class Job:
    """A run as a worker plays it."""

    scenario: Scenario
    device: str  # ``auto``, ``cpu``, ``cuda`` or a backend of torch
    executor: str  # a name of `executors.factory`
    chunk: int  # clients that are trained at once
    isolate: bool = False  # attack and defense run in processes of their own
    canonical: bool = False  # numbers are to be those of every processor
    states: Path | None = None  # folder that keeps the states of a canonical run
    models: Path | None = None  # folder that keeps the deployed model
    checkpoint: Checkpoint | None = None  # file that keeps what the run needs to go on


class Engine(ABC):
    """Plays runs, several at once, within a ``with`` statement, whose end ends the workers."""

    @abstractmethod
    def __enter__(self) -> Self:
        """Start the engine and check that it can play."""

    @abstractmethod
    def __exit__(self, *error: object) -> None:
        """End the workers, whatever they are doing."""

    @abstractmethod
    def free(self) -> int:
        """Return the number of runs that it can take now."""

    @abstractmethod
    def submit(self, run: Run, chunk: int) -> None:
        """Play this run with ``chunk`` clients at once; called only if a place is `free`."""

    @abstractmethod
    def news(self, wait_seconds: float) -> list[News]:
        """Return the news since the last call, after waiting up to ``wait_seconds`` for the first.

        The last news of every submitted run is a `Record` or a `Crash`, exactly one.
        """


MAX_TRACEBACK = 100_000  # a longer one loses its middle


def play_job(
    job: Job, progress: Callable[[Round], None] | None = None, data: Data | None = None
) -> Record:
    """Play a job in this process; ``progress`` is told each round."""
    from fedbench.run import play

    models: list[DeployedModel] = []
    record = play(
        job.scenario,
        device=job.device,
        executor=job.executor,
        chunk=job.chunk,
        isolate=job.isolate,
        canonical=job.canonical,
        states=job.states,
        checkpoint=job.checkpoint,
        callbacks=[] if progress is None else [progress],
        data=data,
        deliver=None if job.models is None else models.append,
    )
    for model in models:
        assert job.models is not None
        model.save(job.models / model_name(record), record)
    return record


def model_name(record: Record) -> str:
    """Return the name of the file of a run's deployed model: its record's, with another ending."""
    return Path(file_name(record.scenario, record.id)).with_suffix(".safetensors").name


def crash(error: BaseException) -> Crash:
    """Describe an exception of a worker as text, since the exception itself may not travel."""
    kind: Literal["user", "machine", "crash", "memory"] = "crash"
    advice = error  # a plug-in's advice to the user is the cause of the `PluginError`
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
    if len(text) > MAX_TRACEBACK:
        half = MAX_TRACEBACK // 2
        text = f"{text[:half]}\n...\n{text[-half:]}"
    notes = [line(note) for note in getattr(error, "__notes__", []) if "\n" not in note]
    return Crash(kind, type(error).__name__, "; ".join([message, *notes]), text)


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether the accelerator's or the machine's memory ran out, in a plug-in or elsewhere."""
    import torch

    if isinstance(error, PluginError) and error.__cause__ is not None:
        return is_out_of_memory(error.__cause__)
    allocator = isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    return allocator or isinstance(error, MemoryError | torch.OutOfMemoryError)
