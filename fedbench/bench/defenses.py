"""What rules cost: seconds and memory, beside a plain mean and a sort over the clients."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from fedbench.api import ServerView
from fedbench.core import registry
from fedbench.payload import FloatVectors
from fedbench.testing.defenses import view_of

SORTED = 1 << 25  # values that the sort is given at most: its indices take 8 bytes each
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@dataclass(frozen=True)
class Cost:
    """One rule on random floats.

    Args:
        defense: With its parameters.
        n: Rows.
        k: Columns.
        seconds: Of a call, each repetition.
        mean: Of ``x.mean(dim=0)``, beside each of them.
        sort: Of ``x.sort(dim=0)``, beside each of them; on fewer columns, scaled up, where the
            whole would not fit.
        memory: Peak bytes beyond the input over those of the input; None if it cannot be had.
    """

    defense: str
    n: int
    k: int
    seconds: tuple[float, ...]
    mean: tuple[float, ...]
    sort: tuple[float, ...]
    memory: float | None

    @property
    def over_mean(self) -> float:
        """How many means it takes: median of the ratios of neighbours in time."""
        pairs = zip(self.seconds, self.mean, strict=True)
        return statistics.median(mine / other for mine, other in pairs)

    @property
    def sorts(self) -> float:
        """How many times faster it is than the sort: median of the ratios."""
        pairs = zip(self.seconds, self.sort, strict=True)
        return statistics.median(other / mine for mine, other in pairs)


def measure(defense: str, n: int, k: int, repeats: int, device: str, threads: int) -> Cost:
    """Call a rule once for its memory, then so many times beside a mean and a sort."""
    torch.set_num_threads(threads)
    where = torch.device(device)
    draws = torch.Generator().manual_seed(0)
    x = torch.randn(n, k, generator=draws).to(where)
    rule, payload = registry.load("defense", defense), FloatVectors(x)
    view = view_of(payload)
    few = max(1, min(k, SORTED // n))
    part = x[:, :few]

    def call(payload: FloatVectors = payload, view: ServerView = view) -> None:
        rule.aggregate(payload, rule.init(payload.spec), view.asked())

    small = FloatVectors(x[:, :64].clone())
    call(small, view_of(small))  # what it imports is not its memory
    memory = _peak(call, where)
    bytes_ = x.element_size() * x.nelement()
    times: list[tuple[float, float, float]] = []
    for _ in range(repeats):
        mean = _timed(lambda: x.mean(dim=0), where)
        mine = _timed(call, where)
        sort = _timed(lambda: part.sort(dim=0), where) * k / few
        times.append((mine, mean, sort))
    seconds, means, sorts = zip(*times, strict=True)
    share, name = None if memory is None else memory / bytes_, registry.split(defense)[0]
    return Cost(registry.describe(name, rule), n, k, seconds, means, sorts, share)


def play(
    defenses: Sequence[str],
    rows: Sequence[int],
    columns: Sequence[int],
    repeats: int,
    device: str,
    threads: int,
    say: Callable[[str], None] = lambda text: None,
) -> Iterator[Cost]:
    """Every rule on every size, each in a process of its own: peak memory is a process's.

    ``f`` is a fifth of the rows where a rule asks for one; what is not defined for that many rows
    is left out.
    """
    context = multiprocessing.get_context("spawn")
    for defense in defenses:
        for n in rows:
            rule = registry.load("defense", defense).declared(n // 5)
            most = rule.most_rows()
            if rule.refuses(FloatVectors) or rule.rows_needed() > n or (most and n > most):
                continue
            text = registry.describe(registry.split(defense)[0], rule)
            for k in columns:
                say(f"{text} on {n} x {k}")
                with context.Pool(1) as pool:
                    yield pool.apply(measure, (text, n, k, repeats, device, threads))


def growth(costs: Sequence[Cost], axis: str) -> float | None:
    """Exponent ``p`` of ``seconds ~ axis ** p`` by least squares, the other size being one.

    The one with which most sizes were measured, of these the largest.
    """
    other = "k" if axis == "n" else "n"
    lines: dict[int, dict[float, float]] = {}
    for cost in costs:
        line = lines.setdefault(getattr(cost, other), {})
        line[math.log(getattr(cost, axis))] = math.log(statistics.median(cost.seconds))
    _, points = max(lines.items(), key=lambda line: (len(line[1]), line[0]))
    if len(points) < 2:
        return None
    return statistics.linear_regression(list(points), list(points.values())).slope


def described(cost: Cost) -> dict[str, object]:
    """For programs."""
    return dataclasses.asdict(cost) | {"over_mean": cost.over_mean, "sorts": cost.sorts}


def _timed(call: Callable[[], object], device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def _peak(call: Callable[[], object], device: torch.device) -> float | None:
    """Bytes at the peak beyond those at the start; of the whole process on Linux's CPUs."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        return float(torch.cuda.max_memory_allocated() - before)
    with contextlib.suppress(OSError):
        CLEAR.write_text("5")  # the peak is now what is resident
        before = _resident("VmHWM")
        call()
        return float(_resident("VmHWM") - before)
    call()
    return None


def _resident(name: str) -> int:
    for line in STATUS.read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"{STATUS} has no {name}")
