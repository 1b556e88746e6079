"""What isolation costs: milliseconds of a round with and without it, and seconds of a start.

    python benchmarks/isolation.py --rounds 12

Times are medians over rounds of one run each, without the first round; a start is the time until a
process of its own has loaded a plug-in and described it.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time

import torch

from fedbench.isolation.stand_ins import Isolation
from fedbench.run import play
from fedbench.scenario import Scenario

PAIRS = (
    ("sign-flip", "mean"),
    ("sign-flip", "multi-krum"),
    ("alie", "median"),
    ("dyn-opt", "multi-krum"),
    ("opt-ipm", "geometric-median"),
)


def milliseconds(attack: str, defense: str, rounds: int, isolate: bool) -> float:
    """Median time of a round."""
    scenario = Scenario(
        model="lenet",
        clients=50,
        per_round=25,
        malicious=0.2,
        rounds=rounds,
        epochs=1,
        eval_every=rounds,
        attack=attack,
        defense=defense,
    )
    ends: list[float] = []
    play(
        scenario,
        device="cpu",
        progress=lambda done: ends.append(time.perf_counter()),
        isolate=isolate,
    )
    return 1000 * statistics.median(b - a for a, b in itertools.pairwise(ends[:-1]))


def main() -> None:
    """Print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=12)
    rounds: int = parser.parse_args().rounds
    torch.set_num_threads(1)
    start = time.perf_counter()
    with Isolation() as isolation:
        isolation.load("attack", "sign-flip")
        print(f"one process is ready after {time.perf_counter() - start:.1f} s\n")
    print("| attack | rule | ms a round | isolated |\n|---|---|---|---|")
    for attack, defense in PAIRS:
        plain, apart = (milliseconds(attack, defense, rounds, isolate) for isolate in (False, True))
        print(f"| {attack} | {defense} | {plain:.0f} | {apart:.0f} |", flush=True)


if __name__ == "__main__":
    main()
