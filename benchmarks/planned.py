"""Attack that plans over rounds, beside `auto`, which looks at the next one.

``python benchmarks/planned.py -d centered-clipping --ahead 1 4`` plays FedAvg behind the rules, on
`digits` with 20 % malicious clients, under ``auto`` and under the planner, and prints the mean
accuracy of the last five of 20 rounds in percent, and that of the last one. The results are in
docs/results/adaptive.md.

The planner adds the same push to the model in each of the next rounds, lets honest clients train in
between (gradient descent on its own clients' samples, as far as the model moves in this round),
and climbs on the loss at the end, whose gradient it takes through all of these rounds. It plans
anew in each round, and no farther than to the last. Of its push it sends the strength at which the
rule's answer goes farthest along it. This is no plug-in: the gradient goes through FedAvg and this
network, which no `AttackView` lets it do in general.
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
from torch.func import functional_call
from torch.nn.functional import cross_entropy

import fedbench
from fedbench.api import AttackView
from fedbench.payload import Payload
from fedbench_attacks.auto import Auto, Past, Rehearsed, Tried
from fedbench_attacks.crafted import honest_rows, unit

ROUNDS = 20
STEPS = 3  # of gradient descent that stand for the honest training of a round
CLIMBS = 6  # gradients through all rounds, in each round
SCENARIO: dict[str, Any] = {
    "dataset": "digits",
    "partition": "dirichlet:beta=0.3",
    "clients": 20,
    "per_round": 10,
    "cohorts": "stratified",
    "malicious": 0.2,
    "rounds": ROUNDS,
    "eval_every": 1,
}


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
    """Push of the mean that leaves the highest loss after ``ahead`` rounds, this one included."""

    ahead: int = 4

    def craft(self, view: AttackView, memory: Any) -> tuple[Payload, Any]:
        """Plan anew, and send the push as far as the rule lets it go."""
        honest = honest_rows(view)
        if honest is None:
            return view.own, memory
        past = memory or Past()
        rehearsed = Rehearsed(self, view, honest, past)
        rounds = min(self.ahead, ROUNDS - view.step)
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
    network = Perceptron()

    def flat(tree: dict[str, Tensor]) -> Tensor:
        return torch.cat([tree[name].reshape(-1) for name in names]).detach()

    def loss(w: Tensor) -> Tensor:
        parts = torch.split(w, [received[name].numel() for name in names])
        named = {n: x.reshape(received[n].shape) for n, x in zip(names, parts, strict=True)}
        return cross_entropy(functional_call(network, named, (rehearsed.x,)), rehearsed.y)

    before = flat(received)
    start = flat(view.ahead(rehearsed.neutral.answer))
    lr = learning_rate(loss, before, float(torch.linalg.vector_norm(start - before)))
    # How far a push can move the answer: in the first round a share of an honest row's distance.
    reach = memory.get("reach") or len(view.own) / view.n * rehearsed.origins[0].size
    push = unit(memory.get("push", rehearsed.gradient))
    best = push
    highest = -math.inf
    for climb in range(CLIMBS):
        step = (unit(push) * reach).detach().requires_grad_()
        w = start + step
        for _ in range(rounds - 1):
            w = trained(loss, w, lr, through=True) + step
        end = loss(w)
        if float(end.detach()) > highest:
            highest = float(end.detach())
            best = step.detach()
        g = unit(torch.autograd.grad(end, step)[0].nan_to_num(0.0, 0.0, 0.0))
        push = unit(unit(push) + 2 * g) if climb else g
    return unit(best)


def trained(loss: Callable[[Tensor], Tensor], w: Tensor, lr: float, through: bool) -> Tensor:
    """Return the weights after the steps of a round; ``through`` them a gradient can be taken."""
    for _ in range(STEPS):
        at = w if w.requires_grad else w.detach().requires_grad_()
        (g,) = torch.autograd.grad(loss(at), at, create_graph=through)
        w = w - lr * g
    return w


def learning_rate(loss: Callable[[Tensor], Tensor], w: Tensor, length: float) -> float:
    """Return the rate in [0.001, 1] with which the steps of a round move ``w`` by a length."""
    low, high = 1e-3, 1.0
    for _ in range(7):
        middle = math.sqrt(low * high)
        moved = torch.linalg.vector_norm(trained(loss, w, middle, through=False) - w)
        if float(moved) < length:
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


def accuracies(defense: str, attack: Auto | str, seed: int) -> tuple[float, float]:
    """Return the accuracy in percent, of the last five rounds and of the last."""
    scenario = fedbench.Scenario(
        **SCENARIO, model=Perceptron, defense=defense, attack=attack, seed=seed
    )
    rounds = fedbench.play(scenario).rounds
    looks = [100 * each.accuracy for each in rounds if each.accuracy is not None]
    return statistics.fmean(looks[-5:]), looks[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    rules = ["centered-clipping", "norm-bound", "median"]
    parser.add_argument("-d", "--defense", nargs="+", default=rules)
    parser.add_argument("--ahead", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options = parser.parse_args()
    attacks: dict[str, Auto | str] = {"none": "none", "auto": "auto"}
    attacks |= {f"planned, {k} rounds": Planned(ahead=k) for k in options.ahead}
    table = Table("rule", "attack", *(f"seed {seed}" for seed in options.seeds))
    for defense in options.defense:
        for name, attack in attacks.items():
            cells = [accuracies(defense, attack, seed) for seed in options.seeds]
            table.add_row(defense, name, *(f"{mean:.1f} ({last:.1f})" for mean, last in cells))
    Console().print(table)


if __name__ == "__main__":
    main()
