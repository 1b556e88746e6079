"""Time of both forms of every convolution of a launch, forward and backward.

``python benchmarks/speed/conv_forms.py`` prints Markdown: milliseconds of 25 clients in groups, and
as products of matrices (`fedbench.executors.conv_kernels`). On CUDA a recording of each is
replayed, so Python takes no part in it. The first layer of a network has no gradient of its input.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial

import torch
from gpu_report import SECONDS
from gpu_stages import CLASSES, Training
from paired import timer
from torch import Tensor

from fedbench.core import registry
from fedbench.core.devices import replays_graphs
from fedbench.core.rng import Key
from fedbench.executors.conv_kernels import FORMS, Geometry, geometries, replayed
from fedbench.experiment.prepare import choose_device

TRAININGS = (("lenet", 8), ("lenet", 32), ("conv4", 32), ("conv8", 32))
CLIENTS = 25


def launch(
    layer: Geometry, name: str, clients: int, batch: int, first: bool, device: torch.device
) -> Callable[[], object]:
    """Return the gradients of a layer with random numbers, as work to be timed."""
    x = Key(0).uniform(clients, batch, *layer.image, device=device)
    weight = Key(1).uniform(clients, *layer.kernels, device=device)

    def energy(weight: Tensor, x: Tensor) -> Tensor:
        y = FORMS[name](x, weight, stride=layer.stride, padding=layer.padding)
        return y.square().sum()

    gradient = torch.vmap(torch.func.grad(energy, argnums=0 if first else (0, 1)))
    work = partial(gradient, weight, x)
    return replayed(work, device) if replays_graphs(device) else work


def milliseconds(work: Callable[[], object]) -> float:
    """Return the median time of a call, the device's work included."""
    return float(timer(work).blocked_autorange(min_run_time=0.05).median / SECONDS)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--clients", type=int, default=CLIENTS, help="of a launch")
    parser.add_argument("-m", "--model", action="append", help="default: lenet, conv4, conv8")
    given = parser.parse_args(words)
    device = choose_device(given.device)
    print("| network, batch, images, kernels | groups, ms | matrices, ms |")
    print("| :-- | --: | --: |")
    for model, batch in TRAININGS:
        if given.model is not None and model not in given.model:
            continue
        image = Training(model, "fedavg", batch).image
        network = registry.load("model", model).build(image, CLASSES)
        sums = dict.fromkeys(FORMS, 0.0)
        for number, layer in enumerate(geometries(network)):
            took = {
                name: milliseconds(launch(layer, name, given.clients, batch, number == 0, device))
                for name in FORMS
            }
            sums = {name: sums[name] + took[name] for name in FORMS}
            cells = " | ".join(f"{x:.2f}" for x in took.values())
            print(f"| {model}, {batch}, {layer.image}, {layer.kernels} | {cells} |")
        cells = " | ".join(f"{x:.2f}" for x in sums.values())
        print(f"| **{model}, {batch}** | {cells} |")


if __name__ == "__main__":
    main()
