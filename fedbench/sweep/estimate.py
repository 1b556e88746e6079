"""How long a sweep will take, from a few rounds of some of its cells."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fedbench.core import registry
from fedbench.experiment.cells import Cell, Run
from fedbench.sweep.local import Options


@dataclass(frozen=True)
class Speed:
    """What a probe measured, in seconds.

    Args:
        start: Until the first round begins: data, partition, network.
        round: Of a round, with a look at the test data.
    """

    start: float
    round: float

    def run(self, cell: Cell) -> float:
        """Of a whole run."""
        return self.start + self.round * cell.scenario.rounds


@dataclass(frozen=True)
class Estimate:
    """What is known before a sweep.

    Args:
        seconds: Of all runs, one after the other; None if no probe could be played.
        probed: Cells that were probed.
        cells: Of the sweep.
    """

    seconds: float | None
    probed: int
    cells: int


def estimate(runs: Sequence[Run], options: Options, budget: float = 20.0) -> Estimate:
    """Probe cells for about ``budget`` seconds, those first that differ most from what is known.

    A probe is two rounds in this process, the second of which is timed. A cell that was not probed
    takes as long as those that share most of its plug-ins, data set and model.
    """
    import torch

    from fedbench.executors.malloc import keep_memory

    keep_memory()
    torch.set_num_threads(options.threads)  # as in a worker
    cells = list(dict.fromkeys(run.cell for run in runs))
    known: dict[Cell, Speed] = {}
    _probe(cells[0], options)  # the first one loads libraries and data
    end = time.monotonic() + budget
    for cell in _by_novelty(cells):
        if known and time.monotonic() > end:
            break
        speed = _probe(cell, options)
        if speed is not None:
            known[cell] = speed
    if not known:
        return Estimate(None, 0, len(cells))
    each = {cell: _nearest(cell, known).run(cell) for cell in cells}
    total = sum(each[run.cell] for run in runs)
    return Estimate(total, len(known), len(cells))


def _probe(cell: Cell, options: Options) -> Speed | None:
    """None if the cell cannot be played: the sweep will say why."""
    from fedbench.run import play

    scenario = cell.scenario.model_copy(update={"rounds": 2, "eval_every": 1})
    times = [time.perf_counter()]
    try:
        play(
            scenario,
            device=options.device,
            executor=options.executor,
            chunk=options.chunk,
            progress=lambda _: times.append(time.perf_counter()),
        )
    except Exception:  # of a plug-in, which is foreign code
        return None
    begin, first, second = times
    return Speed(max(0.0, first - begin - (second - first)), second - first)


def _traits(cell: Cell) -> list[str]:
    """What a run's time depends on."""
    scenario = cell.scenario
    texts = (scenario.protocol, scenario.attack, scenario.defense, scenario.mechanism)
    return [*(registry.split(text)[0] for text in texts), scenario.dataset, scenario.model]


def _alike(a: Cell, b: Cell) -> int:
    return sum(x == y for x, y in zip(_traits(a), _traits(b), strict=True))


def _by_novelty(cells: Sequence[Cell]) -> Iterator[Cell]:
    """Next is always the cell that is least like all before it."""
    rest = {cell: 0 for cell in cells}  # the most that it has in common with one before it
    while rest:
        cell = min(rest, key=lambda one: rest[one])
        del rest[cell]
        yield cell
        rest = {other: max(most, _alike(cell, other)) for other, most in rest.items()}


def _nearest(cell: Cell, known: dict[Cell, Speed]) -> Speed:
    """Mean over the probes that have most in common with the cell."""
    likeness = {other: _alike(cell, other) for other in known}
    most = max(likeness.values())
    speeds = [known[other] for other, alike in likeness.items() if alike == most]
    return Speed(
        statistics.fmean(speed.start for speed in speeds),
        statistics.fmean(speed.round for speed in speeds),
    )
