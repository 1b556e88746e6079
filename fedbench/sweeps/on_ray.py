"""Engine of a Ray cluster, for sweeps that need more than one machine."""

import contextlib
import dataclasses
import socket
import time
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

from fedbench.core.errors import ConfigError, FedbenchError, require
from fedbench.core.files import write_atomically
from fedbench.executors.cluster import (
    TASK_RETRIES,
    address_of,
    arrays_of,
    connect,
    data_of,
    first_line,
    imported,
    other_code,
    places_of,
)
from fedbench.executors.factory import remote_way
from fedbench.executors.malloc import keep_memory
from fedbench.experiment.cells import Run
from fedbench.experiment.checkpoints import Checkpoint
from fedbench.experiment.compatibility import resolve
from fedbench.experiment.record import Record, parse
from fedbench.experiment.scenario import code_version
from fedbench.sweeps.engine import Crash, Engine, Job, News, crash, play_job
from fedbench.sweeps.local import Options, overtime


class OnRay(Engine):
    """One Ray task a run; Ray decides where, and repeats what was lost with a node.

    A run counts as begun when Ray has it: unless nodes leave, at most one waits for a place.
    A node's workers share one copy of a data set in its object store; a node needs no data. Ray
    does not say when it starts a task: the time of a run counts from when a place is free for it,
    in the order of submission, and includes the start of a worker. Checkpoints are written by nodes
    that see the folder for them, which a file in it tells.
    """

    def __init__(self, options: Options, address: str | None = None, gpus: float = 0.0) -> None:
        """Take the cluster at ``auto``, ``HOST:PORT`` or ``ray://HOST:PORT``; ``gpus`` for a run.

        Without an address it is the one that ``RAY_ADDRESS`` names, or a new one on this machine.
        """
        share = gpus == 0 or 0.0001 <= gpus <= 1  # Ray counts in ten thousandths
        require("--gpus-per-run", gpus, share, "0, or from 0.0001 to 1: runs that share a GPU")
        if options.device == "cuda" and not gpus:
            raise ConfigError("--device cuda needs --gpus-per-run, got 0; use 1, or a share of one")
        if remote_way(options.executor) is not None:
            raise ConfigError(
                f"--executor must be one of this machine with --engine ray, got "
                f"{options.executor}: a run that holds a place of a cluster must not wait for "
                "others; leave one of the two out"
            )
        self.options = options
        self.gpus = gpus
        self.address = address_of(address)
        self.device = options.device if gpus else "cpu"
        self._ray = imported("--engine ray")
        self._running: dict[Any, Run] = {}  # by Ray's reference to the answer
        self._placed: dict[Any, float] = {}  # time since when there is a place for it
        self._pools: dict[str, Any] = {}  # Ray's reference to each data set, or a `Crash`
        self._news: list[News] = []
        self._mark: Path | None = None  # file in the folder of checkpoints, while runs are played

    def __enter__(self) -> Self:
        connect(self._ray, self.address, "--address")
        if not self._places():
            self._ray.shutdown()
            raise ConfigError(
                f"--address {self.address} must have a node with {self.options.threads} CPUs and "
                f"{self.gpus:g} GPUs for a run, got none; start one: ray start --address=HOST:PORT"
            )
        share = {"num_cpus": self.options.threads, "num_gpus": self.gpus}
        task = self._ray.remote(**share, max_retries=TASK_RETRIES, retry_exceptions=False)
        self._play = task(_play)
        if self.options.checkpoints is not None and self.options.checkpoint != "none":
            self._mark = self.options.checkpoints.resolve() / f".driver-{uuid4().hex}"
            write_atomically(self._mark, b"")
        return self

    def __exit__(self, *error: object) -> None:
        for references in (self._running, self._placed, self._pools):
            references.clear()
        self._ray.shutdown()  # Ray kills the workers of a driver that leaves
        if self._mark is not None:
            self._mark.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # it has checkpoints
                self._mark.parent.rmdir()

    def free(self) -> int:
        """Number of free places of the nodes, and one more, which starts as soon as a run ends."""
        room = self._places() + 1
        return max(0, min(room, self.options.workers or room) - len(self._running))

    def submit(self, run: Run, chunk: int) -> None:
        """Give Ray the run, with its reference to the data set."""
        pool = self._pool(run.scenario.dataset)
        if isinstance(pool, Crash):
            self._news.append(News(run, pool))
            return
        options = self.options
        job = Job(
            run.scenario,
            self.device,
            options.executor,
            chunk,
            isolate=options.isolate,
            checkpoint=options.checkpoint_of(run),
        )
        answer = self._play.remote(job, run.id, code_version(), options.threads, pool, self._mark)
        self._running[answer] = run
        self._news.append(News(run, None))

    def news(self, wait_seconds: float) -> list[News]:
        """Return the runs that Ray has ended; a node with other code is a `ConfigError`."""
        out = self._news
        self._news = []
        if not self._running:
            time.sleep(0 if out else wait_seconds)
            return out
        out += self._end_overdue()
        answers, _ = self._ray.wait(list(self._running), timeout=0 if out else wait_seconds)
        for answer in answers:
            run = self._forget(answer)
            out.append(News(run, self._ended(run, answer)))
        return out

    def _end_overdue(self) -> list[News]:
        """Kill runs that take too long; Ray does not repeat what was cancelled."""
        now = time.monotonic()
        limit = self.options.run_timeout
        for answer in list(self._running)[: max(1, self._places())]:
            self._placed.setdefault(answer, now)
        out = []
        for answer in [answer for answer, since in self._placed.items() if now - since > limit]:
            if self._ray.wait([answer], timeout=0)[0]:  # it has just ended
                continue
            self._ray.cancel(answer, force=True)
            out.append(News(self._forget(answer), overtime(limit)))
        return out

    def _forget(self, answer: Any) -> Run:
        self._placed.pop(answer, None)
        return self._running.pop(answer)

    def _ended(self, run: Run, answer: Any) -> Record | Crash:
        errors = self._ray.exceptions
        try:
            result = self._ray.get(answer)
        except errors.OutOfMemoryError as error:
            return Crash("memory", "OutOfMemoryError", first_line(error))
        except errors.RayTaskError as error:  # not from the run, whose errors are results
            if isinstance(error.cause, ConfigError):
                raise error.cause from None
            raise ConfigError(
                f"every node of {self.address} must have this fedbench, got "
                f"{first_line(error.cause or error)!r}; install it and start the sweep again"
            ) from error
        except errors.RayError as error:
            return Crash("lost", type(error).__name__, first_line(error))
        return parse(result, str(run)) if isinstance(result, bytes) else Crash(**result)

    def _pool(self, dataset: str) -> Any:
        if dataset not in self._pools:
            from fedbench.experiment.prepare import load_pool

            try:
                self._pools[dataset] = self._ray.put(arrays_of(load_pool(dataset)))
            except Exception as error:  # cached, because it may have waited for a network
                self._pools[dataset] = crash(error)
        return self._pools[dataset]

    def _places(self) -> int:
        return places_of(self._ray, self.options.threads, self.gpus)


def _play(
    job: Job, id: str, code: str, threads: int, arrays: dict[str, Any], mark: Path | None
) -> Any:
    """Play a run in a worker of Ray; return the record's JSON, or the fields of a `Crash`."""
    _agree(job, id, code)
    job = dataclasses.replace(job, checkpoint=reached(job.checkpoint, mark))
    keep_memory()
    import torch

    torch.set_num_threads(threads)
    try:
        record = play_job(job, data=data_of(arrays))
    except BaseException as error:
        return dataclasses.asdict(crash(error))
    return record.to_json().encode()


def reached(checkpoint: Checkpoint | None, mark: Path | None) -> Checkpoint | None:
    """Return the checkpoint in the folder of the ``mark``, or None if this node does not see it.

    `ConfigError` if somebody asked for checkpoints.
    """
    if checkpoint is None or mark is None:
        return None
    if mark.exists():
        return dataclasses.replace(checkpoint, path=mark.parent / checkpoint.path.name)
    if checkpoint.automatic:
        return None
    raise ConfigError(
        f"--checkpoint with --engine ray must have a store that every node sees, got "
        f"{socket.gethostname()} without {mark.parent}; share --out, or leave --checkpoint out"
    )


def _agree(job: Job, id: str, code: str) -> None:
    """Raise unless this node has the fedbench and plug-ins of where the sweep was started."""
    here = code_version()
    try:
        same = resolve(job.scenario).id() == id
        got = "other code of a plug-in" if here == code else here
    except FedbenchError as error:
        same = False
        got = str(error)
    if not same:
        raise other_code(code, got, "start the sweep again")
