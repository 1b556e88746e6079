"""Where the time of whole rounds goes, for every protocol with its own rule."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

from fedbench.bench.paired import busy
from fedbench.bench.stopwatch import PARTS, Clock, watched
from fedbench.core import registry
from fedbench.core.errors import Incompatible
from fedbench.core.rng import Key
from fedbench.data.dataset import Data
from fedbench.experiment.prepare import prepare
from fedbench.experiment.scenario import Scenario
from fedbench.experiment.setup import Setup
from fedbench.experiment.state import RunState
from fedbench.run import play_round

TARGET = 0.8  # share of training
SMALL = ("lenet", "micro")  # models of 28 x 28 grey pixels; the others have 32 x 32 colours


@dataclass(frozen=True)
class Plan:
    """What is played.

    Args:
        clients: Of a round, n; all there are.
        samples: Of each client.
        epochs: Passes over them.
        batch: Samples a step.
        rounds: That count, after one to warm up.
        attack: What a fifth of the clients do.
    """

    clients: int = 25
    samples: int = 50
    epochs: int = 1
    batch: int = 8
    rounds: int = 3
    attack: str = "none"


@dataclass(frozen=True)
class Split:
    """Where the time of one protocol's rounds went.

    Args:
        protocol: As typed.
        defense: The rule, with its parameters.
        model: The network.
        parameters: Of it.
        clients: Of a round, n.
        played: Of each round the seconds of every part.
        others: Cores that other processes used meanwhile; None where nobody can say.
    """

    protocol: str
    defense: str
    model: str
    parameters: int
    clients: int
    played: tuple[dict[str, float], ...]
    others: float | None

    @property
    def seconds(self) -> dict[str, float]:
        """Of each part, median of the rounds."""
        return {part: statistics.median(one[part] for one in self.played) for part in PARTS}

    @property
    def total(self) -> float:
        """Seconds of a round: the sum of its parts."""
        return sum(self.seconds.values())

    @property
    def shares(self) -> dict[str, float]:
        """Of each part in the total."""
        return {part: seconds / self.total for part, seconds in self.seconds.items()}

    @property
    def overhead(self) -> float:
        """Seconds of everything but training, for one client."""
        return (self.total - self.seconds["train"]) / self.clients

    @property
    def met(self) -> bool:
        """True if training takes the share that it should at least."""
        return self.shares["train"] >= TARGET


@lru_cache(maxsize=2)
def pool(model: str, samples: int) -> Data:
    """Random images, as many of each label."""
    image = (1, 28, 28) if registry.split(model)[0] in SMALL else (3, 32, 32)
    x = Key(0).fold("pool").uniform(samples, *image).mul(256).to(torch.uint8)
    middle = (0.5,) * image[0]
    return Data(x, torch.arange(samples) % 10, 10, 255.0, middle, middle)


def ready(
    protocol: str, model: str, plan: Plan, device: str = "auto", engine: str = "auto"
) -> Setup:
    """A run of the protocol with its own rule, whose clients all hold ``plan.samples``.

    Raises:
        ConfigError: the parts do not fit each other.
    """
    scenario = Scenario.of(
        protocol=protocol,
        attack=plan.attack,
        dataset="digits" if registry.split(model)[0] in SMALL else "cifar10",
        model=model,
        partition="iid",
        clients=plan.clients,
        per_round=plan.clients,
        epochs=plan.epochs,
        batch_size=plan.batch,
        rounds=10**6,
        eval_every=10**6,
    )
    data = pool(model, plan.clients * (2 * plan.samples + 4))  # 7 of 10 are for training
    setup = prepare(scenario, device, engine, data=data)
    train = [part[: plan.samples] for part in setup.population.train]
    return setup.with_population(train=train, sizes=torch.tensor(list(map(len, train))))


def measure(setup: Setup, rounds: int) -> Split:
    """Play one round to warm up, then so many that count; nobody looks at test data."""
    plugins = setup.plugins
    state = RunState(plugins.protocol.init(setup.shared), mechanism=plugins.mechanism.init())
    play_round(setup, state, 0)
    played = []
    start, before = time.perf_counter(), busy()
    for step in range(1, rounds + 1):
        clock = Clock(setup.shared.device)
        with watched(setup, clock):
            clock.turn("rest")
            play_round(setup, state, step)
            clock.turn("rest")
        played.append(clock.seconds)
    wall, after = time.perf_counter() - start, busy()
    others = None
    if before is not None and after is not None:
        others = max(0.0, (after - before) / wall)
    scenario = setup.scenario
    return Split(
        protocol=scenario.protocol,
        defense=scenario.defense,
        model=registry.split(scenario.model)[0],
        parameters=setup.shared.layout.d,
        clients=scenario.per_round,
        played=tuple(played),
        others=others,
    )


def play(
    models: Sequence[str],
    protocols: Sequence[str],
    plan: Plan,
    device: str = "auto",
    engine: str = "auto",
    say: Callable[[str], None] = lambda text: None,
) -> tuple[list[Split], dict[str, str]]:
    """Every protocol on every model; and why some were left out.

    Args:
        models: Networks.
        protocols: As typed; none stands for every installed one.
        plan: What is played.
        device: ``auto``, ``cpu`` or ``cuda``.
        engine: Which executor.
        say: Told what is measured now.

    Raises:
        ConfigError: a protocol that was asked for does not fit.
    """
    done, left = [], {}
    for model in models:
        for protocol in protocols or registry.names("protocol"):
            say(f"{protocol} on {model}")
            try:
                setup = ready(protocol, model, plan, device, engine)
            except Incompatible as error:
                if protocols:
                    raise
                left[f"{protocol} on {model}"] = str(error)
                continue
            split = measure(setup, plan.rounds)
            done.append(dataclasses.replace(split, protocol=protocol))
    return done, left


def described(split: Split) -> dict[str, object]:
    """For programs."""
    said = {
        name: getattr(split, name) for name in ("seconds", "total", "shares", "overhead", "met")
    }
    return dataclasses.asdict(split) | said
