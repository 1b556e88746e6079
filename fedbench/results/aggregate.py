"""Aggregation of runs over seeds: means, intervals, cells of a store, and fronts of systems."""

import math
import statistics
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, TypeVar

from fedbench.experiment.measurements import MEASURED, aggregated
from fedbench.results.fields import ADVERSARY, CELL, CODE, NAMES, SETTINGS, Entry

CONFIDENCE = 0.95
Interval = tuple[float, float]
Key = TypeVar("Key", bound=Hashable)
Thing = TypeVar("Thing")

DESCRIBED = ("dataset", "model", "partition", "protocol", "mechanism", "defense", *SETTINGS)
SYSTEM = (*DESCRIBED, *CODE)
SAME = (*NAMES, *SETTINGS, *CODE)
INTERVAL = ("accuracy_low", "accuracy_high")

_DESCRIBED = itemgetter(*DESCRIBED)
_SYSTEM = itemgetter(*SYSTEM)
# One clean run serves every system that differs only in what the adversary may see, and when.
_DEFENDED = itemgetter(*(name for name in SYSTEM if name not in ADVERSARY))
_SAME = itemgetter(*SAME)


def grouped(things: Iterable[Thing], key: Callable[[Thing], Key]) -> dict[Key, list[Thing]]:
    """Group things by a key, in the order in which its values come up."""
    groups: dict[Key, list[Thing]] = {}
    for thing in things:
        groups.setdefault(key(thing), []).append(thing)
    return groups


def aggregate(runs: Sequence[Entry]) -> Entry:
    """Aggregate the measured fields of runs that differ in their seeds only.

    With them is ``accuracy_std``, the sample standard deviation, None for a single run.
    """
    entry = {m.name: aggregated(m.seeds, [run[m.name] for run in runs]) for m in MEASURED}
    accuracies = [run["accuracy"] for run in runs]
    return entry | {"accuracy_std": statistics.stdev(accuracies) if len(runs) > 1 else None}


def differences(minuends: Mapping[int, float], subtrahends: Mapping[int, float]) -> list[float]:
    """Subtract value from value for each seed that both have, in the order of the second."""
    return [minuends[seed] - x for seed, x in subtrahends.items() if seed in minuends]


def worst_by_seed(attacks: Sequence[Mapping[int, float]]) -> float | None:
    """Return the mean over seeds of the lowest accuracy of each seed, whatever the attack.

    So much is left by an adversary that chooses its attack for each run. The lowest mean, that of
    an adversary with one attack for all runs, is no less. ``attacks`` holds the accuracies of each
    attack by seed; seeds count that all attacks have, and without any there is no answer.

    >>> worst_by_seed([{0: 0.25, 1: 0.75}, {0: 1.0, 1: 0.5, 2: 0.0}])
    0.375
    """
    seeds = [seed for seed in attacks[0] if all(seed in by_seed for by_seed in attacks)]
    lowest = [min(by_seed[seed] for by_seed in attacks) for seed in seeds]
    return statistics.fmean(lowest) if lowest else None


def interval(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval | None:
    """Return Student's interval for the mean of the values; None for a single value.

    It may leave the range of what is measured: an accuracy's can end above 1.

    >>> low, high = interval([0.8, 0.9, 1.0])
    >>> round(low, 4), round(high, 4)
    (0.6516, 1.1484)
    """
    from scipy.special import stdtrit

    n = len(values)
    if n < 2:
        return None
    mean = statistics.fmean(values)
    half = float(stdtrit(n - 1, (1 + confidence) / 2)) * statistics.stdev(values) / math.sqrt(n)
    return mean - half, mean + half


def data_seeds(runs: Iterable[tuple[Key, int, int | None]]) -> list[int | None]:
    """Tell for each run which data seed its cell has: None if data is dealt anew for every seed.

    A cell has a data seed of its own if two seeds of it share one, or if a run's is another number
    than its seed. ``runs`` holds for each run what it is beside its seeds, its seed, its data seed.
    """
    runs = list(runs)
    sharing: dict[tuple[Key, int | None], set[int]] = {}
    for key, seed, data_seed in runs:
        sharing.setdefault((key, data_seed), set()).add(seed)
    return [
        None if data_seed is None or sharing[key, data_seed] == {data_seed} else data_seed
        for key, _, data_seed in runs
    ]


def place(entry: Entry) -> list[tuple[bool, Any]]:
    """Return the default sort key of an entry: by system, no mechanism and no attack first."""
    data_seed = entry["data_seed"] if "seeds" in entry else None  # of runs, the seeds stand last
    system = (*_DESCRIBED(entry), *map(entry.get, CODE), data_seed)
    last = (entry["attack"], entry.get("seed"), entry.get("file"))
    values = ("" if value == "none" else value for value in (*system, *last))
    return [(value is not None, value) for value in values]


def cells(runs: Sequence[Entry], intervals: bool = True) -> tuple[list[Entry], int]:
    """Aggregate runs to cells, and count the runs that repeat a seed of their cell.

    Runs of other code, on another device or on other data are of other cells. Data is dealt anew
    for every seed, unless two seeds share one ``data_seed``. Of two runs with the same cell and
    seed, which only the code of somebody's own plug-in can tell apart, the later one counts.
    Everything else is as in `fedbench.results.summary`. The ``intervals`` of the accuracy take time
    to import.
    """
    keys = [(_SAME(run), run["seed"], run["data_seed"]) for run in runs]
    groups: dict[tuple[Any, ...], dict[int, Entry]] = {}
    for (same, seed, _), data_seed, run in zip(keys, data_seeds(keys), runs, strict=True):
        groups.setdefault((*same, data_seed), {})[seed] = run
    made = [_cell(list(by_seed.values()), key[-1], intervals) for key, by_seed in groups.items()]
    clean = {
        (*_DEFENDED(cell), cell["data_seed"]): (cell, by_seed)
        for cell, by_seed in zip(made, groups.values(), strict=True)
        if cell["attack"] == "none"
    }
    for cell, by_seed in zip(made, groups.values(), strict=True):
        beside, its_runs = clean.get((*_DEFENDED(cell), cell["data_seed"]), (None, {}))
        if beside is not None:
            cell["clean"] = beside["accuracy"]
            lost = differences(_accuracies(its_runs), _accuracies(by_seed))
            cell["impact"] = statistics.fmean(lost) if cell is not beside and lost else None
    attacked = (
        (cell, _accuracies(its_runs))
        for cell, its_runs in zip(made, groups.values(), strict=True)
        if cell["attack"] != "none"
        and cell["attack_from"] < cell["rounds"]
        and cell["malicious_messages"]
    )
    systems = grouped(attacked, lambda pair: system_of(pair[0]))
    for group in systems.values():
        lowest = worst_by_seed([by_seed for _, by_seed in group])
        for cell, _ in group:
            cell["worst_by_seed"] = lowest
        worst, _ = min(group, key=lambda pair: (pair[0]["accuracy"], pair[0]["attack"]))
        worst["worst"] = True
    return [{name: cell[name] for name in CELL} for cell in made], repeated(runs)


def system_of(cell: Entry) -> tuple[Any, ...]:
    """Return what the cells of one system have in common, whatever the attack."""
    return (*_SYSTEM(cell), cell["data_seed"])


def lacks_seeds(system: Iterable[Entry]) -> bool:
    """Tell whether an attack on this system has fewer seeds than another one."""
    attacked = (x for x in system if x["attack"] != "none" and x["attack_from"] < x["rounds"])
    return len({entry.get("seeds") for entry in attacked}) > 1


def repeated(runs: Sequence[Entry]) -> int:
    """Count the runs that repeat a seed of their cell, see `cells`."""
    return len(runs) - len({(_SAME(run), run["seed"], run["data_seed"]) for run in runs})


def _cell(runs: Sequence[Entry], data_seed: int | None, intervals: bool) -> Entry:
    """Return the cell of these runs, which is not yet compared with other cells."""
    low, high = (intervals and interval([run["accuracy"] for run in runs])) or (None, None)
    return {
        **{name: runs[0][name] for name in SAME},
        **aggregate(runs),
        "data_seed": data_seed,
        "seeds": len(runs),
        "accuracy_low": low,
        "accuracy_high": high,
        "clean": None,
        "impact": None,
        "worst": False,
        "worst_by_seed": None,
    }


def _accuracies(runs: Mapping[int, Entry]) -> dict[int, float]:
    return {seed: run["accuracy"] for seed, run in runs.items()}


def pareto(points: Sequence[Sequence[float]]) -> list[int]:
    """Return the indices, in ascending order, of the points that no other point dominates.

    A point dominates another one if it is at least as large in every coordinate and larger in one.
    Equal points do not dominate each other. Pass costs with their sign changed.

    >>> pareto([(-2, 0.9), (-1, 0.5), (-3, 0.9), (-1, 0.4), (-2, 0.9)])
    [0, 1, 4]
    """

    def dominates(i: int, j: int) -> bool:
        pairs = list(zip(points[i], points[j], strict=True))
        return all(a >= b for a, b in pairs) and any(a > b for a, b in pairs)

    every = range(len(points))
    return [j for j in every if not any(dominates(i, j) for i in every)]
