"""How often the board's statistics are wrong where nothing differs, by simulation.

``python benchmarks/sureness.py`` draws normal accuracies: how often an interval of `bca` holds the
mean, how many tables of equally good systems have a pair that is told apart, how often a difference
is seen that a t test would show in four of five cases, and how many honest replays contest an
entry. A replay has the cells of a closed entry: the ranking stage and two of the development stage,
whose accuracies come out differently by normal noise of so many points. About half a minute.
"""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path

import numpy as np

from fedbench.leaderboard.rank import surely_better
from fedbench.leaderboard.replays import DRAWN, apart
from fedbench.leaderboard.resampling import bca, detectable, probability
from fedbench.leaderboard.rules import newest

RULES = newest(Path("leaderboards"))
SEEDS = RULES.ranking_seeds
CELLS = [SEEDS] * (1 + RULES.worst) + [RULES.seeds] * DRAWN  # with the clean run
LEVEL = 1 - RULES.confidence


def covered(rng: np.random.Generator, n: int, trials: int) -> float:
    """Return the share of intervals that hold the mean of what is drawn."""
    ends = [bca(rng.normal(0, 1, n).tolist(), RULES.confidence) for _ in range(trials)]
    return float(np.mean([low <= 0 <= high for low, high in ends]))


def told_apart(rng: np.random.Generator, systems: int, trials: int) -> float:
    """Return the share of tables of equally good systems with a pair that is surely different."""
    drawn = rng.normal(0, 1, (trials, systems, SEEDS)).tolist()
    tables = [{i: dict(enumerate(row)) for i, row in enumerate(table)} for table in drawn]
    return float(np.mean([bool(surely_better(table, LEVEL)) for table in tables]))


def seen(rng: np.random.Generator, pairs: int, trials: int) -> float:
    """Return how often the first step of Holm's correction sees a `detectable` difference."""
    level = LEVEL / pairs
    drawn = rng.normal(detectable(1.0, SEEDS, level), 1, (trials, SEEDS)).tolist()
    return float(np.mean([probability(lost) < level for lost in drawn]))


def contested(rng: np.random.Generator, noise: float, trials: int) -> float:
    """Return the share of honest replays with a cell that is far and surely different."""
    wrong = 0
    for _ in range(trials):
        lost = {i: rng.normal(0, noise / 100, n).tolist() for i, n in enumerate(CELLS)}
        wrong += bool(apart(lost, RULES.tolerance))
    return wrong / trials


def main() -> None:
    """Print the shares as Markdown."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=1000)
    trials = parser.parse_args().trials
    rng = np.random.default_rng(0)
    print("| | share of trials, % |\n| :-- | --: |")
    for n in (RULES.seeds, SEEDS):
        print(
            f"| a BCa interval of {n} seeds holds the mean | {100 * covered(rng, n, trials):.1f} |"
        )
    for systems in (3, 5, 10):
        share = 100 * told_apart(rng, systems, trials)
        print(f"| of {systems} equal systems two are told apart | {share:.1f} |", flush=True)
    for pairs in (1, 36, 45):  # of two, nine and ten systems
        share = 100 * seen(rng, pairs, trials)
        print(f"| a detectable difference is seen, {pairs} pairs | {share:.1f} |", flush=True)
    for noise in (1.0, 3.0, 5.0, 10.0):
        share = 100 * contested(rng, noise, trials)
        print(f"| an honest replay contests, noise of {noise:g} points | {share:.1f} |", flush=True)


if __name__ == "__main__":
    main()
