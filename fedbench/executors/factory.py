"""Executors by name, and the choice of the fastest one."""

from typing import Any

from fedbench.api import Protocol, Shared
from fedbench.core.choices import Precision
from fedbench.core.errors import Unavailable, require
from fedbench.executors.autotune import choose
from fedbench.executors.multi_run import Together, recorder
from fedbench.executors.process_pool import Forked
from fedbench.executors.training import Executor, Loop, Schedule
from fedbench.executors.vmap import Recorded, Stacked

NAMES = ("auto", "loop", "stacked", "recorded", "forked")


def require_known(name: str) -> None:
    """Raise `ConfigError` unless the name is one of `NAMES`."""
    require("--executor", name, name in NAMES, ", ".join(NAMES[:-1]) + f" or {NAMES[-1]}")


def require_device(name: str, cuda: bool) -> None:
    """Raise `Unavailable` for an executor that this device does not have."""
    if name == "recorded" and not cuda:
        raise Unavailable("--executor recorded must have --device cuda, got cpu; use stacked")


def executor(
    name: str,
    protocol: Protocol[Any],
    shared: Shared,
    schedule: Schedule,
    chunk: int = 32,
    precision: Precision = "fp32",
    crowd: float = 1.0,
) -> Executor:
    """Make the executor of that name; ``auto`` is the fastest one (`fedbench.executors.autotune`).

    Workers that play several runs ask for "together" (`fedbench.executors.multi_run`), which is not
    in `NAMES`.

    Args:
        name: One of `NAMES`.
        protocol: Protocol that the clients train.
        shared: Network and device.
        schedule: How often a client sees its data.
        chunk: Clients that are trained at once, by executors that do so.
        precision: Precision of the network's products.
        crowd: Clients of a round that take equally many steps, on average.

    Raises:
        ConfigError: there is no such executor, or not on this device.
    """
    require("--chunk", chunk, chunk >= 1, ">= 1")
    if name != "together":
        require_known(name)
    cuda = shared.device.type == "cuda"
    require_device(name, cuda)
    kind = name
    if name == "auto" or (name == "together" and cuda):
        kind = choose(protocol, shared, schedule, chunk, precision, crowd)
    if name == "together":
        tape = recorder() if kind == "recorded" else None
        return Together(protocol, shared, schedule, chunk, precision=precision, recorder=tape)
    if kind in ("stacked", "recorded"):
        stacked = Stacked if kind == "stacked" else Recorded
        return stacked(protocol, shared, schedule, chunk, precision=precision)
    looped = Forked if kind == "forked" else Loop
    return looped(protocol, shared, schedule, precision=precision)
