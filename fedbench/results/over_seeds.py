"""Cells of a store: runs that differ in nothing but the seed, as one."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from fedbench.results.fields import ADVERSARY, CELL, CODE, NAMES, SETTINGS, Entry
from fedbench.results.statistics import interval

_FIRST = ("dataset", "model", "partition", "protocol", "mechanism", "defense")
DESCRIBED = (*_FIRST, *SETTINGS)  # what is attacked
SYSTEM = (*DESCRIBED, *CODE)
SAME = (*NAMES, *SETTINGS, *CODE)
MEANS = (
    *("accuracy", "loss", "worst_client", "local_accuracy", "uplink_bits", "entropy_bits"),
    *("downlink_bits", "total_bits", "model_bits", "sparsity", "seconds"),
    *("validation_accuracy", "success", "attack_seconds"),
    *("true_positive_rate", "false_positive_rate"),
)
SUMS = ("malicious_messages", "rejected_honest", "rejected_malicious", "skipped_rounds", "queries")
INTERVAL = ("accuracy_low", "accuracy_high")


_DESCRIBED = itemgetter(*DESCRIBED)
_SYSTEM = itemgetter(*SYSTEM)
# One clean run is of every system that differs only in what the adversary may see, and when.
_DEFENDED = itemgetter(*(name for name in SYSTEM if name not in ADVERSARY))
_SAME = itemgetter(*SAME)


def place(entry: Entry) -> list[tuple[bool, Any]]:
    """Where an entry stands by default: by system, no mechanism and no attack first."""
    data_seed = entry["data_seed"] if "seeds" in entry else None  # of runs, the seeds stand last
    system = (*_DESCRIBED(entry), entry.get("code"), entry.get("device"), data_seed)
    last = (entry["attack"], entry.get("seed"), entry.get("file"))
    values = ("" if value == "none" else value for value in (*system, *last))
    return [(value is not None, value) for value in values]


@dataclass(frozen=True, eq=False)
class _Cell:
    """A cell with the runs that it is made of.

    Args:
        entry: Its fields.
        runs: By seed.
    """

    entry: Entry
    runs: dict[int, Entry]

    def impact(self, clean: _Cell) -> float | None:
        """Clean minus attacked accuracy, over the seeds that both have."""
        seeds = [seed for seed in self.runs if seed in clean.runs]
        pairs = [clean.runs[seed]["accuracy"] - self.runs[seed]["accuracy"] for seed in seeds]
        return statistics.fmean(pairs) if pairs else None


def cells(runs: Sequence[Entry], intervals: bool = True) -> tuple[list[Entry], int]:
    """The cells of the runs, and how many runs repeat a seed of their cell.

    Runs of other code or another device are of other cells. Data is dealt anew for every seed,
    unless two seeds share one ``data_seed``. Everything else is as in `fedbench.results.summary`.

    Args:
        runs: Of two with the same cell and seed, which only the code of somebody's own plug-in can
            tell apart, the later one counts.
        intervals: Also those of the accuracy, which take time to import.
    """
    dealt: dict[tuple[Any, ...], dict[int, Entry]] = {}
    for run in runs:
        dealt.setdefault((*_SAME(run), run["data_seed"]), {})[run["seed"]] = run
    repeated = len(runs) - sum(map(len, dealt.values()))
    found: dict[tuple[Any, ...], dict[int, Entry]] = {}
    for (*same, data_seed), seeds in dealt.items():
        anew = data_seed is None or list(seeds) == [data_seed]
        found.setdefault((*same, None if anew else data_seed), {}).update(seeds)
    made = [_Cell(_entry(seeds, key[-1], intervals), seeds) for key, seeds in found.items()]
    _compare(made)
    return [{name: cell.entry[name] for name in CELL} for cell in made], repeated


def _entry(seeds: dict[int, Entry], data_seed: int | None, intervals: bool) -> Entry:
    runs = list(seeds.values())
    several = (*MEANS, *SUMS, "epsilon", "peak_memory_mib")
    measured = {name: [run[name] for run in runs if run[name] is not None] for name in several}
    low, high = (intervals and interval(measured["accuracy"])) or (None, None)
    prices = measured["epsilon"]
    return {
        **{name: runs[0][name] for name in (*SAME, "unit", "parameters")},
        **{name: statistics.fmean(measured[name]) if measured[name] else None for name in MEANS},
        **{name: sum(measured[name]) if measured[name] else None for name in SUMS},
        "data_seed": data_seed,
        "seeds": len(runs),
        "accuracy_low": low,
        "accuracy_high": high,
        "accuracy_std": statistics.stdev(measured["accuracy"]) if len(runs) > 1 else None,
        "epsilon": max(prices) if len(prices) == len(runs) else None,
        "flags": list(dict.fromkeys(flag for run in runs for flag in run["flags"])),
        "peak_memory_mib": max(measured["peak_memory_mib"]),
        "clean": None,
        "impact": None,
        "worst": False,
    }


def _compare(made: Sequence[_Cell]) -> None:
    """Set each cell beside the clean one of its system, and mark the worst attack of each."""
    systems: dict[tuple[Any, ...], list[_Cell]] = {}
    clean: dict[tuple[Any, ...], _Cell] = {}
    for cell in made:
        key = (*_SYSTEM(cell.entry), cell.entry["data_seed"])
        systems.setdefault(key, []).append(cell)
        if cell.entry["attack"] == "none":
            clean[(*_DEFENDED(cell.entry), cell.entry["data_seed"])] = cell
    for cell in made:
        found = clean.get((*_DEFENDED(cell.entry), cell.entry["data_seed"]))
        if found is not None:
            cell.entry["clean"] = found.entry["accuracy"]
            cell.entry["impact"] = None if cell is found else cell.impact(found)
    for group in systems.values():
        attacked = [cell for cell in group if cell.entry["attack"] != "none"]
        began = [
            cell.entry for cell in attacked if cell.entry["attack_from"] < cell.entry["rounds"]
        ]
        played = [entry for entry in began if entry["malicious_messages"]]
        if played:
            min(played, key=itemgetter("accuracy", "attack"))["worst"] = True
