"""Who trains the clients of a round: the choice, and several processes at once."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

from fedbench.api import Memory, Protocol, Shared
from fedbench.choice import choose
from fedbench.errors import FedbenchError, require
from fedbench.lockstep import Stacked
from fedbench.together import Together
from fedbench.training import Client, Executor, Loop, Precision, Schedule, Trained

NAMES = ("auto", "loop", "stacked", "forked")


@dataclass(frozen=True, eq=False)
class Forked(Executor):
    """`Loop`, its clients dealt to as many processes as torch may use threads.

    This process is one of them, the others are its children, forked every round: they find
    everything in memory as it is, also the kernels that this one has made, and write their updates
    to a shared ``(n, d)``: nothing is copied but what clients remember. The numbers are those of
    `Loop` on one thread. Where there is one thread only, or no fork, or the model is on an
    accelerator, it is `Loop`.

    A child uses one thread, and says so before anything else: one that waits for threads of its
    parent, which are not there after a fork, would wait for ever. Where there is an accelerator,
    used or not, only children train: autograd starts threads for it, and then refuses in a child.
    """

    @cached_property
    def loop(self) -> Loop:
        """What every process trains with."""
        return Loop(self.protocol, self.shared, self.schedule, precision=self.precision)

    def train(self, clients: Sequence[Client]) -> Trained:
        """See `Executor.train`.

        Raises:
            FedbenchError: a process failed or was killed; what it said is in the message.
        """
        threads, here = torch.get_num_threads(), 0 if torch.cuda.is_available() else 1
        workers = min(threads, len(clients))
        alone = threads < 2 or workers <= here
        if alone or self.shared.device.type != "cpu" or not hasattr(os, "fork"):
            return self.loop.train(clients)
        empty, _ = self.loop.train([])
        tree = clients[0].tree
        dtype = next(iter(tree.values())).dtype if tree else empty.dtype
        width = self.protocol.trained(self.shared).d
        updates = torch.empty(len(clients), width, dtype=torch.promote_types(empty.dtype, dtype))
        updates.share_memory_()  # type: ignore[no-untyped-call]
        parts = [range(start, len(clients), workers) for start in range(workers)]
        memories: list[Memory] = [{}] * len(clients)
        children = [_start(self.loop, clients, updates, part) for part in parts[here:]]
        try:
            torch.set_num_threads(1)
            for part in parts[:here]:
                updates[list(part)], memories[part.start :: workers] = self.loop.train(
                    [clients[i] for i in part]
                )
        except BaseException:
            for child, _ in children:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
            raise
        finally:
            torch.set_num_threads(threads)
        failures = []
        for part, (child, pipe) in zip(parts[here:], children, strict=True):
            found = None
            with suppress(EOFError), pipe:
                found = pipe.recv()
            _, status = os.waitpid(child, 0)
            found = f"it ended with status {status}" if found is None else found
            if isinstance(found, str):
                failures.append(found)
                continue
            for i, kept in zip(part, found, strict=True):
                memories[i] = {name: torch.from_numpy(value) for name, value in kept.items()}
        if failures:
            raise FedbenchError(f"a process that trains clients failed: {failures[0]}")
        return updates, memories


def _start(
    loop: Loop, clients: Sequence[Client], updates: Tensor, part: range
) -> tuple[int, Connection]:
    """A child that trains these clients, and where it says what they keep."""
    ours, theirs = Pipe(duplex=False)
    child = os.fork()
    if child:
        theirs.close()
        return child, ours
    try:
        torch.set_num_threads(1)
        ours.close()
        trained, memories = loop.train([clients[i] for i in part])
        updates[list(part)] = trained
        theirs.send([{k: v.numpy() for k, v in kept.items()} for kept in memories])
    except BaseException as error:
        theirs.send(f"{type(error).__name__}: {error}")
    finally:
        os._exit(0)  # nothing of the parent's is to be ended here


def executor(
    name: str,
    protocol: Protocol[Any],
    shared: Shared,
    schedule: Schedule,
    chunk: int = 32,
    precision: Precision = "fp32",
    crowd: float = 1.0,
) -> Executor:
    """The executor of that name; ``auto`` is the faster one, see `fedbench.choice`.

    Workers that play several runs ask for "together" (`fedbench.together`), not in `NAMES`.

    Args:
        name: One of `NAMES`.
        protocol: What clients train.
        shared: Network and device.
        schedule: How often a client sees its data.
        chunk: Clients that are trained at once, where many are.
        precision: Of the network's products.
        crowd: Clients of a round that take equally many steps, on average.
    """
    require("--chunk", chunk, chunk >= 1, ">= 1")
    if name == "together":
        return Together(protocol, shared, schedule, chunk, precision=precision)
    require("--executor", name, name in NAMES, ", ".join(NAMES[:-1]) + f" or {NAMES[-1]}")
    if name == "auto":
        name = choose(protocol, shared, schedule, chunk, precision, crowd)
    if name == "stacked":
        return Stacked(protocol, shared, schedule, chunk, precision=precision)
    if name == "forked":
        return Forked(protocol, shared, schedule, precision=precision)
    return Loop(protocol, shared, schedule, precision=precision)
