"""Where the clean accuracy of a track's entries can lie: the envelopes of the rules.

``python benchmarks/envelope.py leaderboards/rules/3.toml`` reads the harness's own splits, pools
everybody's training parts, and judges classifiers on the pooled test parts of benign clients:

* low: half of what the nearest class mean reaches, the mean over the track's seeds;
* high: what the best of the classifiers reaches, plus four binomial standard errors, at most 1.
"""

from __future__ import annotations

import argparse
import math
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.ensemble import ExtraTreesClassifier
from sklearn.neighbors import KNeighborsClassifier, NearestCentroid
from sklearn.svm import SVC

from fedbench.experiment.prepare import prepare
from fedbench.leaderboard.rules import Rules, Track, read_rules

LEAST = "nearest class mean"
ERRORS = 4


def classifiers(seed: int) -> dict[str, Any]:
    """Return classifiers that need no tuning; a baseline must reach half of the first one."""
    return {
        LEAST: NearestCentroid(),
        "3 nearest neighbours": KNeighborsClassifier(3),
        "support vectors (rbf, C = 10)": SVC(C=10),
        "extra trees (300)": ExtraTreesClassifier(300, random_state=seed, n_jobs=-1),
    }


def accuracies(rules: Rules, track: Track, seed: int) -> tuple[dict[str, float], int]:
    """Return the accuracy of every classifier, and the number of test samples."""
    scenario = rules.scenario(track).model_copy(update={"seed": seed})
    setup = prepare(scenario, "cpu")
    train = torch.cat(list(setup.population.train))
    test = torch.cat(setup.population.judged)
    data = setup.population.data
    x = [np.asarray(data.floats(rows).flatten(1)) for rows in (train, test)]
    y = [np.asarray(data.y[rows]) for rows in (train, test)]
    scores = {
        name: float(classifier.fit(x[0], y[0]).score(x[1], y[1]))
        for name, classifier in classifiers(seed).items()
    }
    return scores, len(test)


def envelope(rules: Rules, track: Track) -> None:
    """Print how the two ends come about."""
    runs = [accuracies(rules, track, seed) for seed in track.seeds]
    n = min(count for _, count in runs)
    means = {name: statistics.fmean(scores[name] for scores, _ in runs) for name in runs[0][0]}
    for name, mean in means.items():
        print(f"  {name:32} {mean:.4f}")
    best = max(means.values())
    error = math.sqrt(best * (1 - best) / n)
    high = min(1.0, best + ERRORS * error)
    print(f"  {n} test samples, standard error of the best {error:.4f}")
    print(f"  clean = {{ low = {means[LEAST] / 2:.3f}, high = {high:.3f} }}")


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("rules", type=Path)
    rules = read_rules(parser.parse_args().rules)
    for track in rules.track:
        print(f"{track.name}, seeds {', '.join(map(str, track.seeds))}")
        envelope(rules, track)


if __name__ == "__main__":
    main()
