"""Size of an experiment: numbers that a smaller version must preserve, and what it costs.

A table played with fewer clients and rounds shows the same thing only if its dimensionless numbers
are those of the paper: the local steps in all, the samples of a client, the chance that malicious
clients are half of a round.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import torch
from torch.utils.flop_counter import FlopCounterMode

from fedbench.core import registry
from fedbench.experiment.cohorts import exceeds, in_a_run
from fedbench.experiment.scenario import Scenario
from fedbench.models.network import Network

# Samples, image and classes of the data sets of the papers: what a plan must know without loading.
POOLS: Mapping[str, tuple[int, int, tuple[int, int, int], int]] = {
    # training samples, published test samples, image, classes
    "digits": (1797, 0, (1, 8, 8), 10),
    "mnist-5k": (5000, 0, (1, 28, 28), 10),
    "mnist": (60000, 10000, (1, 28, 28), 10),
    "fashion-mnist": (60000, 10000, (1, 28, 28), 10),
    "cifar10": (50000, 10000, (3, 32, 32), 10),
    "cifar10-20k": (18000, 2000, (3, 32, 32), 10),
    "cifar100": (50000, 10000, (3, 32, 32), 100),
    "svhn": (73257, 26032, (3, 32, 32), 10),
    "emnist": (112800, 18800, (1, 28, 28), 47),
    "femnist": (671585, 0, (1, 28, 28), 62),
}
SHARES = {"per-client": 0.7, "per-client-80-20": 0.8}  # of a client's samples that it trains on
BACKWARD = 3.0  # operations of a training step over those of its forward pass
# Effective operations a second: two cores as measured here, and an H200 as predicted from its
# float32 rate; a step of recorded launches takes at least so many seconds there.
TWO_CORES = 8.0e10
H200 = 2.0e13
H200_STEP = 2.0e-3


@dataclass(frozen=True)
class Size:
    """Numbers of one run that do not depend on what is learned."""

    samples: float  # of a client that it trains on, on average
    steps: int  # local steps of such a client in a round
    total_steps: int  # local steps over all rounds of a client that is in every round
    half_malicious: float  # chance of a round in which malicious clients are at least half
    half_malicious_run: float  # chance of such a round in the whole run
    operations: float  # floating-point operations of training, all clients and rounds

    @property
    def here(self) -> float:
        """Estimated seconds on two cores."""
        return self.operations / TWO_CORES

    def on_gpu(self) -> float:
        """Predicted seconds on an H200."""
        return max(self.total_steps * H200_STEP, self.operations / H200)


def size(scenario: Scenario) -> Size | None:
    """Return the size of a run; None for a data set whose size is not known."""
    pool = POOLS.get(registry.split(scenario.dataset)[0])
    if pool is None:
        return None
    published, tested, image, classes = pool
    split = getattr(scenario, "split", "per-client")
    samples = published / scenario.clients
    if split != "published":
        samples = SHARES[split] * (published + tested) / scenario.clients
    steps = scenario.epochs * math.ceil(samples / scenario.batch_size)
    chance = half_malicious(scenario)
    passes = scenario.rounds * scenario.per_round * scenario.epochs * samples
    return Size(
        samples=samples,
        steps=steps,
        total_steps=steps * scenario.rounds,
        half_malicious=chance,
        half_malicious_run=in_a_run(chance, scenario.rounds),
        operations=BACKWARD * passes * forward_operations(scenario.model, image, classes),
    )


def half_malicious(scenario: Scenario) -> float:
    """Return the chance that at least half of a round's clients are malicious."""
    return exceeds(scenario, math.ceil(scenario.per_round / 2) - 1)


@cache  # a table has a few networks and hundreds of runs
def forward_operations(model: str, image: tuple[int, int, int], classes: int) -> float:
    """Floating-point operations of a forward pass of one image, counted on shapes alone."""
    network: Network = registry.load("model", model).build(image, classes)
    params = {name: torch.empty(shape, device="meta") for name, shape in network.shapes.items()}
    with FlopCounterMode(display=False) as counter:
        network.logits(params, torch.empty(1, *image, device="meta"))
    return float(counter.get_total_flops())
