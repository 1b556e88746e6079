"""Attack that plans over rounds, beside `auto`, which looks at the next one.

``python benchmarks/planned.py`` plays FedAvg behind some rules, on `digits` with 20 % malicious
clients, under ``auto`` and under the planner, and prints the mean accuracy of the last five of 20
rounds in percent, and that of the last one. The results are in docs/results/adaptive.md.

The planner adds the same push to the model in each of the next rounds, lets honest clients train in
between (gradient descent on its own clients' samples, as far as the model moves in this round),
and climbs on the loss at the end. It plans anew in each round, and no farther than to the last, if
it knows which that is. Of its push it sends the strength at which the rule's answer goes farthest
along it.

It uses what an `AttackView` shows, and so could be a plug-in: the gradient goes back through the
training by differences of gradients (`gradient_of_push`). It takes about 140 of them in a round,
where ``auto`` takes 6.
"""

import argparse
import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import fedbench
from fedbench.api import AttackView
from fedbench.payload import Payload
from fedbench.tables.numbers import counted
from fedbench_attacks.auto import Auto, Past, Rehearsed, Tried
from fedbench_attacks.crafted import honest_rows, unit

STEPS = 3  # of gradient descent that stand for the honest training of a round
CLIMBS = 6  # gradients through all rounds, in each round
PROBE = 1e-3  # length of a difference of weights, relative to theirs
SCENARIO: dict[str, Any] = {
    "dataset": "digits",
    "partition": "dirichlet:beta=0.3",
    "clients": 20,
    "per_round": 10,
    "cohorts": "stratified",
    "malicious": 0.2,
    "eval_every": 1,
}
Slope = Callable[[Tensor], Tensor]


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


@dataclass(frozen=True, kw_only=True)
class Planned(Auto):
    """Push of the mean that leaves the highest loss after ``ahead`` rounds, this one included.

    Args:
        ahead: Rounds that it simulates.
        last: Number of rounds of the run, 0 if it does not know that.
    """

    ahead: int = 4
    last: int = 0

    def craft(self, view: AttackView, memory: Any) -> tuple[Payload, Any]:
        """Plan anew, and send the push as far as the rule lets it go."""
        honest = honest_rows(view)
        if honest is None:
            return view.own, memory
        past = memory or Past()
        rehearsed = Rehearsed(self, view, honest, past)
        rounds = min(self.ahead, self.last - view.step) if self.last else self.ahead
        push = planned(rehearsed, past.memories, rounds)
        best = farthest(rehearsed, push)
        past.memories["push"] = push
        moved = float(torch.linalg.vector_norm(best.answer - rehearsed.neutral.answer))
        past.memories["reach"] = moved or past.memories.get("reach")
        return best.sent, past


def planned(rehearsed: Rehearsed, memory: dict[str, Any], rounds: int) -> Tensor:
    """Return the direction ``(d,)`` that leaves the highest loss after so many rounds."""
    view = rehearsed.view
    assert view.rehearsal is not None
    names = view.rehearsal.names
    received = view.ahead()

    def flat(tree: dict[str, Tensor]) -> Tensor:
        return torch.cat([tree[name].reshape(-1) for name in names])

    def tree(w: Tensor) -> dict[str, Tensor]:
        parts = torch.split(w, [received[name].numel() for name in names])
        shaped = {n: x.reshape(received[n].shape) for n, x in zip(names, parts, strict=True)}
        return received | shaped

    def slope(w: Tensor) -> Tensor:
        return view.gradient(tree(w), rehearsed.x, rehearsed.y).nan_to_num(0.0, 0.0, 0.0)

    before = flat(received)
    start = flat(view.ahead(rehearsed.neutral.answer))
    rate = learning_rate(slope, before, float(torch.linalg.vector_norm(start - before)))
    # How far a push can move the answer: in the first round a share of an honest row's distance.
    reach = memory.get("reach") or len(view.own) / view.n * rehearsed.origins[0].size
    push = unit(memory.get("push", rehearsed.gradient))
    best = push
    highest = -math.inf
    for climb in range(CLIMBS):
        step = push * reach
        w = start + step
        path = []
        for _ in range(rounds - 1):
            for _ in range(STEPS):
                g = slope(w)
                path.append((w, g))
                w = w - rate * g
            w = w + step
        loss = float(view.loss(tree(w), rehearsed.x, rehearsed.y).mean())
        if loss > highest:
            highest = loss
            best = push
        up = unit(gradient_of_push(slope, slope(w), path, rate))
        push = unit(push + 2 * up) if climb else up
    return best


def gradient_of_push(
    slope: Slope, last: Tensor, path: list[tuple[Tensor, Tensor]], rate: float
) -> Tensor:
    """Return the gradient ``(d,)`` of the last loss in the push that is added in every round.

    It goes back through a step ``w - rate g(w)`` by ``a - rate H a``, and ``H a`` is about
    ``(g(w + e a) - g(w)) / e``; the difference in Liu, Simonyan and Yang, "DARTS", ICLR 2019,
    https://arxiv.org/abs/1806.09055, equation 8, is central and costs one gradient more.

    Args:
        slope: Gradient ``(d,)`` of the loss at weights ``(d,)``.
        last: Gradient ``(d,)`` at the last weights.
        path: Weights before each honest step, and the gradient there; `STEPS` in each round.
        rate: Learning rate of these steps.
    """
    back = last
    total = last
    for i, (w, g) in enumerate(reversed(path), start=1):
        size = float(torch.linalg.vector_norm(back))
        if not 0 < size < math.inf:
            break
        probe = PROBE * float(torch.linalg.vector_norm(w)) / size
        back = back - rate * (slope(w + probe * back) - g) / probe
        if i % STEPS == 0:
            total = total + back
    return total.nan_to_num(0.0, 0.0, 0.0)


def learning_rate(slope: Slope, before: Tensor, length: float) -> float:
    """Return the rate in [0.001, 1] with which the steps of a round move weights by a length."""
    low, high = 1e-3, 1.0
    for _ in range(7):
        middle = math.sqrt(low * high)
        w = before
        for _ in range(STEPS):
            w = w - middle * slope(w)
        if float(torch.linalg.vector_norm(w - before)) < length:
            low = middle
        else:
            high = middle
    return low


def farthest(rehearsed: Rehearsed, direction: Tensor) -> Tried:
    """Return the push of which the rule's answer goes farthest along the direction."""
    origin = rehearsed.origins[0]
    best = rehearsed.neutral
    distance = 0.0
    for strength in [2.0**i for i in range(-3, 13)]:
        row = origin.base + strength * origin.size * direction
        tried = rehearsed.rate(f"push x {strength:g}", origin.send(row))
        along = float((tried.answer - rehearsed.neutral.answer).double() @ direction.double())
        if math.isfinite(tried.loss) and along > 1.01 * distance:
            distance = along
            best = tried
    return best


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
    rules = ["centered-clipping", "norm-bound", "geometric-median"]
    rules += ["trimmed-mean:f=2", "median", "multi-krum:f=2"]
    parser.add_argument("-d", "--defense", nargs="+", default=rules)
    parser.add_argument("--ahead", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(6)))
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--model", help="a model of fedbench; without it 64-64-10 with ReLU")
    options = parser.parse_args()
    attacks: dict[str, Auto | str] = {"none": "none", "auto": "auto"}
    for k in options.ahead:
        attacks[f"planned, {counted(k, 'round')}"] = Planned(ahead=k, last=options.rounds)
    attacks[f"planned, {counted(k, 'round')}, end unknown"] = Planned(ahead=k)
    seeds = [f"seed {seed}" for seed in options.seeds]
    table = Table("rule", "attack", *seeds, "mean", "last", "mean - auto", "last - auto")
    for defense in options.defense:
        auto: list[list[float]] = []
        for name, attack in attacks.items():
            scenario = {"defense": defense, "attack": attack, "rounds": options.rounds}
            scenario["model"] = options.model or Perceptron
            cells = [played(scenario | {"seed": seed}) for seed in options.seeds]
            both = [list(percents) for percents in zip(*cells, strict=True)]
            row = [f"{mean:.1f} ({last:.1f})" for mean, last in cells]
            row += [spread(percents) for percents in both]
            if name == "auto":
                auto = both
            elif auto:
                row += [against(*pair) for pair in zip(both, auto, strict=True)]
            table.add_row(defense, name, *row)
    Console().print(table)


if __name__ == "__main__":
    main()
