"""How often the board's statistics are wrong where nothing differs, by simulation.

``python benchmarks/sureness.py`` draws normal accuracies: how often an interval of `bca` holds the
mean, how many tables of equally good systems have a pair that is told apart, how often a difference
is seen that a t test would show in four of five cases, and how many honest replays contest an
entry. A replay has the cells of a closed entry: the ranking stage and two of the development stage,
whose accuracies come out differently by normal noise of so many points.

Then it tries what the statistics do not hold for: seeds of which few collapse, the lowest of three
attacks against a single one, the leader of a close table, and a forger who repairs whole seeds.
About a minute.
"""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedbench.leaderboard.rank import surely_better
from fedbench.leaderboard.replays import DRAWN_CELLS, differing_cells
from fedbench.leaderboard.resampling import bca, chances, detectable, probability
from fedbench.leaderboard.rules import newest

RULES = newest(Path("leaderboards"))
SEEDS = RULES.ranking_seeds
CELLS = [SEEDS] * (1 + RULES.worst) + [RULES.seeds] * DRAWN_CELLS  # with the clean run
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
        wrong += bool(differing_cells(lost, RULES.tolerance))
    return wrong / trials


def collapsing(rng: np.random.Generator, share: float, n: int) -> NDArray[np.float64]:
    """Return accuracies around 0.9, of which some seeds fall to 0.3, less their mean."""
    falls = rng.random(n) < share
    return np.where(falls, -0.6, 0.0) + 0.6 * share + rng.normal(0, 0.005, n)


def covered_collapses(rng: np.random.Generator, share: float, trials: int) -> float:
    """Return the share of intervals that hold the mean where few seeds collapse."""
    drawn = [collapsing(rng, share, SEEDS).tolist() for _ in range(trials)]
    ends = [bca(values, RULES.confidence) for values in drawn]
    return float(np.mean([low <= 0 <= high for low, high in ends]))


def told_from_steady(rng: np.random.Generator, share: float, trials: int) -> float:
    """Return how often a system with collapses is told from a steady one of the same mean."""
    steady = rng.normal(0, 0.005, (trials, SEEDS))
    lost = [collapsing(rng, share, SEEDS) - row for row in steady]
    return float(np.mean([probability(row.tolist()) < LEVEL for row in lost]))


def told_from_one_attack(rng: np.random.Generator, trials: int) -> float:
    """Return how often a system with three equal attacks is told from one with a single one."""
    attacks = rng.normal(0, 1, (trials, RULES.worst, SEEDS))
    lowest = [cells[cells.mean(axis=1).argmin()] for cells in attacks]
    lost = np.stack(lowest) - rng.normal(0, 1, (trials, SEEDS))
    return float(np.mean([probability(row) < LEVEL for row in lost.tolist()]))


def best_of_close(rng: np.random.Generator, trials: int) -> tuple[float, float]:
    """Return how likely it was said to be that a leader is the best, and how often it was.

    Five systems whose true means differ by 0.5 points, seeds by 3, three attacks each; the tables
    that are counted give their leader at least one half.
    """
    leaders = []
    for _ in range(trials):
        means = rng.normal(0, 0.5, (5, RULES.worst))
        drawn = means[..., None] + rng.normal(0, 3, (5, RULES.worst, SEEDS))
        shares = chances(drawn.tolist())
        leader = int(np.argmax(shares))
        if shares[leader] >= 0.5:
            leaders.append((shares[leader], leader == means.min(axis=1).argmax()))
    claimed, true = np.mean(leaders, axis=0)
    return float(claimed), float(true)


def repaired() -> int:
    """Return how many seeds of a cell can be raised by 40 points without a contest."""
    cells = {i: [0.0] * n for i, n in enumerate(CELLS)}
    raised = ([0.4] * k + [0.0] * (SEEDS - k) for k in range(SEEDS + 1))
    return [bool(differing_cells(cells | {1: lost}, RULES.tolerance)) for lost in raised].index(
        True
    ) - 1


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
    for rare in (0.05, 0.1, 0.2):
        share = 100 * told_from_steady(rng, rare, trials)
        print(
            f"| one that collapses in {rare:.0%} of seeds is told from a steady one | {share:.1f} |"
        )
    share = 100 * covered_collapses(rng, 0.1, trials)
    print(f"| a BCa interval of {SEEDS} seeds holds the mean, 10% collapse | {share:.1f} |")
    share = 100 * told_from_one_attack(rng, trials)
    print(f"| three equal attacks are told from a single one as bad | {share:.1f} |", flush=True)
    claimed, true = best_of_close(rng, trials)
    print(f"| a leader of a close table is the best, said {100 * claimed:.0f} | {100 * true:.0f} |")
    print(f"\nSeeds of {SEEDS} that can be raised by 40 points without a contest: {repaired()}")


if __name__ == "__main__":
    main()
