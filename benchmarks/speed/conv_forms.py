"""Time of both forms of every convolution of a launch, forward and backward.

``python benchmarks/speed/conv_forms.py`` prints Markdown: milliseconds of 25 clients in groups, and
as products of matrices (`fedbench.executors.conv_kernels`). On CUDA a recording of each is
replayed, so Python takes no part in it. The first layer of a network has no gradient of its input.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from gpu_report import SECONDS
from gpu_roofline import seconds
from gpu_stages import CLASSES, Training

from fedbench.core import registry
from fedbench.core.devices import replays_graphs
from fedbench.executors.conv_kernels import (
    FORMS,
    ConvLoad,
    Geometry,
    geometries,
    replayed,
    there_and_back,
)
from fedbench.experiment.prepare import choose_device

TRAININGS = (("lenet", 8), ("lenet", 32), ("conv4", 32), ("conv8", 32))
CLIENTS = 25


def milliseconds(layer: Geometry, name: str, load: ConvLoad, first: bool) -> float:
    """Return the median time of a form of a layer, the device's work included."""
    launch = there_and_back(layer, load, FORMS[name], first)
    return seconds(replayed(launch, load.device) if load.replayed else launch) / SECONDS


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
        load = ConvLoad(device, given.clients, batch, replayed=replays_graphs(device))
        sums = dict.fromkeys(FORMS, 0.0)
        for number, layer in enumerate(geometries(network)):
            took = {name: milliseconds(layer, name, load, number == 0) for name in FORMS}
            sums = {name: sums[name] + took[name] for name in FORMS}
            cells = " | ".join(f"{x:.2f}" for x in took.values())
            print(f"| {model}, {batch}, {layer.image}, {layer.kernels} | {cells} |")
        cells = " | ".join(f"{x:.2f}" for x in sums.values())
        print(f"| **{model}, {batch}** | {cells} |")


if __name__ == "__main__":
    main()
