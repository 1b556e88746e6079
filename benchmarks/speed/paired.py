"""Two ways of doing one thing, timed in turns: a busy neighbour slows both."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.utils.benchmark import Timer

from fedbench.core.devices import title
from fedbench.executors.cached_answers import processor

Work = Callable[[], object]
STAT = Path("/proc/stat")
TURN, LONG = 0.02, 0.5  # seconds: least of a turn; least for the kernel's clock of 10 ms


@dataclass(frozen=True, eq=False)
class Pair:
    """Our way of doing something, and another way.

    Args:
        group: Heading of the table.
        what: Name of our way.
        against: Name of the other way.
        mine: Does it once.
        theirs: Does it once.
        target: How many times as fast ours should be at least; None: no promise.
        flops: Floating-point operations of ours; 0: not counted.
        units: What it is made of, clients for instance: times are shown for one of them.
    """

    group: str
    what: str
    against: str
    mine: Work
    theirs: Work
    target: float | None = None
    flops: float = 0.0
    units: int = 1


@dataclass(frozen=True)
class Ratio:
    """Times of a `Pair`.

    Args:
        group: As in `Pair`.
        what: As in `Pair`.
        against: As in `Pair`.
        mine: Seconds of ours, each turn.
        theirs: Seconds of the other way, in the same turn.
        target: As in `Pair`.
        flops: As in `Pair`.
        units: As in `Pair`.
        others: Cores that other processes used meanwhile, on average; None if unknown or too short.
    """

    group: str
    what: str
    against: str
    mine: tuple[float, ...]
    theirs: tuple[float, ...]
    target: float | None = None
    flops: float = 0.0
    units: int = 1
    others: float | None = None

    @property
    def turns(self) -> list[float]:
        """How many times as fast ours was, each turn."""
        return [b / a for a, b in zip(self.mine, self.theirs, strict=True)]

    @property
    def faster(self) -> float:
        """Median ratio of the `turns`."""
        return statistics.median(self.turns)

    @property
    def met(self) -> bool | None:
        """Whether the target is reached; None where there is none."""
        return None if self.target is None else self.faster >= self.target

    @property
    def milliseconds(self) -> float:
        """Time of one of our units, in the median turn."""
        return 1e3 * statistics.median(self.mine) / self.units

    @property
    def rate(self) -> float:
        """Operations of ours a second, in its median turn."""
        return self.flops / statistics.median(self.mine)


@dataclass(frozen=True)
class Machine:
    """Hardware and versions of a measurement.

    Args:
        processor: As it calls itself.
        cores: That this process may use.
        threads: Of torch.
        device: ``cpu``, or the name of the accelerator.
        torch: Version.
        python: Version.
        peak: Operations a second of the best of some float32 matrix products.
    """

    processor: str
    cores: int
    threads: int
    device: str
    torch: str
    python: str
    peak: float


def machine(device: torch.device, size: int = 2048) -> Machine:
    """Describe this machine; its peak is measured on matrices ``(size, size)``."""
    a = torch.ones(size, size, device=device)
    products = timer(lambda: a @ a).blocked_autorange(min_run_time=0.2)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return Machine(
        processor=processor(),
        cores=cores or 1,
        threads=torch.get_num_threads(),
        device=title(device),
        torch=torch.__version__,
        python=platform.python_version(),
        peak=2 * size**3 / min(products.times),
    )


def timer(work: Work) -> Timer:
    """Return torch's timer of ``work`` on this process's threads; it waits for the device."""
    return Timer("work()", globals={"work": work}, num_threads=torch.get_num_threads())


def compare(pair: Pair, repeats: int) -> Ratio:
    """Time both ways in turns. Each turn warms up and calls a short way several times."""
    mine, theirs = timer(pair.mine), timer(pair.theirs)
    start = time.perf_counter()
    before = busy()
    turns = [
        (
            mine.blocked_autorange(min_run_time=TURN).median,
            theirs.blocked_autorange(min_run_time=TURN).median,
        )
        for _ in range(repeats)
    ]
    return Ratio(
        group=pair.group,
        what=pair.what,
        against=pair.against,
        mine=tuple(a for a, _ in turns),
        theirs=tuple(b for _, b in turns),
        target=pair.target,
        flops=pair.flops,
        units=pair.units,
        others=others_since(start, before),
    )


def others_since(start: float, before: float | None) -> float | None:
    """Return the cores that others used since ``start``, when `busy` was ``before``."""
    wall = time.perf_counter() - start
    after = busy()
    if before is None or after is None or wall <= LONG:
        return None
    return max(0.0, (after - before) / wall)


def busy() -> float | None:
    """Core-seconds that all processes but ours have used since the machine started; Linux only."""
    try:
        fields = STAT.read_text().split("\n", 1)[0].split()[1:]
    except OSError:
        return None
    user, nice, system, _, _, irq, softirq, steal = map(int, fields[:8])
    ticks = user + nice + system + irq + softirq + steal
    own = os.times()
    mine = own.user + own.system + own.children_user + own.children_system
    return ticks / os.sysconf("SC_CLK_TCK") - mine


def short(x: float) -> str:
    """Two digits, or all before the point.

    >>> short(0.0123), short(1.26), short(123.4)
    ('0.012', '1.3', '123')
    """
    return f"{x:.0f}" if x >= 99.5 else f"{x:.2g}"
