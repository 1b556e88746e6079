"""Gain of a second worker, and the cost of handing out a run: worker processes and Ray.

``python benchmarks/scaling.py`` plays the same runs with one worker and with two, of this machine
and of a Ray cluster of two nodes of one core that it starts here, in turns, and prints Markdown.
``--address`` takes another cluster instead, ``--workers 1 2 4 8`` other numbers.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fedbench.experiment.cells import Cell, Run
from fedbench.experiment.scenario import Scenario
from fedbench.results.store import Store
from fedbench.sweeps.drive import Sweep
from fedbench.sweeps.engine import Engine
from fedbench.sweeps.local import LocalEngine, Options
from fedbench.sweeps.on_ray import OnRay
from fedbench.sweeps.watch import Watcher

CELL = Cell(Scenario(clients=20, rounds=10, eval_every=10))
WARM = 3  # runs of each worker before the clock starts: processes begin, torch is imported


@dataclass(frozen=True)
class Measured:
    """Speed of one sweep, measured.

    Args:
        rate: Runs per minute.
        run: Seconds of a run in its worker, on average.
        rest: Milliseconds of a worker beside each run: until it has the next one.
    """

    rate: float
    run: float
    rest: float


def measure(engine: Engine, workers: int, runs: int) -> Measured:
    """Play so many runs, each worker warm."""
    warm = [Run(CELL, 10_000 + seed) for seed in range(WARM * workers)]
    timed = [Run(CELL, seed) for seed in range(runs)]
    with TemporaryDirectory() as folder, Store(Path(folder)) as store, engine:
        Sweep(engine, store, Watcher()).play(warm)
        start = time.perf_counter()
        Sweep(engine, store, Watcher()).play(timed)
        wall = time.perf_counter() - start
        inside = sum(store.record(run).timing.seconds for run in timed)
    return Measured(60 * runs / wall, inside / runs, 1000 * (wall * workers - inside) / runs)


@contextmanager
def two_nodes() -> Iterator[str]:
    """The address of a Ray cluster here."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    from ray.cluster_utils import Cluster

    node: dict[str, Any] = {"num_cpus": 1, "include_dashboard": False}
    cluster: Any = Cluster(initialize_head=True, head_node_args=node)
    try:
        cluster.add_node(**node)
        yield cluster.address
    finally:
        cluster.shutdown()


def spread(values: list[float], digits: int) -> str:
    """Median, least and greatest."""
    low, high = min(values), max(values)
    middle = statistics.median(values)
    return f"{middle:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def table(measured: dict[tuple[str, int], list[Measured]]) -> Iterator[str]:
    """Median, least and greatest of the repetitions; gains are of one repetition each."""
    yield "| engine | workers | runs/min | gain | seconds in a run | ms between runs |"
    yield "|---|---:|---:|---:|---:|---:|"
    for (name, workers), sweeps in measured.items():
        least = min(w for n, w in measured if n == name)
        gains = [a.rate / b.rate for a, b in zip(sweeps, measured[name, least], strict=True)]
        cells = [
            spread([sweep.rate for sweep in sweeps], 1),
            spread(gains, 2) if workers > least else "",
            spread([sweep.run for sweep in sweeps], 2),
            spread([sweep.rest for sweep in sweeps], 0),
        ]
        yield f"| {name} | {workers} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--address", help="of a Ray cluster; default: two nodes here")
    given = parser.parse_args()

    def compare(address: str) -> dict[tuple[str, int], list[Measured]]:
        engines: dict[str, Callable[[int], Engine]] = {
            "local": lambda workers: LocalEngine(Options(device="cpu"), workers),
            "ray": lambda workers: OnRay(Options(device="cpu", workers=workers), address),
        }
        measured: dict[tuple[str, int], list[Measured]] = {}
        for number in range(given.repetitions):
            for name, engine in engines.items():
                for workers in given.workers:
                    sweep = measure(engine(workers), workers, given.runs)
                    measured.setdefault((name, workers), []).append(sweep)
                    print(number, name, workers, sweep, file=sys.stderr)
        return measured

    if given.address:
        measured = compare(given.address)
    else:
        with two_nodes() as address:
            measured = compare(address)
    print(f"`python benchmarks/scaling.py {' '.join(sys.argv[1:])}`".replace(" `", "`"))
    print(*table(measured), sep="\n")


if __name__ == "__main__":
    main()
