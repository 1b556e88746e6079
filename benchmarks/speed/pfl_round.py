"""Rounds of federated averaging by pfl-research, timed; one line of JSON.

It is configured as its documentation has it for speed. The model is built once and stays; data sets
of all clients are made before the clock starts, as float tensors, so a round neither converts nor
copies an image. Clients come from ``minimize_reuse``, the sampler that it recommends; there is no
postprocessor, since all clients count the same; no evaluation, but in the first iteration, which it
always has and which is not timed; no callback but the clock, and no metrics are printed.
``--processes`` starts so many workers that sum their updates by torch.distributed, each with
``--threads``: its way to use more cores. ``--precision bf16`` is its own autocast.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from argparse import ArgumentParser
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import workload
from numpy.typing import NDArray
from torch import Tensor, nn


class TwoConvolutions(nn.Module):
    """The network of the workload, with the two methods that pfl asks for."""

    def __init__(self, size: workload.Training) -> None:
        super().__init__()
        (first, second), shapes = size.channels, size.shapes
        self.conv1 = nn.Conv2d(size.image[0], first, 3)
        self.conv2 = nn.Conv2d(first, second, 3)
        self.fc1 = nn.Linear(shapes["fc1"][1], size.hidden)
        self.fc2 = nn.Linear(size.hidden, size.classes)
        start = {name: torch.from_numpy(value) for name, value in size.weights().items()}
        self.load_state_dict({n if "." in n else f"{n}.weight": w for n, w in start.items()})

    def forward(self, x: Tensor) -> Tensor:
        """``x (B, C, H, W)`` to ``(B, classes)``."""
        x = F.max_pool2d(F.relu(self.conv2(F.relu(self.conv1(x)))), 2)
        logits: Tensor = self.fc2(F.relu(self.fc1(x.flatten(1))))
        return logits

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Loss that a client minimises."""
        return F.cross_entropy(self(x), y)

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, int]:
        """Metrics of an evaluation, of which pfl needs at least one."""
        return {"samples": len(y)}


def floats(images: NDArray[np.uint8]) -> Tensor:
    """Return images as the network reads them."""
    return (torch.from_numpy(images) / workload.WHITE).sub_(workload.MEAN).div_(workload.STD)


def play(size: workload.Training, rounds: int, precision: str) -> dict[str, Any]:
    """Play the rounds and return what was measured."""
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam.base import NNTrainHyperParams
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel

    moments, reports = [], []

    class Clock(TrainingProcessCallback):  # type: ignore[misc]
        def after_central_iteration(self, metrics: Any, model: Any, **_: Any) -> Any:
            moments.append(workload.Moment.now())
            reports.append(metrics)
            return False, Metrics()

    np.random.seed(size.seed)  # noqa: NPY002 - pfl draws from it, and workers must draw alike
    images, labels = size.images()
    x = floats(images)
    y = torch.from_numpy(labels)
    parts = (torch.split(both, size.samples) for both in (x, y))
    users = [PyTorchTensorDataset(pair) for pair in zip(*parts, strict=True)]
    sampler = get_user_sampler("minimize_reuse", range(size.clients))
    data = FederatedDataset(users.__getitem__, sampler)
    network = TwoConvolutions(size)
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=rounds + 1,
            evaluation_frequency=rounds + 1,
            train_cohort_size=size.cohort,
            val_cohort_size=None,
        ),
        SimulatedBackend(training_data=data, val_data=None),
        PyTorchModel(
            model=network,
            local_optimizer_create=torch.optim.SGD,
            central_optimizer=torch.optim.SGD(network.parameters(), lr=1.0),
            amp_dtype=torch.bfloat16 if precision == "bf16" else None,
        ),
        NNTrainHyperParams(size.batch, local_num_epochs=1, local_learning_rate=size.lr),
        callbacks=[Clock()],
        send_metrics_to_platform=False,
    )
    y = y[: workload.JUDGED]
    logits = network(x[: workload.JUDGED]).detach()
    last = reports[-1].to_simple_dict()
    what = "Train population | number of"
    clients = last[f"{what} devices"]
    each = last[f"{what} data points"]  # a mean over clients
    return {
        "clients": int(clients),
        "samples": round(clients * each),
        "parameters": int(last["Number of parameters"]),
        "loss": F.cross_entropy(logits, y).item(),
        "accuracy": (logits.argmax(dim=1) == y).float().mean().item(),
    } | workload.between(moments)


def workers(count: int) -> None:
    """Start this script so many times, as workers of one another, and end with them.

    When one fails the others would wait for it: they are ended.
    """
    with socket.create_server(("localhost", 0)) as free:
        port = free.getsockname()[1]
    addresses = ",".join(f"localhost:{port + i}" for i in range(count))
    ranks = [{"PFL_WORKER_RANK": str(i), "PFL_WORKER_ADDRESSES": addresses} for i in range(count)]
    command = [sys.executable, *sys.argv]
    started = [subprocess.Popen(command, env=os.environ | rank) for rank in ranks]
    try:
        while not any(codes := [worker.poll() for worker in started]) and None in codes:
            time.sleep(0.1)
        sys.exit(max(abs(code or 0) for code in codes))
    finally:
        for worker in started:
            worker.kill()
            worker.wait()


def main() -> None:
    parser = workload.options(ArgumentParser(description=__doc__))
    parser.add_argument("--processes", type=int, default=1)
    given = parser.parse_args()
    rank = os.environ.get("PFL_WORKER_RANK")
    if given.processes > 1 and rank is None:
        workers(given.processes)
    os.environ["PFL_PYTORCH_DEVICE"] = "cpu"  # where fedbench is told to train, too
    torch.set_num_threads(given.threads)
    measured = play(workload.Training(), given.rounds, given.precision)
    measured |= {"precision": given.precision, "threads": given.threads}
    if rank is not None:
        measured["cpu"] = None  # of one worker only
    if rank in (None, "0"):
        workload.say(("pfl", "torch", "numpy"), processes=given.processes, **measured)


if __name__ == "__main__":
    main()
