"""`plan-ahead`, which plans over rounds, beside `auto`, which looks at the next one.

``python benchmarks/planned.py`` plays systems on `digits` with 20 % malicious clients, and prints
the mean accuracy of the last five of 20 rounds in percent, and that of the last one, under
``auto``, under ``plan-ahead`` with one round and with four, and where it does not know the end.
The results are in docs/results/adaptive.md.
"""

import argparse
import math
import statistics
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import fedbench
from fedbench.tables.numbers import counted

SCENARIO: dict[str, Any] = {
    "dataset": "digits",
    "partition": "dirichlet:beta=0.3",
    "clients": 20,
    "per_round": 10,
    "cohorts": "stratified",
    "malicious": 0.2,
    "eval_every": 1,
}
SYSTEMS = (
    *("fedavg+centered-clipping", "fedavg+norm-bound", "fedavg+geometric-median"),
    *("fedavg+trimmed-mean:f=2", "fedavg+median", "fedavg+multi-krum:f=2"),
    *("drive+median", "qsgd+centered-clipping", "topk+trimmed-mean:f=2"),
    *("ef-signsgd+geometric-median", "worker-momentum+trimmed-mean:f=2"),
    *("fedlaplace+median", "fedmog+trimmed-mean:f=2"),
)


class Perceptron(nn.Module):
    """Network of one hidden layer, 64-64-10."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(64, 64)
        self.last = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores ``(N, 10)`` of images ``(N, 1, 8, 8)``."""
        scores: Tensor = self.last(torch.relu(self.hidden(x.flatten(1))))
        return scores


def played(scenario: dict[str, Any]) -> tuple[float, float]:
    """Return the accuracy in percent, of the last five rounds and of the last."""
    rounds = fedbench.play(fedbench.Scenario(**SCENARIO, **scenario)).rounds
    accuracies = [100 * each.accuracy for each in rounds if each.accuracy is not None]
    return statistics.fmean(accuracies[-5:]), accuracies[-1]


def spread(percents: list[float]) -> str:
    """Format a mean and a sample standard deviation."""
    deviation = f" ± {statistics.stdev(percents):.1f}" if len(percents) > 1 else ""
    return f"{statistics.fmean(percents):.1f}{deviation}"


def against(percents: list[float], others: list[float]) -> str:
    """Format the mean difference to others of the same seeds, and its standard error."""
    differences = [p - o for p, o in zip(percents, others, strict=True)]
    error = statistics.stdev(differences) / math.sqrt(len(differences)) if differences[1:] else 0.0
    return f"{statistics.fmean(differences):+.1f} ± {error:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--systems", nargs="+", default=SYSTEMS, help="PROTOCOL+RULE")
    parser.add_argument("--also", nargs="*", default=[], metavar="ATTACK", help="more attacks")
    parser.add_argument("--ahead", type=int, nargs="*", default=[1, 4])
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(6)))
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--model", help="a model of fedbench; without it 64-64-10 with ReLU")
    options = parser.parse_args()
    attacks = {"none": "none", "auto": "auto"}
    for k in options.ahead:
        attacks[f"planned, {counted(k, 'round')}"] = f"plan-ahead:ahead={k},rounds={options.rounds}"
    if options.ahead and options.ahead[-1] > 1:
        k = options.ahead[-1]
        attacks[f"planned, {counted(k, 'round')}, end unknown"] = f"plan-ahead:ahead={k}"
    attacks |= {attack: attack for attack in options.also}
    seeds = [f"seed {seed}" for seed in options.seeds]
    table = Table("system", "attack", *seeds, "mean", "last", "mean - auto", "last - auto")
    for system in options.systems:
        protocol, _, defense = system.partition("+")
        auto: list[list[float]] = []
        for name, attack in attacks.items():
            scenario = {"protocol": protocol, "defense": defense, "attack": attack}
            scenario |= {"rounds": options.rounds, "model": options.model or Perceptron}
            cells = [played(scenario | {"seed": seed}) for seed in options.seeds]
            both = [list(percents) for percents in zip(*cells, strict=True)]
            row = [f"{mean:.1f} ({last:.1f})" for mean, last in cells]
            row += [spread(percents) for percents in both]
            if name == "auto":
                auto = both
            elif auto:
                row += [against(*pair) for pair in zip(both, auto, strict=True)]
            table.add_row(system, name, *row)
    Console(width=200).print(table)


if __name__ == "__main__":
    main()
