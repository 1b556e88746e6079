"""Predicted times of local steps on a GPU that is not there, from its speeds and counted work.

``python benchmarks/speed/gpu_predict.py`` prints Markdown: for every training that
``make gpu-accept`` times up to batch 32, the kernels, gigabytes and operations of a step of 25
clients in lock step, counted on the ``meta`` device, which has shapes and no numbers; then the
roofline and the step as written (`gpu_roofline.py`) at the speeds that are given. By default they
are round numbers for an H200: none of them was measured. A kernel that is slow for other reasons
than its bytes, as a selection by one block for a row, is not seen.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

import torch
from gpu_check import CPU, there
from gpu_roofline import Peaks, Step, counted
from gpu_stages import CLASSES, TRAININGS, Training

from fedbench.api import Shared
from fedbench.core import registry
from fedbench.executors.factory import executor, untrained_clients
from fedbench.executors.training import Schedule

FEW = (2, 3)  # clients, which share a launch; what is more is linear in them
LARGEST = 32  # batch: of larger ones three clients may not fit into what is a launch off CUDA
HEAD = (
    *("a step of 25 clients", "kernels", "GB", "GFLOP"),
    *("roofline, ms", "as written, ms", "in a CUDA graph, ms"),
)


def predicted(training: Training) -> Step:
    """Count a step of all clients of a training, from those of `FEW`."""
    network = registry.load("model", training.model).build(training.image, CLASSES)
    protocol = registry.load("protocol", training.protocol)
    meta = Shared(network, 1, torch.device("meta"))
    schedule = Schedule(1, training.batch)
    steps = []
    for n in FEW:
        clients = untrained_clients(protocol, Shared(network, 1, CPU), n, training.batch)
        moved = [there(client, meta.device) for client in clients]
        steps.append(counted(executor("padded", protocol, meta, schedule, n), moved, 1))
    few, more = steps
    further = training.clients - FEW[0]
    return Step(
        flops=few.flops + further * (more.flops - few.flops),
        least=few.least + further * (more.least - few.least),
        bytes=few.bytes + further * (more.bytes - few.bytes),
        kernels=few.kernels,
    )


def row(training: Training, step: Step, peaks: Peaks) -> list[str]:
    """Return the cells of a training."""
    return [
        training.name,
        f"{step.kernels:.0f}",
        f"{step.bytes / 1e9:.2f}",
        f"{step.flops / 1e9:.0f}",
        f"{1e3 * step.roofline(peaks):.2f}",
        f"{1e3 * step.as_written(peaks, recorded=False):.2f}",
        f"{1e3 * step.as_written(peaks, recorded=True):.2f}",
    ]


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bytes", type=float, default=4e12, help="a second, of a copy")
    parser.add_argument("--flops", type=float, default=5e13, help="a second, in float32")
    parser.add_argument("--launch", type=float, default=1e-5, help="seconds, from Python")
    parser.add_argument("--replay", type=float, default=2.5e-6, help="seconds, in a CUDA graph")
    parser.add_argument("--only", nargs="+", default=[], help="part of a name")
    given = parser.parse_args(words)
    os.environ["FEDBENCH_PROBE"] = "off"  # nothing can be timed without numbers
    peaks = Peaks(given.bytes, given.flops, given.launch, given.replay)
    print("| " + " | ".join(HEAD) + " |\n| :-- |" + " --: |" * (len(HEAD) - 1))
    for training in TRAININGS:
        if training.batch > LARGEST:
            continue
        if not given.only or any(text in training.name for text in given.only):
            cells = row(training, predicted(training), peaks)
            print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
