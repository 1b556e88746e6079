"""Rounds of fedbench, timed; one line of JSON.

Whole rounds as `fedbench run` plays them: messages are encoded to bytes, counted and decoded again.
FedAvg with plain SGD, the mean as rule, nobody malicious, test data never looked at; freed memory
is kept, as the command line does. ``--idle`` plays clients that do nothing instead.
"""

from __future__ import annotations

import dataclasses
from argparse import ArgumentParser
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
import workload
from server_pairs import Idle
from torch import Tensor

from fedbench.core.choices import Precision
from fedbench.core.rng import Key
from fedbench.core.trees import Tree
from fedbench.data.datasets import Data
from fedbench.executors.factory import NAMES, executor
from fedbench.executors.malloc import keep_memory
from fedbench.executors.training import Loop, Schedule
from fedbench.experiment.prepare import prepare
from fedbench.experiment.scenario import Scenario
from fedbench.experiment.setup import Setup
from fedbench.experiment.state import RunState
from fedbench.models.network import Image, Network, Step
from fedbench.run import play_round

NEVER = 10**6


@dataclass(frozen=True)
class TwoConvolutions(Network):
    """The network of the workload ``size``."""

    image: Image
    classes: int
    size: workload.Training

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the weights, then of the biases."""
        return self.size.shapes

    def features(self, params: Tree, x: Tensor, step: Step | None = None) -> Tensor:
        """Training and use are the same."""
        for name in ("conv1", "conv2"):
            x = F.relu(F.conv2d(x, params[name], params[f"{name}.bias"]))
        x = F.max_pool2d(x, 2).flatten(1)
        return F.relu(F.linear(x, params["fc1"], params["fc1.bias"]))

    def init(self, key: Key, device: torch.device | str = "cpu") -> Tree:
        """Return the parameters of the workload, whatever the key."""
        return {n: torch.from_numpy(w).to(device) for n, w in self.size.weights().items()}


def prepared(
    size: workload.Training,
    engine: str = "loop",
    precision: Precision = "fp32",
    device: str = "cpu",
) -> Setup:
    """A run of the workload; every client trains on all of its samples."""
    x, y = (torch.from_numpy(array) for array in size.images())
    mean, std = ((value,) * size.image[0] for value in (workload.MEAN, workload.STD))
    data = Data(x, y, size.classes, workload.WHITE, mean, std)
    scenario = Scenario.of(
        protocol=f"fedavg:lr={size.lr},momentum=0,weight_decay=0",
        defense="mean",
        malicious=0.0,
        partition="iid",
        clients=size.clients,
        per_round=size.cohort,
        epochs=1,
        batch_size=size.batch,
        rounds=NEVER,
        eval_every=NEVER,
        precision=precision,
        seed=size.seed,
    )
    setup = prepare(scenario, device, data=data)
    network = TwoConvolutions(size.image, size.classes, size)
    shared = dataclasses.replace(setup.shared, network=network)
    protocol = setup.plugins.protocol
    schedule = Schedule(1, size.batch)
    dealt = setup.with_population(
        train=list(torch.split(torch.arange(len(data), device=shared.device), size.samples)),
    )
    return dataclasses.replace(
        dealt,
        shared=shared,
        executor=executor(engine, protocol, shared, schedule, size.cohort, precision),
    )


def timed(setup: Setup, rounds: int) -> tuple[RunState, dict[str, Any]]:
    """So many rounds after one to warm up, and what the last of them had."""
    protocol = setup.plugins.protocol
    shared = setup.shared
    state = RunState(protocol.init(shared))
    ids = play_round(setup, state, 0).clients
    moments = [workload.Moment.now()]
    for step in range(1, rounds + 1):
        ids = play_round(setup, state, step).clients
        moments.append(workload.Moment.now())
    samples = sum(len(setup.population.train[i]) for i in ids)
    counted = {"clients": len(ids), "samples": samples, "parameters": shared.layout.d}
    return state, counted | workload.between(moments)


def train(size: workload.Training, rounds: int, engine: str, precision: Precision) -> Any:
    """The workload that trains, and how well the model does in the end."""
    setup = prepared(size, engine, precision)
    state, measured = timed(setup, rounds)
    model = setup.plugins.protocol.model(setup.shared, state.server, Key(0))
    rows = torch.arange(min(workload.JUDGED, len(setup.population.data)))
    logits = setup.shared.network.logits(model, setup.population.data.floats(rows))
    y = setup.population.data.y[rows]
    accuracy = (logits.argmax(dim=1) == y).float().mean().item()
    return measured | {"loss": F.cross_entropy(logits, y).item(), "accuracy": accuracy}


def idling(size: workload.Idling) -> Setup:
    """The same with clients that do nothing."""
    training = size.network
    few = 10  # samples, which nobody looks at
    network = dataclasses.replace(training, clients=size.clients, cohort=size.cohort, samples=few)
    setup = prepared(network)
    protocol = Idle()
    return dataclasses.replace(
        setup,
        plugins=dataclasses.replace(setup.plugins, protocol=protocol),
        executor=Loop(protocol, setup.shared, Schedule(1, network.batch)),
    )


def main() -> None:
    parser = workload.options(ArgumentParser(description=__doc__))
    parser.add_argument("--executor", choices=NAMES, default="loop")
    parser.add_argument("--idle", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    keep_memory()
    if given.idle:
        _, measured = timed(idling(workload.Idling()), given.rounds)
        measured |= {"samples": 0, "loss": None, "accuracy": None}  # nobody looked at one
    else:
        measured = train(workload.Training(), given.rounds, given.executor, given.precision)
    cores = {"threads": given.threads, "processes": 1}
    workload.say(("torch", "numpy"), precision=given.precision, **cores, **measured)


if __name__ == "__main__":
    main()
