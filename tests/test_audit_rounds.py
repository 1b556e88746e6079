"""Audits of whole rounds: neighbouring inputs as far apart as the rules allow, and what is seen."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedbench
from fedbench.audits.canaries import Planted, model
from fedbench.audits.watched import watched
from fedbench.core.errors import ConfigError
from fedbench.core.rng import Key, Secret
from fedbench.data.datasets import Data
from fedbench.data.own import from_arrays
from fedbench.experiment.guarantee import COPIED, guarantee, spend
from fedbench.experiment.prepare import prepare
from fedbench.experiment.scenario import Scenario
from fedbench.experiment.setup import Setup
from fedbench.experiment.state import RunState
from fedbench.payload import Payload
from fedbench.privacy.accountants import Ledger
from fedbench.run import begin, play_round

PIXELS = 500  # the network has twice as many weights
LONG = 10.0  # of an update, in clips


class Line(nn.Module):
    """Two classes by one layer without biases, so that all parameters are weights."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(PIXELS, 2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc(x)
        return out


def samples(count: int = 100, **rest: Any) -> Data:
    x = Key(0).normal(count, PIXELS)
    return from_arrays(x, x[:, 0] > 0, **({"normalise": False} | rest))


def lined(protocol: str, mechanism: Any, clients: int = 4, **fields: Any) -> Setup:
    """Return a run of `Line` in which all clients take part in each round, by default honest."""
    chosen = {"clients": clients, "per_round": clients, "rounds": 99, "eval_every": 99}
    chosen |= {"malicious": 0.0, "attack": "none", "partition": "iid", "model": Line}
    chosen |= {"protocol": protocol, "mechanism": mechanism, "dataset": samples()}
    return prepare(Scenario(**(chosen | fields)), "cpu", "loop")


Update = Callable[[Tensor], Tensor]  # of what a client that learned nothing sends, (d,)


def played(
    setup: Setup, client: int, update: Update, seed: int = 0, rounds: int = 1
) -> tuple[list[Payload], RunState, Setup]:
    """Return the messages of each round in which one client sends ``update``, others nothing new.

    The rounds are whole ones, but for the training.
    """
    setup = dataclasses.replace(setup, secret=Secret.of(seed, "run"))
    seen: list[Payload] = []
    observed = watched(setup, lambda received, aggregate, view: seen.append(received))
    state = begin(setup)
    protocol = setup.plugins.protocol
    for step in range(rounds):
        ids = setup.sample(step)
        sent = protocol.broadcast(setup.shared, state.server, ids, Key(0))
        idle = protocol.idle(setup.shared, sent)[0]
        given = {row: update(idle) if i == client else idle for row, i in enumerate(ids)}
        inner = setup.executor
        executor = Planted(protocol, setup.shared, inner.schedule, inner, given)
        play_round(dataclasses.replace(observed, executor=executor), state, step)
    return seen, state, setup


def benign(setup: Setup) -> int:
    """Return the first client that is not malicious."""
    malicious = setup.population.malicious
    return next(i for i in range(setup.scenario.clients) if not bool(malicious[[i]]))


def apart(setup: Setup) -> float:
    """Return how far apart the models are that two opposite updates lead to, with equal noise."""

    def deployed(length: float) -> Tensor:
        d = setup.shared.layout.d
        _, state, same = played(setup, benign(setup), lambda idle: idle + length / math.sqrt(d))
        return model(same, state)

    return float(torch.linalg.vector_norm(deployed(LONG) - deployed(-LONG)))


@pytest.mark.parametrize("attack", ["none", "sign-flip", "free-rider"])
@pytest.mark.parametrize("defense", ["mean", "clip:c=0.5+mean", "norm-bound:c=0.5"])
def test_models_of_neighbours_are_two_clips_apart_as_accounted(defense: str, attack: str) -> None:
    setup = lined(
        "fedavg",
        "dp-fedavg:clip=0.5,z=2",
        clients=10,
        defense=defense,
        attack=attack,
        malicious=0.3,
    )
    assert apart(setup) == pytest.approx(2 * 0.5 / 10, rel=1e-3)
    # and the noise is what was accounted, too
    _, state, again = played(setup, benign(setup), lambda idle: idle, seed=1)
    if attack == "none":
        moved = model(again, state) - model(again, begin(again))
        assert float(moved.std()) == pytest.approx(2 * 0.5 / 10, rel=0.1)


def test_an_epsilon_says_that_it_is_not_for_models_of_an_attack_that_reads_messages() -> None:
    fields = {"clients": 10, "malicious": 0.3}
    reading = lined("fedavg", "dp-fedavg:clip=0.5,z=2", attack="mimic:warmup=1", **fields)
    assert apart(reading) > 2 * (2 * 0.5 / 10)  # three clients copy the longest message
    notes = {}
    for attack in ("none", "sign-flip", "mimic:warmup=1", "ipm", "auto"):
        setup = lined("fedavg", "dp-fedavg:clip=0.5,z=2", attack=attack, **fields)
        ledger = Ledger()
        spend(setup, ledger, [0], torch.tensor([True]))
        spent = guarantee(setup, ledger)
        assert spent is not None
        notes[attack] = COPIED in spent.note
    assert notes == {
        "none": False,
        "sign-flip": False,
        "mimic:warmup=1": True,
        "ipm": True,
        "auto": True,
    }


def trained_apart(normalised: dict[str, Any]) -> float:
    """Return how far the data of one client move the deployed model, with equal noise."""

    def deployed(factor: float) -> Tensor:
        x = Key(0).normal(40, PIXELS)
        y = x[:, 0] > 0
        whose = torch.arange(40) % 4
        x[whose == 0] *= factor
        scenario = Scenario(
            protocol="fedavg:lr=0.1",
            mechanism="dp-fedavg:clip=0.01,z=2",
            dataset=from_arrays(x, y, clients=whose, **normalised),
            partition="natural",
            model=Line,
            clients=4,
            per_round=4,
            malicious=0.0,
            rounds=1,
            attack="none",
        )
        _, deployed = fedbench.play(scenario, return_model=True)
        return torch.cat([w.flatten() for w in deployed.state_dict().values()])

    return float(torch.linalg.vector_norm(deployed(1.0) - deployed(-1000.0)))


def test_an_epsilon_needs_samples_that_public_numbers_normalise() -> None:
    two_clips = 2 * 0.01 / 4
    assert trained_apart({"normalise": False}) <= two_clips * 1.001
    public = {"mean": [0.0] * PIXELS, "std": [1.0] * PIXELS}
    assert trained_apart(public) <= two_clips * 1.001
    with pytest.raises(
        ConfigError, match=r"mean and std of the clients' samples, .*normalise=False"
    ):
        trained_apart({})
