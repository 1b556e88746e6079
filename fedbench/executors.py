"""Who trains the clients of a round."""

from __future__ import annotations

from typing import Any

from fedbench.api import Protocol, Shared
from fedbench.choice import choose
from fedbench.errors import require
from fedbench.forked import Forked
from fedbench.lockstep import Stacked
from fedbench.together import Together
from fedbench.training import Executor, Loop, Precision, Schedule

NAMES = ("auto", "loop", "stacked", "forked")


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
