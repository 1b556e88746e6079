"""Local training time of every protocol relative to fedavg's, side by side in one run.

One thread, one client, random images of 28 x 28, the loop executor. Protocols take turns (A-B-C,
A-B-C, ...), so that a busy neighbour slows all of them; a ratio is the median over the turns.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from fedbench.core import registry
from fedbench.core.rng import Key
from fedbench.executors.malloc import keep_memory
from fedbench.executors.training import Client, Loop, Schedule
from fedbench.models.network import Shared
from fedbench.protocols.fsl import mask_rows
from fedbench.protocols.optimizers import Adam


def seconds(name: str, model: str, batch: int, steps: int) -> float:
    """Return how long one client's round of so many steps takes."""
    network = registry.load("model", model).build((1, 28, 28), 10)
    shared = Shared(network, 1, torch.device("cpu"))
    protocol = registry.load("protocol", name)
    state = protocol.init(shared)
    tree = protocol.receive(shared, protocol.broadcast(shared, state, [0], Key(0)).take([0]))
    key = Key(2)
    x = key.normal(batch * steps, 1, 28, 28)
    y = torch.arange(batch * steps) % 10
    client = Client(tree, x, y, key, protocol.memory(shared), lambda grad: grad)
    loop = Loop(protocol, shared, Schedule(1, batch))
    protocol.frozen(shared)  # regenerated once a run, not once a round
    start = time.perf_counter()
    loop.train([client])
    return time.perf_counter() - start


def parts(model: str) -> dict[str, float]:
    """Milliseconds that FedPM adds to a step, whatever the batch: passes over all weights."""
    d = Shared(
        registry.load("model", model).build((1, 28, 28), 10), 1, torch.device("cpu")
    ).weights.d
    score, g = Key(0).normal(d), Key(1).normal(d)
    theta = score.sigmoid()
    coin = Key(2).coins(theta).float()
    adam = Adam(lr=0.1)
    memory = adam.init({"fc1": score})
    works: dict[str, Callable[[], object]] = {
        "theta = sigmoid(s)": lambda: score.sigmoid(),
        "16 random bits a weight, compared": lambda: Key(2).coins(theta).float(),
        "m * w, and back": lambda: (coin * g, g * score * theta),
        "theta (1 - theta)": lambda: theta * (1 - theta),
        "SGD": lambda: score.sub(g, alpha=0.1),
        "Adam": lambda: adam.step({"fc1": score}, {"fc1": g}, memory),
        "top half by partition": lambda: mask_rows(score[None], d // 2),
    }
    milliseconds = {}
    for name, work in works.items():
        times = []
        for _ in range(11):
            start = time.perf_counter()
            work()
            times.append(time.perf_counter() - start)
        milliseconds[name] = 1e3 * statistics.median(times)
    return milliseconds


def main() -> None:
    """Print the ratios, and the parts with ``--parts``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--protocol", action="append")
    parser.add_argument("--model", action="append")
    parser.add_argument("--batch", type=int, action="append")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--parts", action="store_true", help="what a step of fedpm is made of")
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_memory()
    if options.parts:
        for model in options.model or ["lenet"]:
            for what, milliseconds in parts(model).items():
                print(f"{model:8} {what:34} {milliseconds:6.2f} ms")
        return
    names = ["fedavg", *(options.protocol or registry.names("protocol"))]
    names = list(dict.fromkeys(names))
    for model in options.model or ["lenet", "conv4"]:
        for batch in options.batch or [32, 8]:
            for name in names:
                seconds(name, model, batch, 1)
            turns = [
                {name: seconds(name, model, batch, options.steps) for name in names}
                for _ in range(options.turns)
            ]
            step = statistics.median(turn["fedavg"] for turn in turns) / options.steps
            print(f"\n{model}, batch {batch}: a step of fedavg takes {1e3 * step:.1f} ms")
            for name in names:
                ratios = [turn[name] / turn["fedavg"] for turn in turns]
                print(
                    f"  {name:28} {statistics.median(ratios):5.2f}"
                    f"  ({min(ratios):.2f} to {max(ratios):.2f})"
                )


if __name__ == "__main__":
    main()
