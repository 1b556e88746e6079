"""How often the board's statistics are wrong where nothing differs, by simulation.

``python benchmarks/sureness.py`` draws normal accuracies: how often an interval of `bca` holds the
mean, how many tables of equally good systems have a pair that is told apart, and how many honest
replays contest an entry. A replay has the cells of a closed entry: four of 14 seeds and two of
five, whose accuracies come out differently by normal noise of so many points. About a minute.
"""

from __future__ import annotations

from argparse import ArgumentParser

import numpy as np

from fedbench.leaderboard.rank import surely_better
from fedbench.leaderboard.resampling import bca, holm, student

FAR, LEVEL = 2.0, 0.1  # points and level of a contest in version 3 of the rules
SEEDS, DEVELOPMENT = 14, 5
CELLS = [SEEDS] * 4 + [DEVELOPMENT] * 2


def covered(rng: np.random.Generator, n: int, trials: int) -> float:
    """Return the share of intervals that hold the mean of what is drawn."""
    ends = [bca(rng.normal(0, 1, n).tolist(), 0.95) for _ in range(trials)]
    return float(np.mean([low <= 0 <= high for low, high in ends]))


def told_apart(rng: np.random.Generator, systems: int, trials: int) -> float:
    """Return the share of tables of equally good systems with a pair that is surely different."""
    drawn = rng.normal(0, 1, (trials, systems, SEEDS)).tolist()
    tables = [{i: dict(enumerate(row)) for i, row in enumerate(table)} for table in drawn]
    return float(np.mean([bool(surely_better(table, 0.05)) for table in tables]))


def contested(rng: np.random.Generator, noise: float, trials: int) -> float:
    """Return the share of honest replays with a cell that is far and surely different."""
    wrong = 0
    for _ in range(trials):
        cells = [rng.normal(0, noise, n).tolist() for n in CELLS]
        sure = holm({i: student(lost) for i, lost in enumerate(cells)})
        wrong += any(abs(np.mean(cells[i])) > FAR and p <= LEVEL for i, p in sure.items())
    return wrong / trials


def main() -> None:
    """Print the three shares as Markdown."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=1000)
    trials = parser.parse_args().trials
    rng = np.random.default_rng(0)
    print("| | share of trials, % |\n| :-- | --: |")
    for n in (DEVELOPMENT, SEEDS):
        print(
            f"| a BCa interval of {n} seeds holds the mean | {100 * covered(rng, n, trials):.1f} |"
        )
    for systems in (3, 5, 10):
        share = 100 * told_apart(rng, systems, trials)
        print(f"| of {systems} equal systems two are told apart | {share:.1f} |", flush=True)
    for noise in (1.0, 3.0, 5.0, 10.0):
        share = 100 * contested(rng, noise, trials)
        print(f"| an honest replay contests, noise of {noise:g} points | {share:.1f} |", flush=True)


if __name__ == "__main__":
    main()
