"""Play runs on this machine: worker processes, one per accelerator or per group of cores."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Self

from fedbench.core.errors import require
from fedbench.executors.factory import require_device
from fedbench.executors.malloc import keep_memory
from fedbench.experiment.cells import Run
from fedbench.experiment.record import Record
from fedbench.sweep.engine import Crash, Engine, Job, News, crash

RUN_TIMEOUT = 6 * 3600.0  # seconds
MOST = 65536  # processes, threads of one, clients of a launch: torch ends badly with 2**40 threads


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
        run_timeout: Seconds after which a run is ended and counts as failed. The longest runs of
            published tables take minutes here; a hook that never returns takes for ever.
        isolate: Play attack and defense in processes of their own (`fedbench.isolation`).
    """

    device: str = "auto"
    executor: str = "auto"
    chunk: int = 32
    workers: int = 0
    threads: int = 1
    together: int = 1
    run_timeout: float = RUN_TIMEOUT
    isolate: bool = False

    def __post_init__(self) -> None:
        require("--workers", self.workers, self.workers >= 0, ">= 0")
        require("--threads", self.threads, self.threads >= 1, ">= 1")
        require("--chunk", self.chunk, self.chunk >= 1, ">= 1")
        require("--together", self.together, self.together >= 1, ">= 1")
        for name in ("workers", "threads", "chunk", "together"):
            value = getattr(self, name)
            require(f"--{name}", value, value <= MOST, f"<= {MOST}")
        require("--run-timeout", self.run_timeout, self.run_timeout > 0, "> 0 seconds")
        free = self.together == 1 or self.executor in ("auto", "stacked")
        require("--executor", self.executor, free, "auto or stacked with --together")

    def require_machine(self) -> None:
        """Raise `Unavailable` if this machine has no such device, before anything is recorded."""
        from fedbench.experiment.prepare import choose_device

        require_device(self.executor, choose_device(self.device).type == "cuda")

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
    """A process, the pipe to it, the runs that it plays, and whether it takes more.

    Args:
        process: The worker.
        pipe: Takes jobs, gives news of them.
        stack: Where it is when it is asked by a signal, as text.
        runs: What it plays, by number: each with its chunk.
        begun: When it began to play them, by number, in seconds of the monotonic clock.
        alone: Does it play one run that must have no other beside it?
    """

    process: BaseProcess
    pipe: Connection
    stack: Connection
    runs: dict[int, tuple[Run, int]] = field(default_factory=dict)
    begun: dict[int, float] = field(default_factory=dict)
    alone: bool = False

    def end(self, number: int) -> None:
        """Forget a run that has ended."""
        del self.runs[number]
        self.begun.pop(number, None)
        self.alone = False

    def overdue(self, seconds: float) -> bool:
        """True if it plays a run for longer than this, and has nothing to say."""
        latest = time.monotonic() - seconds
        return any(begun < latest for begun in self.begun.values()) and not self.pipe.poll()

    def kill(self) -> str:
        """End the process, wherever it is; where that was: a traceback of each of its threads."""
        assert self.process.pid is not None
        os.kill(self.process.pid, signal.SIGUSR1)
        written = b""
        while self.stack.poll(0.5):
            part = os.read(self.stack.fileno(), 1 << 16)
            if not part:
                break
            written += part
        self.process.kill()
        return written.decode(errors="replace")


class Local(Engine):
    """Worker processes. One that is killed takes only its own runs with it.

    If these were several, each is then played alone: only one of them is to blame.

    Args:
        options: How runs are played.
        workers: How many processes.
    """

    def __init__(self, options: Options, workers: int) -> None:
        self.options, self.size = options, workers
        self._workers: dict[int, _Worker] = {}  # by their place: which accelerator they use
        self._begun: list[News] = []
        self._numbers = count()
        self._suspects: set[Run] = set()  # whose worker was lost, nobody knows through which run
        self._waiting: list[tuple[Run, int]] = []

    def __enter__(self) -> Self:
        self.options.require_machine()
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
            worker.stack.close()
        self._workers = {}

    def free(self) -> int:
        """Places without a run; none while a run waits that is to be played alone."""
        if self._waiting:
            return 0
        places = (self.size - len(self._workers)) * self.options.together
        return places + sum(self._room(worker) for worker in self._workers.values())

    def _room(self, worker: _Worker) -> int:
        return 0 if worker.alone else self.options.together - len(worker.runs)

    def submit(self, run: Run, chunk: int) -> None:
        """To a worker that waits, to a new one, or to the one with the fewest runs.

        A run whose worker was lost with others on it gets one for itself, when one is free.
        """
        if run in self._suspects:
            self._waiting.append((run, chunk))
            self._begun.append(News(run, None))
            return
        workers = [worker for worker in self._workers.values() if self._room(worker)]
        least = min(workers, key=lambda worker: len(worker.runs), default=None)
        if least is None or (least.runs and len(self._workers) < self.size):
            least = self._start()
        self._begun.append(News(run, None))
        self._send(least, run, chunk)

    def _send(self, worker: _Worker, run: Run, chunk: int) -> None:
        executor = self.options.executor if self.options.together == 1 else "together"
        number = next(self._numbers)
        job = Job(run.scenario, self.options.device, executor, chunk, number, self.options.isolate)
        try:
            worker.pipe.send(job)
        except OSError:
            if not worker.runs:  # it was killed while it waited, and had nothing to lose
                self._bury(next(place for place, w in self._workers.items() if w is worker))
                worker = self._start()
                worker.pipe.send(job)
        worker.runs[number], worker.alone = (run, chunk), run in self._suspects

    def _play_suspects(self) -> None:
        """Alone, on what is idle; nothing new is taken meanwhile, so something will be."""
        while self._waiting:
            idle = next((w for w in self._workers.values() if not w.runs), None)
            if idle is None and len(self._workers) == self.size:
                return
            self._send(idle or self._start(), *self._waiting.pop(0))

    def news(self, wait_seconds: float) -> list[News]:
        """What the pipes say; the end of a pipe is the end of its worker."""
        self._end_overdue()
        self._play_suspects()
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
                runs, crashed = [run for run, _ in worker.runs.values()], self._bury(place)
                self._suspects |= set(runs) if len(runs) > 1 else set()
                out += [News(run, crashed) for run in runs]
                continue
            if said is None:
                worker.begun[number] = time.monotonic()
                continue
            out.append(News(worker.runs[number][0], said))
            if isinstance(said, Record | Crash):
                worker.end(number)
        return out

    def _end_overdue(self) -> None:
        """Kill workers whose run takes too long; runs beside it are played again, each alone."""
        limit = self.options.run_timeout
        for place in [place for place, w in self._workers.items() if w.overdue(limit)]:
            worker = self._workers[place]
            runs = list(worker.runs.values())
            stack = worker.kill()
            self._bury(place)
            if len(runs) == 1:
                self._begun.append(News(runs[0][0], overtime(limit, stack)))
                continue
            self._suspects |= {run for run, _ in runs}  # nobody knows which one does not return
            self._waiting += runs

    def _start(self) -> _Worker:
        place = next(i for i in range(self.size) if i not in self._workers)
        context = multiprocessing.get_context("spawn")  # a forked child of a threaded torch hangs
        ours, theirs = context.Pipe()
        accelerators = self.options.accelerators()
        accelerator = place % accelerators if accelerators else None
        stack, of_worker = context.Pipe(duplex=False)
        arguments = (theirs, of_worker, self.options.threads, accelerator)
        process = context.Process(target=_serve, args=arguments, daemon=True)
        # A worker that starts must not answer to Ctrl-C; ours waits until it has started.
        resource_tracker.ensure_running()  # or `start` does it, and unblocks the signal
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        theirs.close()  # or the end of the worker would not be the end of the pipe
        of_worker.close()
        self._workers[place] = _Worker(process, ours, stack)
        return self._workers[place]

    def _bury(self, place: int) -> Crash:
        worker = self._workers.pop(place)
        worker.pipe.close()
        worker.stack.close()
        worker.process.join()
        code = worker.process.exitcode or 0
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return Crash("lost", "WorkerLost", f"the worker process ended with {how}")


def overtime(seconds: float, stack: str = "") -> Crash:
    """What is said of a run that was ended because it took too long.

    Args:
        seconds: Its limit.
        stack: Where its process was, if that is known: what `faulthandler` writes.
    """
    _, _, current = stack.partition("Current thread")
    innermost = re.search(r'File "([^"]*)", line \d+ in (\S+)', current)
    where = f" in {innermost[2]} of {os.path.basename(innermost[1])}" if innermost else ""
    return Crash(
        "timeout",
        "RunTimeout",
        f"the run was ended after {seconds:g} s{where}: a hook of a plug-in may never return, or "
        "the run needs a longer --run-timeout",
        stack,
    )


def _serve(pipe: Connection, stack: Connection, threads: int, accelerator: int | None) -> None:
    """In a new worker: play what comes through the pipe until it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process decides
    faulthandler.register(signal.SIGUSR1, stack.fileno())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if accelerator is not None:
        see_only(accelerator)
    keep_memory()
    import torch

    torch.set_num_threads(threads)
    from fedbench.executors.multi_run import Table
    from fedbench.run import play

    table: Table[Record] = Table()
    while True:
        try:
            while not table.seats or pipe.poll():
                job = pipe.recv()
                work = partial(_play, play, job, pipe)
                if job.executor == "together":
                    table.seat(job.number, work)
                else:  # here and not in a thread, whose memory is not kept
                    pipe.send((job.number, _ended(work)))
        except (EOFError, OSError):
            return
        for seat in table.turn():
            ended = seat.ended
            said = crash(ended) if isinstance(ended, BaseException) else ended
            pipe.send((seat.name, said))


def _ended(work: Callable[[], Record]) -> Record | Crash:
    try:
        return work()
    except BaseException as error:
        return crash(error)


def _play(play: Callable[..., Record], job: Job, pipe: Connection) -> Record:
    pipe.send((job.number, None))  # from now on its time counts
    return play(
        job.scenario,
        device=job.device,
        executor=job.executor,
        chunk=job.chunk,
        isolate=job.isolate,
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
