"""Play many runs on this machine: worker processes, each with its share of the cores."""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedbench.allocator import keep_memory
from fedbench.errors import ConfigError, require
from fedbench.record import Record, Round
from fedbench.scenario import Scenario
from fedbench.sweep.grid import Cell
from fedbench.sweep.watch import Watcher

_inbox: Any = None  # in a worker: the queue that carries its rounds to the main process


@dataclass(frozen=True)
class Options:
    """How runs are played; none of it changes a result beyond rounding.

    Args:
        device: ``auto``, ``cpu`` or ``cuda``.
        executor: ``auto``, ``loop`` or ``stacked``.
        chunk: Clients that the stacked executor trains at once.
        workers: Processes; 0 for one per core, or one on an accelerator.
        threads: Of each process. With small batches a second thread gains little, and where
            something else wants the core it costs a multiple (docs/results.md).
    """

    device: str = "auto"
    executor: str = "auto"
    chunk: int = 32
    workers: int = 0
    threads: int = 1

    def __post_init__(self) -> None:
        require("--workers", self.workers, self.workers >= 0, ">= 0")
        require("--threads", self.threads, self.threads >= 1, ">= 1")

    def processes(self, runs: int) -> int:
        """How many workers play so many runs."""
        workers = self.workers or (1 if self._accelerated() else available_cores())
        return max(1, min(workers, runs))

    def _accelerated(self) -> bool:
        if self.device == "cpu":
            return False
        import torch

        return torch.cuda.is_available()


def available_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def play_all(
    cells: Sequence[Cell],
    seeds: Sequence[int],
    options: Options,
    watcher: Watcher,
    out: Path | None = None,
) -> dict[Cell, list[Record]]:
    """Every cell with every seed; each record is written to ``out`` when its run ends.

    Ctrl-C ends the workers and returns what is finished.

    Raises:
        FedbenchError: a run cannot be played as described, or its worker was killed; the other
            runs are stopped.
    """
    runs = [(cell, seed) for cell in cells for seed in seeds]
    workers = options.processes(len(runs))
    context = multiprocessing.get_context("spawn")  # a forked child of a threaded torch hangs
    inbox = context.Queue()
    records: dict[Cell, list[Record]] = {}
    others = set(multiprocessing.active_children())  # not ours to end
    pool = ProcessPoolExecutor(workers, context, _start, (inbox, options.threads))
    try:
        waiting: dict[Future[Record], tuple[Cell, int]] = {}
        for number, (cell, seed) in enumerate(runs):
            scenario = cell.scenario.model_copy(update={"seed": seed})
            waiting[pool.submit(_play, number, scenario, options)] = (cell, seed)
        while waiting:
            _deliver(inbox, runs, watcher)
            for future in [future for future in waiting if future.done()]:
                cell, seed = waiting.pop(future)
                _deliver(inbox, runs, watcher, wait=0.0)
                record = _result(future, cell, seed, watcher)
                records.setdefault(cell, []).append(record)
                if out is not None:
                    record.write(out)
                watcher.finished(cell, record)
    except KeyboardInterrupt:
        pass
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for child in set(multiprocessing.active_children()) - others:
            child.terminate()
    for cell in records:
        records[cell].sort(key=lambda record: record.scenario.seed)
    return records


def _result(future: Future[Record], cell: Cell, seed: int, watcher: Watcher) -> Record:
    try:
        return future.result()
    except BrokenProcessPool as error:
        raise ConfigError(
            "a worker process was killed, perhaps for lack of memory; the records of finished runs "
            "are kept; try a smaller --workers or --chunk"
        ) from error
    except Exception as error:
        watcher.failed(cell, seed, str(error) or type(error).__name__)
        raise


def _deliver(
    inbox: Any, runs: Sequence[tuple[Cell, int]], watcher: Watcher, wait: float = 0.1
) -> None:
    """Hand every waiting message to the watcher; wait a moment for the first one."""
    try:
        while True:
            number, news = inbox.get(timeout=wait) if wait else inbox.get_nowait()
            cell, seed = runs[number]
            if isinstance(news, Round):
                watcher.round(cell, seed, news)
            else:
                watcher.started(cell, seed)
            wait = 0.0
    except queue.Empty:
        return


def _start(inbox: Any, threads: int) -> None:
    """In a new worker."""
    global _inbox
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process decides
    keep_memory()
    import torch

    torch.set_num_threads(threads)
    _inbox = inbox


def _play(number: int, scenario: Scenario, options: Options) -> Record:
    """In a worker: one run."""
    from fedbench.run import play

    def send(news: Round | None) -> None:
        _inbox.put((number, news))

    send(None)
    return play(
        scenario,
        device=options.device,
        executor=options.executor,
        chunk=options.chunk,
        progress=send,
    )
