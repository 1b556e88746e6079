"""Contract tests of models, data sets and partitions, with one line for each broken promise."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedbench.api import Shared, hooks
from fedbench.core import registry
from fedbench.core.blame import ask
from fedbench.core.rng import Key
from fedbench.data.datasets import Data, Dataset
from fedbench.data.own import from_arrays
from fedbench.data.partitions import Partition
from fedbench.executors.training import Client, Loop, Schedule, cross_entropy
from fedbench.executors.vmap import Stacked
from fedbench.experiment.instances import text_of
from fedbench.models.models import Model
from fedbench.models.network import Image, Network, Step, require_init, require_network
from fedbench.protocols.fedavg import FedAvg
from fedbench.testing.contracts import doubled

BATCH = 5
TOLERANCE = 1e-6  # relative difference of two ways of computing in float64


def check_model(
    model: Model | nn.Module | Callable[[], nn.Module],
    image: Image = (1, 8, 8),
    classes: int = 3,
) -> None:
    """Check a model, a module, or a function that makes one, on samples of this shape.

    Its parameters are named and drawn as it says, under a key and with nothing else; it returns
    finite logits; in use a sample's logits do not depend on the samples beside it, and in training
    not on padding; every parameter has a gradient; in lock step clients learn what they learn one
    after the other. A module that cannot train in lock step passes: it trains in the loop.
    """
    if not isinstance(model, Model):
        model = registry.load("model", text_of("model", model))
    network = ask(model, "build", Network, image, classes)
    require_network(network)
    require_init(network)
    params = network.init(Key(1))
    again = network.init(Key(1))
    alike = all(torch.equal(params[name], again[name]) for name in params)
    assert alike, "init must draw from its key alone: it gave two answers to one key"
    precise = {name: leaf.double() for name, leaf in params.items()}
    x = network.examples(BATCH, Key(2))
    x = x.double() if x.is_floating_point() else x
    _check_use(network, precise, x)
    _check_training(network, precise, x)
    if not network.alone:
        _check_lock_step(network, x)


def _check_use(network: Network, params: dict[str, Tensor], x: Tensor) -> None:
    with torch.no_grad():
        logits = network.logits(params, x)
        shape = (BATCH, network.classes)
        assert logits.shape == shape, f"logits must be {shape}, got {tuple(logits.shape)}"
        assert bool(torch.isfinite(logits).all()), "logits of finite samples must be finite"
        assert torch.equal(network.logits(params, x), logits), "logits in use must not be random"
        alone = torch.cat([network.logits(params, x[i : i + 1]) for i in range(BATCH)])
        far = float((alone - logits).abs().max()) > TOLERANCE * float(logits.abs().max())
        assert not far, "a sample's logits in use must not depend on the samples beside it"


def _check_training(network: Network, params: dict[str, Tensor], x: Tensor) -> None:
    y = torch.arange(BATCH) % network.classes
    still = network.statistics
    leaves = {n: leaf.clone().requires_grad_(n not in still) for n, leaf in params.items()}
    step = Step(Key(3), torch.ones(BATCH, dtype=torch.bool))
    loss = cross_entropy(network.logits(leaves, x, step), y)
    value = float(loss.detach())
    trained = {n: leaf for n, leaf in leaves.items() if leaf.requires_grad}
    slopes = torch.autograd.grad(loss, list(trained.values()), allow_unused=True)
    unused = [n for n, slope in zip(trained, slopes, strict=True) if slope is None]
    assert not unused, f"the loss must depend on every parameter, got one that is unused: {unused}"
    missing = [name for name in still if name not in step.statistics]
    assert not missing, f"a step must leave running statistics behind, got no {missing}"
    if network.alone:
        return  # what it draws itself depends on the size of the batch
    padded = Step(Key(3), torch.arange(BATCH + 2) < BATCH)
    with torch.no_grad():
        more = torch.cat([x, 3 * x[:2]])
        labels = torch.cat([y, torch.full((2,), -1)])
        other = cross_entropy(network.logits(params, more, padded), labels)
    far = abs(float(other) - value) > TOLERANCE * max(1.0, abs(value))
    assert not far, "padding (False in Step.real) must not change the loss of a batch"


def _check_lock_step(network: Network, x: Tensor) -> None:
    protocol = FedAvg(lr=0.01)
    shared = Shared(network, 3, torch.device("cpu"))
    sent = protocol.broadcast(shared, protocol.init(shared), [0], Key(7))
    tree = protocol.receive(shared, sent)
    y = torch.arange(BATCH) % network.classes
    clients = doubled([Client(tree, x, y, Key(8).fold(i), {}) for i in range(2)])
    ways = [way(protocol, shared, Schedule(1, 3)).train(clients)[0] for way in (Loop, Stacked)]
    far = float((ways[0] - ways[1]).norm()) > TOLERANCE * float(ways[0].norm())
    assert not far, "clients in lock step must learn what they learn one after the other"


def check_dataset(dataset: Dataset | Data, folder: Path | None = None) -> None:
    """Check a data set, loaded from ``folder``, or a pool.

    Every load gives the same pool, on whose samples a network can be trained: each label that is
    announced occurs, samples are finite and of ordinary size, and not all alike.
    """
    if isinstance(dataset, Data):
        data = dataset
    else:
        if not isinstance(dataset, Dataset):
            text_of("dataset", dataset)  # says what to write
        data = ask(dataset, "load", Data, folder)
        again = ask(dataset, "load", Data, folder)
        assert again.identity == data.identity, "two loads must give the same pool"
    counts = torch.bincount(data.y.cpu(), minlength=data.classes)
    absent = (counts == 0).nonzero()[:, 0].tolist()
    assert not absent, f"every label must have a sample, got none of {absent[:5]}"
    assert data.classes >= 2, f"there must be 2 labels or more, got {data.classes}"
    x = data.floats(torch.arange(min(len(data), 1000)))
    assert bool((x != x[:1]).any()), "samples must differ, got the same one everywhere"
    if data.kind == "ids":
        assert int(x.min()) >= 0, f"token ids must be >= 0, got {int(x.min())}"
        return
    assert bool(torch.isfinite(x).all()), "normalised samples must be finite"
    largest = float(x.abs().max())
    assert largest < 1e4, f"normalised samples must be of ordinary size, got {largest:g}; normalise"


def check_partition(partition: Partition, clients: int = 5, classes: int = 3) -> None:
    """Check a partition on 300 samples of users who have as many each.

    Each client gets samples, three or more, none twice and none of another client's unless they are
    drawn with replacement; the same key deals them alike, and nothing is drawn from a global
    generator.
    """
    y = Key(1).fold("y").permutation(300) % classes
    owner = torch.arange(300) % clients
    state = torch.get_rng_state()
    first, second = (
        hooks.split(partition, y, clients, classes, Key(2), owner.clone()) for _ in range(2)
    )
    assert torch.equal(torch.get_rng_state(), state), "it must draw from its key alone"
    same = all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert same, "the same key must deal alike"
    few = min(len(part) for part in first)
    assert few >= 3, f"a client must get 3 samples to train, validate and test, got {few}"


def example_data(kind: str = "numbers", classes: int = 3) -> Data:
    """Return a small pool of a kind: ``image``, ``numbers`` or ``ids``."""
    y = torch.arange(60) % classes
    shapes: dict[str, Any] = {"image": (1, 8, 8), "numbers": (7,), "ids": (7,)}
    shape = shapes[kind]
    if kind == "ids":
        return from_arrays(Key(1).integers(9, 60 * 7).reshape(60, 7), y)
    return from_arrays(Key(1).normal(60, *shape) + y.reshape(-1, *[1] * len(shape)), y)
