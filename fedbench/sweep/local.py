"""Play runs on this machine: worker processes, one per accelerator or per group of cores."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import TYPE_CHECKING, Self

from fedbench.allocator import keep_memory
from fedbench.errors import require
from fedbench.record import Record
from fedbench.sweep.cells import Run
from fedbench.sweep.engine import Crash, Engine, Job, News, crash

if TYPE_CHECKING:
    from fedbench.together import Seat


@dataclass(frozen=True)
class Options:
    """How runs are played; none of it changes a result beyond rounding.

    Args:
        device: ``auto``, ``cpu`` or ``cuda``.
        executor: ``auto``, ``loop``, ``stacked`` or ``forked``.
        chunk: Clients that the stacked executor trains at once.
        workers: Processes; 0 for one per accelerator, or one per ``threads`` cores.
        threads: Of each process. With small batches a second thread gains little, and where
            something else wants the core it costs a multiple (docs/results.md).
        together: Runs that a worker plays at once, whose clients train in the same launches.
    """

    device: str = "auto"
    executor: str = "auto"
    chunk: int = 32
    workers: int = 0
    threads: int = 1
    together: int = 1

    def __post_init__(self) -> None:
        require("--workers", self.workers, self.workers >= 0, ">= 0")
        require("--threads", self.threads, self.threads >= 1, ">= 1")
        require("--chunk", self.chunk, self.chunk >= 1, ">= 1")
        require("--together", self.together, self.together >= 1, ">= 1")
        free = self.together == 1 or self.executor in ("auto", "stacked")
        require("--executor", self.executor, free, "auto or stacked with --together")

    def processes(self, runs: int) -> int:
        """How many workers play so many runs."""
        workers = self.workers or self.accelerators() or available_cores() // self.threads
        return max(1, min(workers, -(-runs // self.together)))

    def accelerators(self) -> int:
        """How many there are to use."""
        if self.device == "cpu":
            return 0
        import torch

        return torch.cuda.device_count() if torch.cuda.is_available() else 0


def available_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@dataclass
class _Worker:
    """A process, the pipe to it, and the runs that it plays, by number."""

    process: BaseProcess
    pipe: Connection
    runs: dict[int, Run] = field(default_factory=dict)


class Local(Engine):
    """Worker processes. One that is killed takes only its own runs with it.

    Args:
        options: How runs are played.
        workers: How many processes.
    """

    def __init__(self, options: Options, workers: int) -> None:
        self.options, self.size = options, workers
        self._workers: dict[int, _Worker] = {}  # by their place: which accelerator they use
        self._begun: list[News] = []
        self._numbers = count()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for worker in self._workers.values():
            worker.process.kill()
        for worker in self._workers.values():
            worker.process.join()
            worker.pipe.close()
        self._workers = {}

    def free(self) -> int:
        """Places without a run."""
        return self.size * self.options.together - sum(len(w.runs) for w in self._workers.values())

    def submit(self, run: Run, chunk: int) -> None:
        """To a worker that waits, to a new one, or to the one with the fewest runs."""
        workers = self._workers.values()
        least = min(workers, key=lambda worker: len(worker.runs), default=None)
        if least is None or (least.runs and len(workers) < self.size):
            least = self._start()
        executor = self.options.executor if self.options.together == 1 else "together"
        number = next(self._numbers)
        job = Job(run.scenario, self.options.device, executor, chunk, number)
        try:
            least.pipe.send(job)
        except OSError:
            if not least.runs:  # it was killed while it waited, and had nothing to lose
                self._bury(next(place for place, w in self._workers.items() if w is least))
                return self.submit(run, chunk)
        least.runs[number] = run
        self._begun.append(News(run, None))
        return None

    def news(self, wait_seconds: float) -> list[News]:
        """What the pipes say; the end of a pipe is the end of its worker."""
        out, self._begun = self._begun, []
        busy = {w.pipe: (i, w) for i, w in self._workers.items() if w.runs}
        if not busy:
            time.sleep(0 if out else wait_seconds)
        for pipe in wait(list(busy), 0 if out else wait_seconds):
            assert isinstance(pipe, Connection)
            place, worker = busy[pipe]
            try:
                number, said = pipe.recv()
            except (EOFError, OSError):
                runs, crashed = list(worker.runs.values()), self._bury(place)
                out += [News(run, crashed) for run in runs]
                continue
            out.append(News(worker.runs[number], said))
            if isinstance(said, Record | Crash):
                del worker.runs[number]
        return out

    def _start(self) -> _Worker:
        place = next(i for i in range(self.size) if i not in self._workers)
        context = multiprocessing.get_context("spawn")  # a forked child of a threaded torch hangs
        ours, theirs = context.Pipe()
        accelerators = self.options.accelerators()
        accelerator = place % accelerators if accelerators else None
        arguments = (theirs, self.options.threads, accelerator)
        process = context.Process(target=_serve, args=arguments, daemon=True)
        # A worker that starts must not answer to Ctrl-C; ours waits until it has started.
        resource_tracker.ensure_running()  # or `start` does it, and unblocks the signal
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        theirs.close()  # or the end of the worker would not be the end of the pipe
        self._workers[place] = _Worker(process, ours)
        return self._workers[place]

    def _bury(self, place: int) -> Crash:
        worker = self._workers.pop(place)
        worker.pipe.close()
        worker.process.join()
        code = worker.process.exitcode or 0
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return Crash("lost", "WorkerLost", f"the worker process ended with {how}")


def _serve(pipe: Connection, threads: int, accelerator: int | None) -> None:
    """In a new worker: play what comes through the pipe until it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process decides
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if accelerator is not None:
        see_only(accelerator)
    keep_memory()
    import torch

    torch.set_num_threads(threads)
    from fedbench.together import Table

    table: Table[Record] = Table()
    while True:
        try:
            while not table.seats or pipe.poll():
                job = pipe.recv()
                table.seat(job.number, partial(_play, job, pipe))
        except (EOFError, OSError):
            return
        for seat in table.turn():
            pipe.send((seat.name, _timed(seat)))


def _timed(seat: Seat[Record]) -> Record | Crash:
    """How a run ended; beside others it took its share of the time."""
    ended = seat.ended
    assert ended is not None
    if isinstance(ended, BaseException):
        return crash(ended)
    timing = ended.timing.model_copy(update={"seconds": seat.seconds})
    return ended.model_copy(update={"timing": timing})


def _play(job: Job, pipe: Connection) -> Record:
    from fedbench.run import play

    return play(
        job.scenario,
        device=job.device,
        executor=job.executor,
        chunk=job.chunk,
        progress=lambda done: pipe.send((job.number, done)),
    )


def _end_with_parent() -> None:
    """A sweep that is killed leaves no worker behind, which would play for nobody."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def see_only(accelerator: int) -> None:
    """Before CUDA starts: this worker's device is the only one there is."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    known = given.split(",") if given else None
    os.environ["CUDA_VISIBLE_DEVICES"] = known[accelerator] if known else str(accelerator)
