"""Two ways of doing one thing, in turns: a busy neighbour slows both."""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

Work = Callable[[], object]
STAT = Path("/proc/stat")
TURN, LONG = 0.02, 0.5  # seconds: of a turn, and of what the kernel's clock of 10 ms can tell


@dataclass(frozen=True, eq=False)
class Pair:
    """What is to be compared.

    Args:
        group: Under which heading.
        what: Ours.
        against: The other way.
        mine: Does it once.
        theirs: Does it once.
        target: How many times as fast ours should be at least; None: no promise.
        flops: Floating-point operations of ours; 0: not counted.
        units: What it is made of, clients for instance: times are said of one.
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
    """What came of it.

    Args:
        group: Under which heading.
        what: Ours.
        against: The other way.
        mine: Seconds of ours, each turn.
        theirs: Of the other, in the same turn.
        target: As in `Pair`.
        flops: As in `Pair`.
        units: As in `Pair`.
        others: Cores that other processes used meanwhile, on average; None where nobody can say,
            or it was too short.
    """

    group: str
    what: str
    against: str
    mine: tuple[float, ...]
    theirs: tuple[float, ...]
    target: float | None
    flops: float
    units: int
    others: float | None

    @property
    def turns(self) -> list[float]:
        """How many times as fast ours was, each turn."""
        return [b / a for a, b in zip(self.mine, self.theirs, strict=True)]

    @property
    def faster(self) -> float:
        """Median over the turns."""
        return statistics.median(self.turns)

    @property
    def met(self) -> bool | None:
        """Is the target reached? None where there is none."""
        return None if self.target is None else self.faster >= self.target

    @property
    def milliseconds(self) -> float:
        """Of one of our units, in the median turn."""
        return 1e3 * statistics.median(self.mine) / self.units

    @property
    def rate(self) -> float:
        """Operations a second of ours, in its median turn."""
        return self.flops / statistics.median(self.mine)


def compare(pair: Pair, repeats: int, device: torch.device) -> Ratio:
    """Each way once to warm up, then in turns; what is short, several times in each."""
    mine, theirs = (
        math.ceil(TURN / max(timed(work, device), 1e-6)) for work in (pair.mine, pair.theirs)
    )
    start, before = time.perf_counter(), busy()
    turns = [
        (timed(pair.mine, device, mine), timed(pair.theirs, device, theirs)) for _ in range(repeats)
    ]
    wall, after = time.perf_counter() - start, busy()
    others = None
    if before is not None and after is not None and wall > LONG:
        others = max(0.0, (after - before) / wall)
    return Ratio(
        group=pair.group,
        what=pair.what,
        against=pair.against,
        mine=tuple(a for a, _ in turns),
        theirs=tuple(b for _, b in turns),
        target=pair.target,
        flops=pair.flops,
        units=pair.units,
        others=others,
    )


def timed(work: Work, device: torch.device, calls: int = 1) -> float:
    """Seconds of the clock for one of so many calls, the device's work included."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / calls


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


def peak(device: torch.device, size: int = 2048, repeats: int = 12) -> float:
    """Operations a second of the best of some float32 matrix products: what the machine can do."""
    a = torch.ones(size, size, device=device)
    best = min(timed(lambda: a @ a, device) for _ in range(repeats + 1))
    return 2 * size**3 / best


def short(x: float) -> str:
    """Two digits, or all before the point.

    >>> short(0.0123), short(1.26), short(123.4)
    ('0.012', '1.3', '123')
    """
    return f"{x:.0f}" if x >= 99.5 else f"{x:.2g}"
