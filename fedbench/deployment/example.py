"""The task that an exported app starts with: digits among clients, and a small network."""

from functools import lru_cache

from fedbench.core.rng import Secret
from fedbench.data.datasets import Data
from fedbench.deployment.client import Samples
from fedbench.experiment.compatibility import resolve
from fedbench.experiment.population import Population, populate
from fedbench.experiment.prepare import load_pool
from fedbench.experiment.scenario import Scenario
from fedbench.models.models import LeNet
from fedbench.models.network import Network


def lenet() -> Network:
    """Return a LeNet for digits of 8 x 8 pixels."""
    data: Data = load_pool("digits")
    network: Network = LeNet().build(data.image, data.classes)
    return network


@lru_cache(maxsize=1)
def _population(clients: int, seed: int) -> Population:
    each = Scenario(clients=clients, per_round=1, malicious=0.0, seed=seed, defense="mean")
    return populate(resolve(each), load_pool("digits"), Secret.of(seed, "run"))


def digits(number: int, clients: int, seed: int = 0) -> Samples:
    """Return the part of the digits that `fedbench.play` with this seed deals to a client."""
    population = _population(clients, seed)
    data = population.data
    train = population.train[number]
    test = population.test[number]
    return Samples(data.floats(train), data.y[train], data.floats(test), data.y[test])
