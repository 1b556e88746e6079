"""Several processes train the clients of a round, and stay for the next one."""

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
from typing import Any

import torch
from torch import Tensor

from fedbench.api import Memory
from fedbench.core.errors import FedbenchError
from fedbench.executors.training import Client, Executor, Loop, Trained

Job = tuple[list[int], list[Client]]  # rows of the updates, and whose they are


@dataclass(frozen=True, eq=False)
class Forked(Executor):
    """`Loop`, its clients dealt to as many processes as torch may use threads.

    This process is one of them, the others are its children. They are forked when they are first
    needed, with all that is in memory; later rounds they are told, so they keep their memory and
    kernels, and the code and flags of that moment. Updates come back through a shared ``(n, d)``.
    The numbers are those of `Loop` on one thread. A single client is trained here; where there is
    one thread only, or no fork, or the model is on an accelerator, it is `Loop`.

    A child uses one thread, and says so before anything else: one that waits for threads of its
    parent, which are not there after a fork, would wait for ever. Where there is an accelerator,
    used or not, only children train: autograd starts threads for it, and then refuses in a child.
    """

    @cached_property
    def loop(self) -> Loop:
        """What every process trains with."""
        return Loop(self.protocol, self.shared, self.schedule, precision=self.precision)

    @cached_property
    def crew(self) -> Crew:
        """The children."""
        return Crew(self.loop)

    def train(self, clients: Sequence[Client]) -> Trained:
        """See `Executor.train`; what goes wrong in a child is raised here.

        Raises:
            MemoryError: a child was killed, as the kernel does for want of memory.
            RuntimeError: it ended otherwise without a word.
            FedbenchError: the protocol's leaves change their type in training.
        """
        threads, here = torch.get_num_threads(), 0 if torch.cuda.is_available() else 1
        workers = min(threads, len(clients))
        alone = threads < 2 or workers <= here
        if alone or self.shared.device.type != "cpu" or not hasattr(os, "fork"):
            return self.loop.train(clients)
        parts = [list(range(start, len(clients), workers)) for start in range(workers)]
        jobs: list[Job] = [(part, [clients[i] for i in part]) for part in parts]
        memories: list[Memory] = [{} for _ in clients]
        try:
            busy = self.crew.start(jobs[here:], len(clients))
            torch.set_num_threads(1)
            told = [self.crew.do(job) for job in jobs[:here]]
            told += [self.crew.told(hand) for hand in busy]
        except BaseException:
            self.crew.dismiss()
            raise
        finally:
            torch.set_num_threads(threads)
        for part, kept in zip(parts, told, strict=True):
            for i, memory in zip(part, kept, strict=True):
                memories[i] = memory
        return self.crew.updates[: len(clients)].clone(), memories


@dataclass(frozen=True)
class Hand:
    """A child.

    Args:
        process: Its number.
        pipe: Takes jobs, gives what clients remember.
    """

    process: int
    pipe: Connection


class Crew:
    """Children that train, and the memory that they share with their parent.

    They end when this is no longer used, when one of them fails, and soon after their parent.

    Args:
        loop: What each of them trains with.
    """

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.updates = torch.empty(0, 0)
        self.hands: list[Hand] = []
        self.parent = os.getpid()
        weakref.finalize(self, _dismiss, self.hands, self.parent)

    def start(self, jobs: Sequence[Job], n: int) -> list[Hand]:
        """Give each job to a child, and say to whom; ``n`` clients in all.

        Children that are there are told by pipe. New ones are forked where there are too few, if
        one of the old ones is gone, for a round of more clients than before, and for what cannot be
        sent, like a function that a script has defined within another.
        """
        dtype = self._dtype(jobs)
        if n > len(self.updates) or dtype != self.updates.dtype:
            self.dismiss()
            self.updates = _between_processes(
                n, self.loop.protocol.trained(self.loop.shared).d, dtype
            )
        try:
            orders = [packed(job) for job in jobs[: len(self.hands)]]
            for hand, order in zip(self.hands, orders, strict=False):
                hand.pipe.send_bytes(order)
        except Exception:  # a child is gone, or whatever a plug-in's function says to being sent
            self.dismiss()
        for job in jobs[len(self.hands) :]:
            self._fork(job)
        return self.hands[: len(jobs)]

    def _dtype(self, jobs: Sequence[Job]) -> torch.dtype:
        dtypes = [leaf.dtype for leaf in jobs[0][1][0].tree.values()]
        return reduce(torch.promote_types, dtypes, torch.get_default_dtype())

    def do(self, job: Job) -> list[Memory]:
        """Train these; what they remember."""
        rows, clients = job
        trained, memories = self.loop.train(clients)
        if trained.dtype != self.updates.dtype:
            raise FedbenchError(
                f"leaves that --executor forked trains must stay {self.updates.dtype}, got "
                f"{trained.dtype}; take --executor loop"
            )
        self.updates[rows] = trained
        return memories

    def told(self, hand: Hand) -> list[Memory]:
        """What the clients of this child remember, when it has trained them."""
        try:
            found = hand.pipe.recv()
        except (EOFError, OSError):
            self.hands.remove(hand)
            code = os.waitstatus_to_exitcode(os.waitpid(hand.process, 0)[1])
            gone = f"a process that trains clients ended with status {code}"
            raise (MemoryError if code == -signal.SIGKILL else RuntimeError)(gone) from None
        if isinstance(found, BaseException):
            raise found
        memories: list[Memory] = found
        return memories

    def dismiss(self) -> None:
        """End all children."""
        _dismiss(self.hands, self.parent)

    def _fork(self, job: Job) -> None:
        ours, theirs = Pipe()
        known = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # its parent ends it
        child = os.fork()
        if child:
            self.hands.append(Hand(child, ours))
            signal.pthread_sigmask(signal.SIG_SETMASK, known)
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
            os._exit(0)  # nothing of the parent's is to be ended here

    def _answer(self, job: Callable[[], Job]) -> bytes:
        try:
            return packed(self.do(job()))
        except BaseException as error:
            error.add_note("".join(traceback.format_exception(error)))  # is not sent otherwise
            try:
                ForkingPickler.loads(found := packed(error))
            except Exception:  # whatever a foreign error says to being sent and read
                return packed(RuntimeError(f"{type(error).__name__}: {error}"))
            return found


def _dismiss(hands: list[Hand], parent: int) -> None:
    while hands and os.getpid() == parent:  # whoever was forked from it has no such children
        hand = hands.pop()
        hand.pipe.close()
        os.kill(hand.process, signal.SIGKILL)
        os.waitpid(hand.process, 0)


def _end_after(parent: int) -> None:
    """End this process when it is no longer the child of this one."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def _between_processes(n: int, d: int, dtype: torch.dtype) -> Tensor:
    """``(n, d)`` that children share; without a file, of which /dev/shm holds few."""
    size = n * d * dtype.itemsize
    numbers = torch.frombuffer(mmap.mmap(-1, max(size, dtype.itemsize)), dtype=dtype)
    return numbers[: n * d].view(n, d)


class _Sender(ForkingPickler):
    """What pipes send with; of a tensor what it shows, and not all memory that it is a view of."""

    def reducer_override(self, thing: Any) -> Any:
        """Tensors as arrays."""
        if isinstance(thing, Tensor):
            return torch.from_numpy, (thing.detach().cpu().numpy(),)
        return NotImplemented


def packed(thing: object) -> bytes:
    """Bytes for a pipe to a process that trusts this one; tensors arrive on the CPU."""
    out = io.BytesIO()
    _Sender(out, 5).dump(thing)
    return out.getvalue()
