"""How much two systems of one folder of records differ, over the seeds that both have.

``python benchmarks/compare.py results/masks-mini fedpm fedmask`` prints the paired differences of
accuracy, bits and sparsity, first minus second, with the 95 % t interval of their mean.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable
from pathlib import Path

from scipy.stats import t

from fedbench.core import registry
from fedbench.experiment.compatibility import resolve
from fedbench.experiment.record import Record, read

MEASURES: dict[str, Callable[[Record], float | None]] = {
    "accuracy, points": lambda r: 100 * r.result.accuracy,
    "clients' own models, points": lambda r: (
        None if r.result.local_accuracy is None else 100 * r.result.local_accuracy
    ),
    "up bits per parameter": lambda r: r.result.uplink_bits_per_parameter,
    "up bits, last round": lambda r: (
        (r.rounds[-1].benign_uplink_bits or 0)
        / (len(r.rounds[-1].clients) - r.rounds[-1].malicious)
        / r.parameters
    ),
    "down bits per parameter": lambda r: r.result.downlink_bits_per_parameter,
    "model bits per parameter": lambda r: r.result.model_bits / r.parameters,
    "zeros, points": lambda r: None if r.result.sparsity is None else 100 * r.result.sparsity,
}


def of(records: list[Record], protocol: str) -> dict[int, Record]:
    """Seed to the clean record of this protocol."""
    name = registry.split(protocol)[0]
    text = registry.describe(name, registry.load("protocol", protocol))
    return {r.scenario.seed: r for r in records if resolve(r.scenario).scenario.protocol == text}


def interval(differences: list[float]) -> tuple[float, float]:
    """Mean, and half the width of its 95 % interval.

    >>> [round(x, 2) for x in interval([1.0, 2.0, 3.0])]
    [2.0, 2.48]
    """
    n = len(differences)
    mean = statistics.fmean(differences)
    if n < 2:
        return mean, math.inf
    half = t.ppf(0.975, n - 1) * statistics.stdev(differences) / math.sqrt(n)
    return mean, float(half)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("first")
    parser.add_argument("second")
    options = parser.parse_args()
    records = [read(path) for path in sorted(options.folder.glob("*.json"))]
    first, second = of(records, options.first), of(records, options.second)
    seeds = sorted(first.keys() & second.keys())
    print(f"{options.first} minus {options.second}, seeds {', '.join(map(str, seeds)) or 'none'}")
    for name, measure in MEASURES.items():
        pairs = [(measure(first[s]), measure(second[s])) for s in seeds]
        differences = [a - b for a, b in pairs if a is not None and b is not None]
        if differences:
            mean, half = interval(differences)
            a, b = (
                statistics.fmean(x for x in side if x is not None)
                for side in zip(*pairs, strict=True)
            )
            print(f"  {name:28} {a:9.3f} {b:9.3f}   {mean:+8.3f} +- {half:.3f}")


if __name__ == "__main__":
    main()
