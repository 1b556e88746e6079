"""Cost of isolation: processor time of a round with and without it, and of a start.

    python benchmarks/isolation.py --rounds 5

Processor time and not the clock, so it does not count what else the machine does: user and system
seconds of this process and of those that it starts. That of a round is the difference between a
run of ``--rounds`` and one of a single round, divided by the rounds that it has more; that of a
start is what the single round costs more with isolation, beyond a round's own difference.
"""

from __future__ import annotations

import argparse
import os

import torch

from fedbench.experiment.scenario import Scenario
from fedbench.run import play

PAIRS = (("sign-flip", "mean"), ("alie", "multi-krum"), ("opt-ipm", "median"))


def seconds(attack: str, defense: str, rounds: int, isolate: bool) -> float:
    """Processor time of a run, with the processes that it starts."""
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
    before = sum(os.times()[:4])
    play(scenario, device="cpu", executor="loop", isolate=isolate)
    return sum(os.times()[:4]) - before


def main() -> None:
    """Print a Markdown table."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--rounds", type=int, default=5)
    rounds: int = parser.parse_args().rounds
    torch.set_num_threads(1)
    seconds("sign-flip", "mean", 1, isolate=False)  # imports
    print("| attack | rule | ms a round | ms isolated | ms of the start |\n|---|---|---|---|---|")
    for attack, defense in PAIRS:
        single = [seconds(attack, defense, 1, isolate) for isolate in (False, True)]
        more = [seconds(attack, defense, rounds, isolate) for isolate in (False, True)]
        plain, apart = (1000 * (b - a) / (rounds - 1) for a, b in zip(single, more, strict=True))
        start = 1000 * (single[1] - single[0]) - (apart - plain)
        print(f"| {attack} | {defense} | {plain:.0f} | {apart:.0f} | {start:.0f} |", flush=True)


if __name__ == "__main__":
    main()
