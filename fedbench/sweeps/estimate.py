"""Estimate of how long a sweep takes, from a few rounds of some of its cells."""

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import eq

from fedbench.core import registry
from fedbench.experiment.cells import Cell, Run
from fedbench.sweeps.engine import Job, play_job
from fedbench.sweeps.local import Options

Speed = tuple[float, float]  # seconds until the first round begins, and of an evaluated round
PROBED_CLIENTS = 256  # of a round of a probe, which could take as long as the run otherwise


@dataclass(frozen=True)
class Estimate:
    """Estimated duration of a sweep."""

    seconds: float | None  # of all runs, one after the other; None if no probe could be played
    probed: int  # cells that were probed
    cells: int  # cells of the sweep


def estimate(runs: Sequence[Run], options: Options, budget: float = 20.0) -> Estimate:
    """Probe cells for about ``budget`` seconds, first those that differ most from probed ones.

    A cell that was not probed takes as long as those that share most of its plug-ins and data.
    """
    import torch

    from fedbench.executors.malloc import keep_memory

    keep_memory()
    torch.set_num_threads(options.threads)  # as in a worker
    cells = list(dict.fromkeys(run.cell for run in runs))
    speeds: dict[Cell, Speed] = {}
    _probe(cells[0], options)  # loads libraries and data
    end = time.monotonic() + budget
    for cell in _by_novelty(cells):
        if speeds and time.monotonic() > end:
            break
        if speed := _probe(cell, options):
            speeds[cell] = speed
    if not speeds:
        return Estimate(None, 0, len(cells))
    seconds = {cell: _expected(cell, speeds) for cell in cells}
    return Estimate(sum(seconds[run.cell] for run in runs), len(speeds), len(cells))


def _probe(cell: Cell, options: Options) -> Speed | None:
    """Measure a cell; None if it cannot be played: the sweep will say why.

    A larger cohort than `PROBED_CLIENTS` is taken to need as much more time, but for evaluations.
    """
    asked = cell.scenario.per_round
    clients = min(asked, PROBED_CLIENTS)
    changes = {"per_round": clients, "rounds": 2, "eval_every": 1}
    if clients < asked:
        changes |= {"rounds": 3, "eval_every": 3}  # so that the second round is not evaluated
    scenario = cell.scenario.model_copy(update=changes)
    job = Job(scenario, options.device, options.executor, options.chunk)
    times = [time.perf_counter()]
    try:
        play_job(job, progress=lambda _: times.append(time.perf_counter()))
    except Exception:  # plug-ins are foreign code
        return None
    first, second, *third = (after - before for before, after in pairwise(times))
    evaluation = max(0.0, third[0] - second) if third else 0.0
    return max(0.0, first - second), second * asked / clients + evaluation


def _traits(cell: Cell) -> list[str]:
    """Return the parts of a scenario that a run's time depends on."""
    scenario = cell.scenario
    texts = (scenario.protocol, scenario.attack, scenario.defense, scenario.mechanism)
    return [*(registry.split(text)[0] for text in texts), scenario.dataset, scenario.model]


def _alike(a: Cell, b: Cell) -> int:
    return sum(map(eq, _traits(a), _traits(b)))


def _by_novelty(cells: Sequence[Cell]) -> Iterator[Cell]:
    """Yield cells, each time the one that is least like all before it."""
    rest = dict.fromkeys(cells, 0)  # the most that a cell has in common with one before it
    while rest:
        cell = min(rest, key=rest.__getitem__)
        del rest[cell]
        yield cell
        rest = {other: max(most, _alike(cell, other)) for other, most in rest.items()}


def _expected(cell: Cell, probed: dict[Cell, Speed]) -> float:
    """Seconds of a run, by the mean of the probes that have most in common with the cell."""
    likeness = {other: _alike(cell, other) for other in probed}
    most = max(likeness.values())
    nearest = [probed[other] for other, alike in likeness.items() if alike == most]
    starts, rounds = zip(*nearest, strict=True)
    return statistics.fmean(starts) + statistics.fmean(rounds) * cell.scenario.rounds
