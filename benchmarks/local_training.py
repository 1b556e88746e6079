"""Local training time of every protocol relative to fedavg's, side by side in one run.

One thread, one client, random images of 28 x 28, the loop executor. Protocols take turns (A-B-C,
A-B-C, ...), so that a busy neighbour slows all of them; a ratio is the median over the turns.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

from fedbench import registry
from fedbench.allocator import keep_memory
from fedbench.network import Shared
from fedbench.rng import Key
from fedbench.training import Client, Loop, Schedule


def seconds(name: str, model: str, batch: int, steps: int) -> float:
    """Of one client's round of so many steps."""
    network = registry.load("model", model).build((1, 28, 28), 10)
    shared = Shared(network, 1, torch.device("cpu"))
    protocol = registry.load("protocol", name)
    state = protocol.init(shared)
    tree = protocol.receive(shared, protocol.broadcast(shared, state, [0], Key(0)).take([0]))
    key = Key(2)
    x, y = key.normal(batch * steps, 1, 28, 28), torch.arange(batch * steps) % 10
    client = Client(tree, x, y, key, protocol.memory(shared), lambda grad: grad)
    loop = Loop(protocol, shared, Schedule(1, batch))
    protocol.frozen(shared)  # regenerated once a run, not once a round
    start = time.perf_counter()
    loop.train([client])
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--protocol", action="append")
    parser.add_argument("--model", action="append")
    parser.add_argument("--batch", type=int, action="append")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_memory()
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
