"""Aggregation of runs over their seeds: means, intervals, and the cells of a store."""

import math
import statistics
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, TypeVar

from fedbench.experiment.measurements import MEASURED, aggregated
from fedbench.results.fields import ADVERSARY, CELL, CODE, NAMES, SETTINGS, Entry

CONFIDENCE = 0.95
Interval = tuple[float, float]
Key = TypeVar("Key", bound=Hashable)

DESCRIBED = ("dataset", "model", "partition", "protocol", "mechanism", "defense", *SETTINGS)
SYSTEM = (*DESCRIBED, *CODE)
SAME = (*NAMES, *SETTINGS, *CODE)
INTERVAL = ("accuracy_low", "accuracy_high")

_DESCRIBED = itemgetter(*DESCRIBED)
_SYSTEM = itemgetter(*SYSTEM)
# One clean run serves every system that differs only in what the adversary may see, and when.
_DEFENDED = itemgetter(*(name for name in SYSTEM if name not in ADVERSARY))
_SAME = itemgetter(*SAME)


def aggregate(runs: Sequence[Entry]) -> Entry:
    """Aggregate the measured fields of runs that differ in their seeds only.

    Returns:
        Each measured field, and ``accuracy_std``, the sample standard deviation of the accuracy,
        None for a single run.
    """
    entry = {m.name: aggregated(m.seeds, [run[m.name] for run in runs]) for m in MEASURED}
    accuracies = [run["accuracy"] for run in runs]
    return entry | {"accuracy_std": statistics.stdev(accuracies) if len(runs) > 1 else None}


def differences(minuends: Mapping[int, float], subtrahends: Mapping[int, float]) -> list[float]:
    """Subtract value from value for each seed that both have, in the order of the second."""
    return [minuends[seed] - x for seed, x in subtrahends.items() if seed in minuends]


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

    A cell has a data seed of its own if two seeds of it share one.

    Args:
        runs: What a run is beside its seeds, its seed, its data seed.
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
    system = (*_DESCRIBED(entry), entry.get("code"), entry.get("device"), data_seed)
    last = (entry["attack"], entry.get("seed"), entry.get("file"))
    values = ("" if value == "none" else value for value in (*system, *last))
    return [(value is not None, value) for value in values]


@dataclass(frozen=True, eq=False)
class _Cell:
    """A cell with the accuracies that it is made of, by seed."""

    entry: Entry
    accuracies: dict[int, float]


def cells(runs: Sequence[Entry], intervals: bool = True) -> tuple[list[Entry], int]:
    """Aggregate runs to cells, and count the runs that repeat a seed of their cell.

    Runs of other code or another device are of other cells. Data is dealt anew for every seed,
    unless two seeds share one ``data_seed``. Everything else is as in `fedbench.results.summary`.

    Args:
        runs: Of two with the same cell and seed, which only the code of somebody's own plug-in can
            tell apart, the later one counts.
        intervals: Whether to compute those of the accuracy, which take time to import.
    """
    keys = [(_SAME(run), run["seed"], run["data_seed"]) for run in runs]
    groups: dict[tuple[Any, ...], dict[int, Entry]] = {}
    for (same, seed, _), data_seed, run in zip(keys, data_seeds(keys), runs, strict=True):
        groups.setdefault((*same, data_seed), {})[seed] = run
    made = [_cell(by_seed, key[-1], intervals) for key, by_seed in groups.items()]
    _compare(made)
    repeated = len(runs) - len(set(keys))
    return [{name: cell.entry[name] for name in CELL} for cell in made], repeated


def _cell(runs: dict[int, Entry], data_seed: int | None, intervals: bool) -> _Cell:
    accuracies = {seed: run["accuracy"] for seed, run in runs.items()}
    entries = list(runs.values())
    low, high = (intervals and interval(list(accuracies.values()))) or (None, None)
    entry = {
        **{name: entries[0][name] for name in SAME},
        **aggregate(entries),
        "data_seed": data_seed,
        "seeds": len(runs),
        "accuracy_low": low,
        "accuracy_high": high,
        "clean": None,
        "impact": None,
        "worst": False,
    }
    return _Cell(entry, accuracies)


def _compare(made: Sequence[_Cell]) -> None:
    """Set each cell beside the clean one of its system, and mark the worst attack of each."""
    systems: dict[tuple[Any, ...], list[Entry]] = {}
    clean_cells: dict[tuple[Any, ...], _Cell] = {}
    for cell in made:
        systems.setdefault((*_SYSTEM(cell.entry), cell.entry["data_seed"]), []).append(cell.entry)
        if cell.entry["attack"] == "none":
            clean_cells[(*_DEFENDED(cell.entry), cell.entry["data_seed"])] = cell
    for cell in made:
        clean = clean_cells.get((*_DEFENDED(cell.entry), cell.entry["data_seed"]))
        if clean is None:
            continue
        cell.entry["clean"] = clean.entry["accuracy"]
        lost = differences(clean.accuracies, cell.accuracies)
        if cell is not clean and lost:
            cell.entry["impact"] = statistics.fmean(lost)
    for entries in systems.values():
        played = [
            entry
            for entry in entries
            if entry["attack"] != "none"
            and entry["attack_from"] < entry["rounds"]
            and entry["malicious_messages"]
        ]
        if played:
            min(played, key=itemgetter("accuracy", "attack"))["worst"] = True
