"""Engine of this machine: worker processes, a few per accelerator or one per group of cores."""

import faulthandler
import importlib
import multiprocessing
import os
import re
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from typing import Self

from fedbench.core.errors import require, show_warning
from fedbench.core.threads import available_cores
from fedbench.executors.cluster import address_of, imported, require_reachable
from fedbench.executors.factory import (
    REMOTE_OPTION,
    remote_way,
    require_device,
    require_one_place,
)
from fedbench.executors.malloc import keep_memory
from fedbench.experiment.cells import Run
from fedbench.experiment.checkpoints import Checkpoint
from fedbench.experiment.record import Record
from fedbench.sweeps.engine import Crash, Engine, Job, News, crash, play_job

RUN_TIMEOUT = 6 * 3600.0  # seconds
WORKERS_PER_ACCELERATOR = 4  # workers of an accelerator, as a rule
_MAIN = threading.Lock()  # of whoever replaces the module __main__
MAX_OPTION = 65536  # processes, threads, clients of a launch: torch crashes with 2**40 threads


@dataclass(frozen=True)
class Options:
    """How runs are played; none of it changes a result beyond rounding.

    With small batches a second thread gains little, and it costs a multiple where something else
    wants the core (docs/results.md).
    """

    device: str = "auto"  # or ``cpu``, ``cuda`` or a backend of torch
    executor: str = "auto"  # a name of `fedbench.executors.factory`
    chunk: int = 32  # clients that are trained at once in lock step
    workers: int = 0  # processes; 0 for a few per accelerator, or one per ``threads`` cores
    threads: int = 1  # of each process
    run_timeout: float = RUN_TIMEOUT  # seconds after which a run is ended and counts as failed
    isolate: bool = False  # attack and defense in processes of their own (`fedbench.isolation`)
    canonical: bool = False  # numbers of every processor (`fedbench.core.canonical`)
    states: Path | None = None  # folder that keeps the states of canonical runs
    models: Path | None = None  # folder that keeps the deployed models
    checkpoint: str | None = None  # how often, as `Checkpoint.of` reads it
    checkpoints: Path | None = None  # folder that keeps them; without one there are none

    def __post_init__(self) -> None:
        for name, low in {"workers": 0, "threads": 1, "chunk": 1}.items():
            number = getattr(self, name)
            require(f"--{name}", number, number >= low, f">= {low}")
            require(f"--{name}", number, number <= MAX_OPTION, f"<= {MAX_OPTION}")
        require("--run-timeout", self.run_timeout, self.run_timeout > 0, "> 0 seconds")
        may_keep = self.states is None or self.canonical
        require("--keep-states", str(self.states), may_keep, "left out without --canonical")
        require_one_place(self.executor, self.isolate)
        Checkpoint.of(self.checkpoint, Path())
        if self.canonical:
            require("--device", self.device, self.device in ("auto", "cpu"), "cpu with --canonical")
            alone = self.executor in ("auto", "loop")
            require("--executor", self.executor, alone, "auto or loop with --canonical")
            require("--threads", self.threads, self.threads == 1, "1 with --canonical")

    def require_machine(self) -> None:
        """Raise `ConfigError` if device or cluster are not there, before anything is recorded."""
        from fedbench.experiment.prepare import choose_device

        require_device(self.executor, choose_device(self.device))
        if remote_way(self.executor) is not None:
            imported(REMOTE_OPTION)
            require_reachable(address_of(), "RAY_ADDRESS")

    def checkpoint_of(self, run: Run) -> Checkpoint | None:
        """Return where and how often a run keeps its checkpoint, or None."""
        if self.checkpoints is None:
            return None
        path = self.checkpoints / run.checkpoint_name
        return Checkpoint.of(self.checkpoint, path)

    def processes(self, runs: int) -> int:
        """Return the number of workers for ``runs``; one where each run takes a whole cluster."""
        if remote_way(self.executor) is not None:
            return max(1, min(self.workers or 1, runs))
        workers = self.workers or self.beside_accelerators() or available_cores() // self.threads
        return max(1, min(workers, runs))

    def beside_accelerators(self) -> int:
        """Workers of all accelerators: one per two cores, up to `WORKERS_PER_ACCELERATOR` on each.

        While one launches work or codes messages, another's work keeps the accelerator busy.
        """
        accelerators = self.accelerators()
        cores = available_cores() // self.threads
        return max(accelerators, min(cores // 2, WORKERS_PER_ACCELERATOR * accelerators))

    def accelerators(self) -> int:
        """Return the number of accelerators that may be used."""
        if self.device == "cpu" or self.canonical:
            return 0
        import torch

        return torch.cuda.device_count() if torch.cuda.is_available() else 0


@dataclass
class _Worker:
    """A worker process, and the run that it plays."""

    process: BaseProcess
    pipe: Connection  # takes jobs, returns news of them
    stack: Connection  # returns the process's stack as text after a signal
    run: Run | None = None
    begun: float | None = None  # when it began, on the monotonic clock

    def overdue(self, seconds: float) -> bool:
        """Return whether it plays a run for longer than this, and has sent nothing new."""
        late = self.begun is not None and self.begun < time.monotonic() - seconds
        return late and not self.pipe.poll()

    def kill(self) -> str:
        """End the process, wherever it is; return a traceback of each of its threads."""
        assert self.process.pid is not None
        written = b""
        if hasattr(signal, "SIGUSR1"):
            os.kill(self.process.pid, signal.SIGUSR1)
            while self.stack.poll(0.5) and (part := os.read(self.stack.fileno(), 1 << 16)):
                written += part
        self.process.kill()
        return written.decode(errors="replace")


class LocalEngine(Engine):
    """Plays runs in worker processes; one that is killed takes only its own run with it."""

    def __init__(self, options: Options, workers: int) -> None:
        self.options = options
        self.size = workers
        self._workers: dict[int, _Worker] = {}  # by their place, which names their accelerator
        self._begun: list[News] = []

    def __enter__(self) -> Self:
        self.options.require_machine()
        return self

    def __exit__(self, *error: object) -> None:
        for worker in self._workers.values():
            worker.process.kill()
        for place in list(self._workers):
            self._bury(place)

    def free(self) -> int:
        """Return the number of workers without a run, and of those that may still be started."""
        return self.size - sum(worker.run is not None for worker in self._workers.values())

    def submit(self, run: Run, chunk: int) -> None:
        """Send a run to an idle worker, or to a new one."""
        self._begun.append(News(run, None))
        idle = [place for place, worker in self._workers.items() if worker.run is None]
        worker = self._workers[idle[0]] if idle else self._start()
        job = Job(
            scenario=run.scenario,
            device=self.options.device,
            executor=self.options.executor,
            chunk=chunk,
            isolate=self.options.isolate,
            canonical=self.options.canonical,
            states=self.options.states,
            models=self.options.models,
            checkpoint=self.options.checkpoint_of(run),
        )
        try:
            worker.pipe.send(job)
        except OSError:  # it was killed while it was idle
            self._bury(next(place for place, w in self._workers.items() if w is worker))
            worker = self._start()
            worker.pipe.send(job)
        worker.run = run

    def news(self, wait_seconds: float) -> list[News]:
        """Read the pipes; the end of a pipe is the end of its worker."""
        self._end_overdue()
        out = self._begun
        self._begun = []
        busy = {w.pipe: (i, w) for i, w in self._workers.items() if w.run is not None}
        if not busy:
            time.sleep(0 if out else wait_seconds)
        for pipe in wait(list(busy), 0 if out else wait_seconds):
            assert isinstance(pipe, Connection)
            place, worker = busy[pipe]
            assert worker.run is not None
            try:
                message = pipe.recv()
            except (EOFError, OSError):
                out.append(News(worker.run, self._bury(place)))
                continue
            if message is None:
                worker.begun = time.monotonic()
                continue
            out.append(News(worker.run, message))
            if isinstance(message, Record | Crash):
                worker.run = None
                worker.begun = None
        return out

    def _end_overdue(self) -> None:
        """Kill workers whose run takes too long."""
        limit = self.options.run_timeout
        for place in [place for place, w in self._workers.items() if w.overdue(limit)]:
            worker = self._workers[place]
            stack = worker.kill()
            self._bury(place)
            assert worker.run is not None
            self._begun.append(News(worker.run, overtime(limit, stack)))

    def _start(self) -> _Worker:
        place = next(i for i in range(self.size) if i not in self._workers)
        context = multiprocessing.get_context("spawn")  # a forked child of a threaded torch hangs
        ours, theirs = context.Pipe()
        accelerators = self.options.accelerators()
        accelerator = place % accelerators if accelerators else None
        stack, of_worker = context.Pipe(duplex=False)
        sharing = -(-self.size // max(accelerators, 1))
        arguments = (theirs, of_worker, self.options.threads, accelerator, sharing)
        process = context.Process(target=_serve, args=arguments, daemon=True)
        # A worker must ignore Ctrl-C while it starts, so this process blocks it until then.
        with interrupts_blocked(), main_left_out():
            process.start()
        theirs.close()  # so that the end of the worker is the end of the pipe
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


@contextmanager
def main_left_out() -> Iterator[None]:
    """Start processes in the block that do not import the user's script, as Python's would.

    They play what is installed, so they need nothing of it. Imported, it would need a guard against
    calling the sweep again, and a script on standard input is no file. Sweeps in several threads
    take turns, or the last one would put back what another one had put there.
    """
    with _MAIN:
        script = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = script


@contextmanager
def interrupts_blocked() -> Iterator[None]:
    """Hold Ctrl-C back inside the block, in it and in the processes that it starts."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # otherwise `start` does it, and unblocks the signal
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def overtime(seconds: float, stack: str = "") -> Crash:
    """Describe a run that was ended after its limit, and the stack that `faulthandler` wrote."""
    _, _, current = stack.partition("Current thread")
    innermost = re.search(r'File "([^"]*)", line \d+ in (\S+)', current)
    where = f" in {innermost[2]} of {os.path.basename(innermost[1])}" if innermost else ""
    why = "a hook of a plug-in may never return, or the run needs a longer --run-timeout"
    message = f"the run was ended after {seconds:g} s{where}: {why}"
    return Crash("timeout", "RunTimeout", message, stack)


def _serve(
    pipe: Connection, stack: Connection, threads: int, accelerator: int | None, sharing: int
) -> None:
    """Play what comes through the pipe until it ends, as the main function of a worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process handles it
    warnings.showwarning = show_warning
    if hasattr(signal, "SIGUSR1"):
        faulthandler.register(signal.SIGUSR1, stack.fileno())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if accelerator is not None:
        see_only(accelerator)
    keep_memory()
    import torch

    from fedbench.core.devices import share_with

    torch.set_num_threads(threads)
    if accelerator is not None and sharing > 1:
        share_with(sharing)
    importlib.import_module("fedbench.run")  # before the time of the first run counts
    while True:
        try:
            job = pipe.recv()
            pipe.send(None)  # its time counts from now on
            try:
                ended: Record | Crash = play_job(job, progress=pipe.send)
            except BaseException as error:
                ended = crash(error)
            pipe.send(ended)
        except (EOFError, OSError):
            return


def _end_with_parent() -> None:
    """End this worker with its parent, so that a killed sweep leaves no workers behind."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def see_only(accelerator: int) -> None:
    """Hide the other accelerators from this process; call it before CUDA starts."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    visible = given.split(",") if given else None
    os.environ["CUDA_VISIBLE_DEVICES"] = visible[accelerator] if visible else str(accelerator)
