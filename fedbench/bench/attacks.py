"""What attacks cost: the adversary's time as a share of what the rest of a round takes."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from fedbench.core import registry
from fedbench.core.errors import Incompatible
from fedbench.experiment.prepare import prepare
from fedbench.experiment.scenario import Scenario
from fedbench.experiment.state import RunState
from fedbench.run import play_round

PROTOCOLS = ("fedavg", "signsgd", "fedpm", "fsl")
PLAIN, SEARCH = 0.15, 0.5  # budgets: who reads what is there anyway, and who asks the rule


@dataclass(frozen=True)
class Cost:
    """One attack on one protocol.

    Args:
        protocol: As typed.
        defense: As typed.
        attack: As typed.
        parameters: Of the network.
        clients: Of a round, n.
        malicious: Of them, on average over the rounds.
        round: Median seconds of a round without the adversary's part.
        shares: Of each round: the adversary's seconds over the others.
        budget: The most that the median share should be; None for an attack that trains.
    """

    protocol: str
    defense: str
    attack: str
    parameters: int
    clients: int
    malicious: float
    round: float
    shares: tuple[float, ...]
    budget: float | None

    @property
    def share(self) -> float:
        """Median over the rounds."""
        return statistics.median(self.shares)

    @property
    def within(self) -> bool:
        """No more than the budget, where there is one."""
        return self.budget is None or self.share <= self.budget


def measure(scenario: Scenario, rounds: int, device: str = "auto") -> Cost:
    """Play one round to warm up, then so many that count; nobody looks at test data.

    Raises:
        Incompatible: the attack does not fit the protocol.
        ConfigError: anything that the scenario names cannot be had.
    """
    last = rounds + 2
    setup = prepare(scenario.model_copy(update={"rounds": last, "eval_every": last}), device)
    state = RunState(setup.plugins.protocol.init(setup.shared), mechanism=None)
    played, shares, malicious = [], [], []
    for step in range(rounds + 1):
        start, before = time.perf_counter(), state.attack_seconds
        one = play_round(setup, state, step)
        theirs = state.attack_seconds - before
        rest = time.perf_counter() - start - theirs
        if step and one.malicious:
            played.append(rest)
            shares.append(theirs / rest)
            malicious.append(one.malicious)
    attack = setup.plugins.attack
    searches = attack.needs().defense
    return Cost(
        protocol=scenario.protocol,
        defense=scenario.defense,
        attack=scenario.attack,
        parameters=setup.shared.layout.d,
        clients=scenario.per_round,
        malicious=statistics.fmean(malicious),
        round=statistics.median(played),
        shares=tuple(shares),
        budget=None if attack.trains else SEARCH if searches else PLAIN,
    )


def play(
    scenario: Scenario,
    protocols: Sequence[str],
    attacks: Sequence[str],
    defenses: Sequence[str],
    rounds: int,
    device: str = "auto",
    say: Callable[[str], None] = lambda text: None,
) -> Iterator[Cost]:
    """Every combination that fits, one after the other.

    Args:
        scenario: Everything else.
        protocols: As typed.
        attacks: As typed; none stands for every installed one.
        defenses: As typed.
        rounds: That count, of each.
        device: ``auto``, ``cpu`` or ``cuda``.
        say: Told what is measured now.
    """
    names = attacks or [n for n in registry.names("attack") if n != "none"]
    for protocol in protocols:
        for defense in defenses:
            for attack in names:
                fields = {"protocol": protocol, "defense": defense, "attack": attack}
                one = Scenario.of(**(scenario.model_dump() | fields))
                say(f"{protocol} + {defense} / {attack}")
                try:
                    yield measure(one, rounds, device)
                except Incompatible:
                    continue


def described(cost: Cost) -> dict[str, object]:
    """For programs."""
    return dataclasses.asdict(cost) | {"share": cost.share, "within": cost.within}
