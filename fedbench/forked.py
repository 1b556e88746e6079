"""Several processes train the clients of a round, and stay for the next one."""

from __future__ import annotations

import io
import os
import pickle
import signal
import weakref
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

from fedbench.api import Memory
from fedbench.errors import FedbenchError
from fedbench.training import Client, Executor, Loop, Trained

Job = tuple[list[int], list[Client]]  # rows of the updates, and whose they are


@dataclass(frozen=True, eq=False)
class Forked(Executor):
    """`Loop`, its clients dealt to as many processes as torch may use threads.

    This process is one of them, the others are its children. They are forked in the first round,
    with all that is in memory; later ones they are told, and they keep their memory and kernels.
    Updates come back through a shared ``(n, d)``. The numbers are those of `Loop` on one thread.
    Where there is one thread only, or no fork, or the model is on an accelerator, it is `Loop`.

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
        """See `Executor.train`.

        Raises:
            FedbenchError: a child failed or was killed; what it said is in the message.
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
            updates = self.crew.start(jobs[here:], len(clients))
            torch.set_num_threads(1)
            told = [self.crew.do(job) for job in jobs[:here]] + self.crew.wait()
        except BaseException:
            self.crew.dismiss()
            raise
        finally:
            torch.set_num_threads(threads)
        for part, kept in zip(parts, told, strict=True):
            for i, memory in zip(part, kept, strict=True):
                memories[i] = memory
        return updates.clone(), memories


class Crew:
    """Children that train, and the memory that they share with their parent.

    They end when this is no longer used, when one of them fails, and when the parent ends.

    Args:
        loop: What each of them trains with.
    """

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.updates = torch.empty(0, 0)
        self.hands: list[tuple[int, Connection]] = []
        weakref.finalize(self, _dismiss, self.hands, os.getpid())

    def start(self, jobs: Sequence[Job], n: int) -> Tensor:
        """Give every child a job; ``(n, d)``, where the updates will be.

        Children that are there are told by pipe. What cannot be sent, like a function that a script
        has defined within another, and a round of more clients than before, is for new children;
        so it is if one of the old ones is gone.
        """
        dtype = self._dtype(jobs)
        fits = n <= len(self.updates) and dtype == self.updates.dtype
        if fits and len(jobs) == len(self.hands):
            with suppress(pickle.PicklingError, AttributeError, TypeError, OSError):
                orders = [_packed(job) for job in jobs]
                for (_, pipe), order in zip(self.hands, orders, strict=True):
                    pipe.send_bytes(order)
                return self.updates[:n]
        self.dismiss()
        if not fits:
            width = self.loop.protocol.trained(self.loop.shared).d
            self.updates = torch.empty(n, width, dtype=dtype)
            self.updates.share_memory_()  # type: ignore[no-untyped-call]
        for job in jobs:
            self.hands.append(self._hand(job))
        return self.updates[:n]

    def _dtype(self, jobs: Sequence[Job]) -> torch.dtype:
        tree = jobs[0][1][0].tree
        empty, _ = self.loop.train([])
        return torch.promote_types(empty.dtype, next((x.dtype for x in tree.values()), empty.dtype))

    def do(self, job: Job) -> list[Memory]:
        """Train these; what they remember."""
        rows, clients = job
        self.updates[rows], memories = self.loop.train(clients)
        return memories

    def wait(self) -> list[list[Memory]]:
        """What the clients of each child remember, when all have trained.

        Raises:
            FedbenchError: one of them failed.
        """
        told = []
        for hand in list(self.hands):
            child, pipe = hand
            try:
                found = pickle.loads(pipe.recv_bytes())
            except (EOFError, OSError):
                self.hands.remove(hand)
                _, status = os.waitpid(child, 0)
                found = f"it ended with status {status}"
            if isinstance(found, str):
                raise FedbenchError(f"a process that trains clients failed: {found}")
            told.append(found)
        return told

    def dismiss(self) -> None:
        """End all children."""
        _dismiss(self.hands, os.getpid())

    def _hand(self, job: Job) -> tuple[int, Connection]:
        ours, theirs = Pipe()
        child = os.fork()
        if child:
            theirs.close()
            return child, ours
        try:
            torch.set_num_threads(1)
            ours.close()
            for _, pipe in self.hands:
                pipe.close()  # of its siblings, which are to notice when the parent ends
            with suppress(EOFError, OSError, KeyboardInterrupt):
                while True:
                    theirs.send_bytes(self._answer(job))
                    job = pickle.loads(theirs.recv_bytes())
        finally:
            os._exit(0)  # nothing of the parent's is to be ended here

    def _answer(self, job: Job) -> bytes:
        try:
            return _packed(self.do(job))
        except BaseException as error:
            return _packed(f"{type(error).__name__}: {error}")


def _dismiss(hands: list[tuple[int, Connection]], parent: int) -> None:
    while hands and os.getpid() == parent:  # whoever was forked from it has no such children
        child, pipe = hands.pop()
        pipe.close()
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


class _Pickler(pickle.Pickler):
    """Writes of a tensor what it shows, and not all of the memory that it is a view of."""

    def reducer_override(self, thing: Any) -> Any:
        """Tensors as arrays."""
        if isinstance(thing, Tensor):
            return torch.from_numpy, (thing.detach().numpy(),)
        return NotImplemented


def _packed(thing: object) -> bytes:
    """For a child or its parent, and nobody else: pickles are read from no other source."""
    out = io.BytesIO()
    _Pickler(out, protocol=5).dump(thing)
    return out.getvalue()
