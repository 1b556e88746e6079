"""Who trains the clients of a round."""

from __future__ import annotations

from typing import Any

from fedbench.api import Protocol, Shared
from fedbench.core.errors import Unavailable, require
from fedbench.executors.autotune import choose
from fedbench.executors.multi_run import Together, recorder
from fedbench.executors.process_pool import Forked
from fedbench.executors.training import Executor, Loop, Precision, Schedule
from fedbench.executors.vmap import Recorded, Stacked

NAMES = ("auto", "loop", "stacked", "recorded", "forked")


def require_known(name: str) -> None:
    """One of `NAMES`.

    Raises:
        ConfigError: it is another.
    """
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
    """The executor of that name; ``auto`` is the faster one, see `fedbench.executors.autotune`.

    Workers that play several runs ask for "together" (`fedbench.executors.multi_run`), which is
    not in `NAMES`.

    Args:
        name: One of `NAMES`.
        protocol: What clients train.
        shared: Network and device.
        schedule: How often a client sees its data.
        chunk: Clients that are trained at once, where many are.
        precision: Of the network's products.
        crowd: Clients of a round that take equally many steps, on average.

    Raises:
        ConfigError: there is no such executor, or not on this device.
    """
    require("--chunk", chunk, chunk >= 1, ">= 1")
    if name != "together":
        require_known(name)
    cuda = shared.device.type == "cuda"
    require_device(name, cuda)
    found = name
    if name == "auto" or (name == "together" and cuda):
        found = choose(protocol, shared, schedule, chunk, precision, crowd)
    if name == "together":
        kept = recorder() if found == "recorded" else None
        return Together(protocol, shared, schedule, chunk, precision=precision, recorder=kept)
    if found == "stacked":
        return Stacked(protocol, shared, schedule, chunk, precision=precision)
    if found == "recorded":
        return Recorded(protocol, shared, schedule, chunk, precision=precision)
    if found == "forked":
        return Forked(protocol, shared, schedule, precision=precision)
    return Loop(protocol, shared, schedule, precision=precision)
