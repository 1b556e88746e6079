"""Workloads of both sides, in one place, so that what they train and send cannot differ.

It needs NumPy only, which every environment has. Images, labels and the weights before training
come from here; who is sampled when, and in which order a client sees its images, is the business
of each framework.
"""

from __future__ import annotations

import json
import math
import resource
import sys
import time
from argparse import ArgumentParser
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

MEAN, STD, WHITE = 0.5, 0.25, 255.0  # floats are (x / WHITE - MEAN) / STD
PARTS = 2  # one of these of an image is pattern, the rest is noise
JUDGED = 1000  # of the training images, the first ones: what the loss at the end is of


@dataclass(frozen=True)
class Training:
    """The shape of pfl-research's CIFAR-10 benchmark, with made-up images.

    Two 3x3 convolutions without padding, a pool, a hidden layer, biases: 1,626,442 parameters.
    Every class has a pattern, and an image is a part of it in noise, so there is something to
    learn in a few rounds, but not all of it.

    Args:
        clients: All of them.
        cohort: Of a round.
        samples: Of each client.
        batch: Samples a step; one epoch a round.
        lr: Of plain SGD on the client; the server adds the mean move.
        image: Channels, height, width.
        channels: Of the convolutions.
        hidden: Width of the hidden layer.
        classes: Labels.
        seed: Of everything here.
    """

    clients: int = 1000
    cohort: int = 50
    samples: int = 50
    batch: int = 10
    lr: float = 0.1
    image: tuple[int, int, int] = (3, 32, 32)
    channels: tuple[int, int] = (32, 64)
    hidden: int = 128
    classes: int = 10
    seed: int = 0

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Parameter name to shape: weights, named like the layer, then biases."""
        (first, second), (channels, height, width) = self.channels, self.image
        pixels = ((height - 4) // 2) * ((width - 4) // 2)
        weights = {
            "conv1": (first, channels, 3, 3),
            "conv2": (second, first, 3, 3),
            "fc1": (self.hidden, second * pixels),
            "fc2": (self.classes, self.hidden),
        }
        return weights | {f"{name}.bias": shape[:1] for name, shape in weights.items()}

    def weights(self) -> dict[str, NDArray[np.float32]]:
        """Weights before training: uniform within ``1 / sqrt(fan_in)``, as torch.nn has it."""
        draw = np.random.default_rng((self.seed, 1))
        shapes = self.shapes
        bounds = {name: 1 / math.sqrt(math.prod(shape[1:])) for name, shape in shapes.items()}
        return {
            name: draw.uniform(-1, 1, shape).astype(np.float32)
            * np.float32(bounds[name.removesuffix(".bias")])
            for name, shape in shapes.items()
        }

    def images(self) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """``x (clients * samples, C, H, W)`` and ``y``; each client's are neighbours."""
        draw = np.random.default_rng((self.seed, 2))
        total = self.clients * self.samples
        patterns = draw.integers(0, 256, (self.classes, *self.image), dtype=np.uint16)
        y = draw.integers(0, self.classes, total)
        x = draw.integers(0, 256, (total, *self.image), dtype=np.uint8)
        for rows in np.array_split(np.arange(total), -(-total // 1000)):
            noise = x[rows].astype(np.uint16)
            x[rows] = (PARTS - 1) * noise // PARTS + patterns[y[rows]] // PARTS
        return x, y


@dataclass(frozen=True)
class Idling:
    """Clients that send what they were sent: what a framework takes for itself.

    Args:
        clients: All of them.
        cohort: Of a round.
        network: Whose parameters travel; 1,199,882 of them.
    """

    clients: int = 100
    cohort: int = 25
    network: Training = Training(image=(1, 28, 28))


def options(parser: ArgumentParser) -> ArgumentParser:
    """Add the options that every script has."""
    parser.add_argument("--rounds", type=int, default=5, help="that are timed, after one more")
    parser.add_argument("--threads", type=int, default=1, help="of torch, in each process")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    return parser


@dataclass(frozen=True)
class Moment:
    """When something happened, and the seconds of CPU that this process has had until then."""

    clock: float
    cpu: float

    @classmethod
    def now(cls) -> Moment:
        """Children count once they have been waited for."""
        spent = (
            resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        )
        return cls(time.perf_counter(), sum(usage.ru_utime + usage.ru_stime for usage in spent))


def between(moments: Sequence[Moment]) -> dict[str, list[float]]:
    """Seconds of each span between two neighbours: of the clock, and of CPU."""
    spans = list(pairwise(moments))
    return {
        "seconds": [b.clock - a.clock for a, b in spans],
        "cpu": [b.cpu - a.cpu for a, b in spans],
    }


def say(packages: Sequence[str], **measured: Any) -> None:
    """One line of JSON, the last one of a script, for `side_by_side.py`."""
    versions = {name: version(name) for name in packages}
    versions["python"] = sys.version.split()[0]
    print(json.dumps({"versions": versions} | measured), flush=True)
