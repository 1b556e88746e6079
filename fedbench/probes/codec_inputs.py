"""Inputs of codecs: random vectors, and updates of clients that trained."""

import os
from pathlib import Path

import torch
from torch import Tensor

from fedbench.core.errors import ConfigError
from fedbench.core.rng import Key
from fedbench.data.datasets import CACHE, data_folder
from fedbench.experiment.scenario import Scenario
from fedbench.experiment.setup import Setup
from fedbench.experiment.state import RunState
from fedbench.run import play_round

INPUTS = {
    "gaussian": "independent N(0, 1)",
    "lognormal": "independent, a random sign times exp(N(0, 1))",
    "real": "updates of clients of fedavg after three rounds",
}
ROUNDS = 3  # before the updates are taken
PREFERRED = "fashion-mnist"
EMBEDDED = "mnist-5k"


def default_dataset() -> tuple[str, str | None]:
    """Return Fashion-MNIST if it is stored here, else a data set without download and a note."""
    folder = data_folder() or Path(CACHE)
    if os.path.exists(os.path.expanduser(folder / f"{PREFERRED}.npz")):
        return PREFERRED, None
    return EMBEDDED, (
        f"{PREFERRED} is not in {folder}, so the data is {EMBEDDED}; "
        f"--dataset {PREFERRED} fetches it"
    )


def scenario(dataset: str, model: str) -> Scenario:
    """Return the scenario of the real updates: 50 clients of fedavg, 5 of them a round."""
    return Scenario.of(
        dataset=dataset,
        model=model,
        clients=50,
        per_round=5,
        malicious=0.0,
        rounds=ROUNDS + 1,
        eval_every=ROUNDS + 1,  # the accuracy is not used
        epochs=1,
        batch_size=32,
    )


def drawn(kind: str, key: Key, d: int) -> Tensor:
    """Draw ``(d,)`` float32, ``gaussian`` or ``lognormal``; normals end at 4.4, see `Key.normal`.

    >>> drawn("lognormal", Key(0), 3).log().isnan().tolist()  # signs are random
    [False, True, True]
    """
    normal = key.fold("normal").normal(d)
    if kind == "gaussian":
        return normal
    assert kind == "lognormal", kind
    return normal.exp_().mul_(key.fold("signs").signs(d))


def real(setup: Setup) -> Tensor:
    """Return the updates ``(n, d)`` of the clients of round `ROUNDS`.

    Raises:
        ConfigError: an update is not finite, or 0.
    """
    protocol = setup.plugins.protocol
    shared = setup.shared
    state = RunState(protocol.init(shared))
    for step in range(ROUNDS):
        play_round(setup, state, step)
    ids = setup.sample(ROUNDS)
    key = setup.secret.key("broadcast", ROUNDS)
    broadcast = protocol.broadcast(shared, state.server, ids, key)
    tree = protocol.receive(shared, broadcast)
    clients = [setup.client(i, tree, state.memories.get(i), ROUNDS) for i in ids]
    updates, _ = setup.executor.train(clients)
    if not bool(torch.isfinite(updates).all()) or not bool(updates.any(dim=1).all()):
        raise ConfigError(
            f"real updates must be finite and not 0, got others from --model "
            f"{setup.scenario.model} on {setup.scenario.dataset}; use lenet, or --input gaussian"
        )
    return updates
