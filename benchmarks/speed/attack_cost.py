"""Cost of attacks: the adversary's seconds as a share of what the rest of a round takes.

``python benchmarks/speed/attack_cost.py -p fedavg -a alie`` prints Markdown: %, median over the
rounds, with the least and the most, and ``!`` for an attack over its budget. The budget is 15 % for
an attack that reads what is there anyway, 50 % for one that asks the server's rule, and none for
one that trains. Combinations that do not fit are left out.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from fedbench.core import registry
from fedbench.core.errors import Incompatible
from fedbench.executors.malloc import keep_memory
from fedbench.experiment.prepare import prepare
from fedbench.experiment.scenario import Scenario
from fedbench.run import begin, play_round

PROTOCOLS = ("fedavg", "signsgd", "fedpm", "fsl")
PLAIN, SEARCH = 0.15, 0.5  # budgets: of who reads what is there anyway, and of who asks the rule
HEAD = ("system", "attack", "round, s", "%", "from", "to", "budget")


@dataclass(frozen=True)
class Cost:
    """Cost of one attack on one protocol.

    Args:
        seconds: Median seconds of a round without the adversary's part.
        shares: The adversary's seconds over the others, each round.
        budget: The most that the median share should be; None for an attack that trains.
    """

    seconds: float
    shares: tuple[float, ...]
    budget: float | None

    @property
    def share(self) -> float:
        """Median over the rounds."""
        return statistics.median(self.shares)

    @property
    def within(self) -> bool:
        """True if it is no more than the budget, where there is one."""
        return self.budget is None or self.share <= self.budget


def measure(scenario: Scenario, rounds: int, device: str = "auto") -> Cost:
    """Play one round to warm up, then so many that count; nobody looks at test data.

    Raises:
        Incompatible: the attack does not fit the protocol.
        ConfigError: anything that the scenario names cannot be had.
    """
    last = rounds + 2
    setup = prepare(scenario.model_copy(update={"rounds": last, "eval_every": last}), device)
    state = begin(setup)
    others, shares = [], []
    for step in range(rounds + 1):
        start = time.perf_counter()
        before = state.attack_seconds
        played = play_round(setup, state, step)
        adversary = state.attack_seconds - before
        rest = time.perf_counter() - start - adversary
        if step and played.malicious:
            others.append(rest)
            shares.append(adversary / rest)
    attack = setup.plugins.attack
    budget = None if attack.trains else SEARCH if attack.needs().defense else PLAIN
    return Cost(statistics.median(others), tuple(shares), budget)


def play(
    scenario: Scenario,
    protocols: Sequence[str],
    attacks: Sequence[str],
    defenses: Sequence[str],
    rounds: int,
    device: str = "auto",
) -> Iterator[tuple[Scenario, Cost]]:
    """Measure every combination that fits; no ``attacks`` stands for every installed one."""
    names = attacks or [name for name in registry.names("attack") if name != "none"]
    for protocol in protocols:
        for defense in defenses:
            for attack in names:
                fields = {"protocol": protocol, "defense": defense, "attack": attack}
                system = Scenario.of(**(scenario.model_dump() | fields))
                print(f"{protocol} + {defense} / {attack}", file=sys.stderr)
                try:
                    yield system, measure(system, rounds, device)
                except Incompatible:
                    continue


def row(system: Scenario, cost: Cost) -> list[str]:
    """Return the cells of a line."""
    shares = [f"{100 * share:.1f}" for share in (cost.share, min(cost.shares), max(cost.shares))]
    budget = "trains" if cost.budget is None else f"{100 * cost.budget:g}"
    names = [f"{system.protocol} + {system.defense}", system.attack]
    return [*names, f"{cost.seconds:.2f}", *shares, budget + ("" if cost.within else " !")]


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-p", "--protocol", action="append", help=f"default: {PROTOCOLS}")
    parser.add_argument("-a", "--attack", action="append", help="default: all that fit")
    parser.add_argument("-d", "--defense", action="append", help="default: the protocol's own")
    parser.add_argument("--model", default="lenet")
    parser.add_argument("--dataset", default="digits")
    parser.add_argument("--per-round", type=int, default=25, help="clients, of twice as many")
    parser.add_argument("--malicious", type=float, default=0.2)
    parser.add_argument("--rounds", type=int, default=3, help="that count")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--threads", type=int, default=2, help="of torch, on a CPU")
    given = parser.parse_args(words)
    scenario = Scenario.of(
        dataset=given.dataset,
        model=given.model,
        clients=2 * given.per_round,
        per_round=given.per_round,
        malicious=given.malicious,
    )
    keep_memory()
    torch.set_num_threads(given.threads)
    choice = (given.protocol or PROTOCOLS, given.attack or [], given.defense or ["own"])
    print("| " + " | ".join(HEAD) + " |\n|" + " --- |" * 2 + " ---: |" * 5)
    for system, cost in play(scenario, *choice, given.rounds, given.device):
        print("| " + " | ".join(row(system, cost)) + " |", flush=True)


if __name__ == "__main__":
    main()
