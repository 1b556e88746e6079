"""Processes that train the clients of a round, and stay for the next one."""

from __future__ import annotations

import io
import mmap
import os
import signal
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, reduce
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedbench.api import Memory
from fedbench.core.devices import accelerated
from fedbench.core.errors import FedbenchError
from fedbench.executors.training import Client, Executor, Loop, Trained

Job = tuple[list[int], list[Client]]  # rows of the updates, and their clients


@dataclass(frozen=True, eq=False)
class Forked(Executor):
    """`Loop`, its clients dealt to as many processes as torch may use threads.

    This process is one of them, the others are its children: forked when first needed, with all
    that is in memory, they get later rounds by pipe. Updates come back through a shared ``(n, d)``.
    The numbers are those of `Loop` on one thread. A single client is trained here; with one thread
    only, without fork, or with the model on an accelerator, it is `Loop`.

    A child sets one thread first: a fork does not copy its parent's. Where there is an accelerator,
    used or not, only children train: autograd starts threads for it, and then refuses in a child.
    """

    @cached_property
    def loop(self) -> Loop:
        training = (self.protocol, self.shared, self.schedule)
        return Loop(*training, precision=self.precision, augment=self.augment)

    @cached_property
    def crew(self) -> Crew:
        return Crew(self.loop)

    def train(self, clients: Sequence[Client]) -> Trained:
        """Train in all processes, see `Executor.train`; errors of a child are raised here.

        `MemoryError` if a child was killed, as the kernel does when memory runs out, `RuntimeError`
        if it ended otherwise, `FedbenchError` if leaves change their type in training.
        """
        threads = torch.get_num_threads()
        here = 0 if torch.accelerator.is_available() else 1
        workers = min(threads, len(clients))
        alone = threads < 2 or workers <= here
        if alone or accelerated(self.shared.device) or not hasattr(os, "fork"):
            return self.loop.train(clients)
        rows = list(range(len(clients)))
        jobs: list[Job] = [(rows[w::workers], list(clients[w::workers])) for w in range(workers)]
        try:
            busy = self.crew.start(jobs[here:], len(clients))
            torch.set_num_threads(1)
            results = [self.crew.do(job) for job in jobs[:here]]
            results += [self.crew.result(hand) for hand in busy]
        except BaseException:
            self.crew.dismiss()
            raise
        finally:
            torch.set_num_threads(threads)
        memories = [results[i % workers][i // workers] for i in range(len(clients))]
        return self.crew.updates[: len(clients)].clone(), memories


class Hand(NamedTuple):
    """A child process that trains."""

    process: int  # process id
    pipe: Connection  # takes jobs, returns the memories of clients


class Crew:
    """Children that train, and the memory that they share with their parent.

    They end with this object, when one of them fails, and soon after their parent.
    """

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.updates = torch.empty(0, 0)
        self.hands: list[Hand] = []
        self.parent = os.getpid()
        weakref.finalize(self, _dismiss, self.hands, self.parent)

    def start(self, jobs: Sequence[Job], n: int) -> list[Hand]:
        """Give each job to a child; return the children. ``n`` clients in all.

        Children are forked where there are too few, if an old one is gone, for a round of more
        clients than before, and for jobs that cannot be sent, with a local function, say.
        """
        leaves = jobs[0][1][0].tree.values()
        dtype = reduce(torch.promote_types, [x.dtype for x in leaves], torch.get_default_dtype())
        if n > len(self.updates) or dtype != self.updates.dtype:
            self.dismiss()
            d = self.loop.protocol.trained(self.loop.shared).d
            self.updates = _between_processes(n, d, dtype)
        try:
            orders = [packed(job) for job in jobs[: len(self.hands)]]
            for hand, order in zip(self.hands, orders, strict=False):
                hand.pipe.send_bytes(order)
        except Exception:  # a child is gone, or pickling a plug-in's function raises anything
            self.dismiss()
        for job in jobs[len(self.hands) :]:
            self._fork(job)
        return self.hands[: len(jobs)]

    def do(self, job: Job) -> list[Memory]:
        """Train these clients here; return their memories."""
        rows, clients = job
        trained, memories = self.loop.train(clients)
        if trained.dtype != self.updates.dtype:
            raise FedbenchError(
                f"leaves that --executor forked trains must stay {self.updates.dtype}, got "
                f"{trained.dtype}; take --executor loop"
            )
        self.updates[rows] = trained
        return memories

    def result(self, hand: Hand) -> list[Memory]:
        """Wait until this child has trained its clients; return their memories."""
        try:
            answer = hand.pipe.recv()
        except (EOFError, OSError):
            self.hands.remove(hand)
            code = os.waitstatus_to_exitcode(os.waitpid(hand.process, 0)[1])
            message = f"a process that trains clients ended with status {code}"
            raise (MemoryError if code == -signal.SIGKILL else RuntimeError)(message) from None
        if isinstance(answer, BaseException):
            raise answer
        memories: list[Memory] = answer
        return memories

    def dismiss(self) -> None:
        _dismiss(self.hands, self.parent)

    def _fork(self, job: Job) -> None:
        ours, theirs = Pipe()
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # its parent ends it
        child = os.fork()
        if child:
            self.hands.append(Hand(child, ours))
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            theirs.close()
            return
        try:
            torch.set_num_threads(1)
            threading.Thread(target=_end_after, args=(self.parent,), daemon=True).start()
            ours.close()
            with suppress(EOFError, OSError):
                theirs.send_bytes(self._answer(lambda: job))
                while True:
                    theirs.send_bytes(self._answer(theirs.recv))
        finally:
            os._exit(0)  # without the clean-up of the parent's objects

    def _answer(self, job: Callable[[], Job]) -> bytes:
        try:
            return packed(self.do(job()))
        except BaseException as error:
            error.add_note("".join(traceback.format_exception(error)))  # pickle drops tracebacks
            try:
                answer = packed(error)
                ForkingPickler.loads(answer)
            except Exception:  # pickling a foreign error raises anything
                return packed(RuntimeError(f"{type(error).__name__}: {error}"))
            return answer


def _dismiss(hands: list[Hand], parent: int) -> None:
    while hands and os.getpid() == parent:  # a fork of the parent has no such children
        hand = hands.pop()
        hand.pipe.close()
        os.kill(hand.process, signal.SIGKILL)
        os.waitpid(hand.process, 0)


def _end_after(parent: int) -> None:
    """End this process when it is no longer the child of ``parent``."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def _between_processes(n: int, d: int, dtype: torch.dtype) -> Tensor:
    """Make ``(n, d)`` that children share, without a file, because /dev/shm is small."""
    size = n * d * dtype.itemsize
    numbers = torch.frombuffer(mmap.mmap(-1, max(size, dtype.itemsize)), dtype=dtype)
    return numbers[: n * d].view(n, d)


class _Sender(ForkingPickler):
    """Pickler that sends the data of a tensor, not all memory that it is a view of."""

    def reducer_override(self, thing: Any) -> Any:
        """Send tensors as NumPy arrays."""
        if isinstance(thing, Tensor):
            return torch.from_numpy, (thing.detach().cpu().numpy(),)
        return NotImplemented


def packed(thing: object) -> bytes:
    """Pickle for a pipe to a process that trusts this one; tensors arrive on the CPU."""
    out = io.BytesIO()
    _Sender(out, 5).dump(thing)
    return out.getvalue()
