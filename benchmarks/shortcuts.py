"""Every shortcut in the code against the obvious way, side by side on one thread.

Each pair is timed in turn, A-B-A-B, so that a busy neighbour hurts both; the table shows the median
ratio and its extremes over the repetitions. Results are equal where the code says so; that is
tested in ``tests/``, not here.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import cast

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from fedbench.api import Shared
from fedbench.core import registry
from fedbench.core.order_statistics import sorted_rows
from fedbench.core.rng import Key
from fedbench.executors.factory import untrained_clients
from fedbench.executors.malloc import keep_memory
from fedbench.executors.training import Loop, Schedule
from fedbench.models.network import laid_out
from fedbench.payload.rankings import argsort
from fedbench.protocols.fedavg import FedAvg
from fedbench.protocols.fsl import mask_rows
from fedbench_defenses.distances import squared_distances

Work = Callable[[], object]

ROUNDS = """
import sys, time, torch
from fedbench.executors.malloc import keep_memory
torch.set_num_threads(int(sys.argv[1]))
if sys.argv[2] == "keep":
    keep_memory()
import fedbench
scenario = fedbench.Scenario(rounds=1)
fedbench.play(scenario, device="cpu")
start = time.perf_counter()
fedbench.play(scenario.model_copy(update={"rounds": 6}), device="cpu")
print(time.perf_counter() - start)
"""


def rounds(threads: int, allocator: str) -> Work:
    """Six rounds of fedavg on digits in a process of their own, which times itself."""
    command = [sys.executable, "-c", ROUNDS, str(threads), allocator]
    return lambda: float(subprocess.run(command, capture_output=True, check=True).stdout)


class ChannelsFirst(Loop):
    """Batches as images lie."""

    last = False


def trained(model: str) -> tuple[Work, Work]:
    """Four clients with 64 images of 28 x 28 each, batch 8: channels last, and first."""
    keep_memory()
    shared = Shared(registry.load("model", model).build((1, 28, 28), 10), 1, torch.device("cpu"))
    clients = untrained_clients(FedAvg(), shared, 4, 64)
    kinds = [kind(FedAvg(), shared, Schedule(1, 8)) for kind in (Loop, ChannelsFirst)]
    assert [loop.last for loop in kinds] == [True, False]
    last, first = (partial(loop.train, clients) for loop in kinds)
    return last, first


def scored(model: str) -> tuple[Work, Work]:
    """Logits of 256 images of 28 x 28: channels last, and first."""
    network = registry.load("model", model).build((1, 28, 28), 10)
    params = network.init(Key(0))
    x = Key(1).normal(256, 1, 28, 28)

    def logits(images: Tensor) -> Tensor:
        with torch.no_grad():
            return cast(Tensor, network.logits(params, images))

    return lambda: logits(laid_out(x)), lambda: logits(x)


def pairs(n: int, d: int) -> Iterator[tuple[str, Work, Work]]:
    x = Key(0).normal(n, d)
    scores = Key(1).uniform(1, d)

    def full_sort_mask() -> object:
        order = scores.argsort(dim=1)
        return torch.zeros_like(scores).scatter_(1, order[:, d // 2 :], 1.0)

    yield "rankings: index below value / argsort", lambda: argsort(x), lambda: x.argsort(dim=1)
    yield "mask: partition / full sort", lambda: mask_rows(scores, d // 2), full_sort_mask
    yield "clients sorted: network / torch.sort", lambda: sorted_rows(x), lambda: x.sort(dim=0)
    yield "Krum distances: Gram / cdist", lambda: squared_distances(x), lambda: torch.cdist(x, x)
    yield (
        "std: two passes / torch.std",
        lambda: ((x - x.mean(dim=0)).square_().sum(dim=0) / (n - 1)).sqrt_(),
        lambda: x.std(dim=0),
    )
    for model in ("lenet", "micro", "conv4"):
        yield (f"{model}: channels last / first", *trained(model))
        yield (f"{model}, evaluation: channels last / first", *scored(model))
    yield "a run: allocator keeps / gives back", rounds(1, "keep"), rounds(1, "system")
    yield "a run: one thread / two threads", rounds(1, "keep"), rounds(2, "keep")


def seconds(work: Work) -> float:
    start = time.perf_counter()
    result = work()
    return result if isinstance(result, float) else time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-n", type=int, default=10, help="clients")
    parser.add_argument("-d", type=int, default=151_072, help="parameters")
    parser.add_argument("--repeat", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    table = Table("shortcut / obvious", "seconds", "seconds", "times faster", "from", "to")
    for name, fast, obvious in pairs(args.n, args.d):
        trials = [(seconds(fast), seconds(obvious)) for _ in range(args.repeat + 1)][1:]
        ratios = sorted(b / a for a, b in trials)
        medians = [statistics.median(column) for column in zip(*trials, strict=True)]
        table.add_row(
            name,
            *(f"{m:.4f}" for m in medians),
            f"{statistics.median(ratios):.1f}",
            f"{ratios[0]:.1f}",
            f"{ratios[-1]:.1f}",
        )
    console = Console()
    console.print(f"n = {args.n}, d = {args.d}, one thread unless said, {args.repeat} repetitions")
    console.print(table)


if __name__ == "__main__":
    main()
