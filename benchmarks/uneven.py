"""Clients of unequal length in lock step: padded, grouped by their steps, one after the other.

``python benchmarks/uneven.py`` samples n clients of `digits` split by ``dirichlet:beta=0.3``, and
trains them for one epoch in three ways, in turns: the loop, lock step of clients with equally many
steps (grouped), and lock step of clients that wait for the longest one of their launch (padded).
Ratios are of processor time on one thread, the median of neighbouring turns: above 1 the way is
faster than the loop. ``useful`` is the share of the padded way's steps that clients need.
"""

import argparse
import statistics
import time

import torch
from rich.console import Console
from rich.table import Table

from fedbench.core import registry
from fedbench.executors.factory import untrained_clients
from fedbench.executors.malloc import keep_memory
from fedbench.executors.training import Client, Executor, Loop
from fedbench.executors.vmap import Padded, Stacked
from fedbench.experiment.prepare import prepare
from fedbench.experiment.scenario import Scenario


def uneven(protocol: str, model: str, n: int) -> tuple[Loop, list[Client]]:
    """Prepare the loop, and clients of the first round with random images."""
    scenario = Scenario.of(
        protocol=protocol,
        model=model,
        partition="dirichlet:beta=0.3",
        per_round=n,
        epochs=1,
        malicious=0.0,
    )
    setup = prepare(scenario, "cpu", "loop")
    sizes = [len(setup.population.train[i]) for i in setup.sample(0)]
    rule = registry.load("protocol", protocol)
    clients = untrained_clients(rule, setup.shared, n, max(sizes))
    loop = setup.executor
    assert isinstance(loop, Loop)
    return loop, [
        Client(tree=c.tree, x=c.x[:size], y=c.y[:size], key=c.key, memory=c.memory)
        for c, size in zip(clients, sizes, strict=True)
    ]


def seconds(engine: Executor, clients: list[Client]) -> float:
    """Processor time that training takes."""
    start = time.process_time()
    engine.train(clients)
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-p", "--protocol", nargs="+", default=["fedavg", "fsl", "fedpm"])
    parser.add_argument("-m", "--model", nargs="+", default=["micro", "lenet"])
    parser.add_argument("-n", type=int, nargs="+", default=[10, 25])
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_memory()
    table = Table("model", "protocol", "n", "launches", "useful", "grouped", "padded", "ranges")
    for model in options.model:
        for protocol in options.protocol:
            for n in options.n:
                loop, clients = uneven(protocol, model, n)
                grouped = Stacked(loop.protocol, loop.shared, loop.schedule)
                padded = Padded(loop.protocol, loop.shared, loop.schedule)
                ways = (loop, grouped, padded)
                turns = [[seconds(way, clients) for way in ways] for _ in range(1 + options.turns)]
                ratios = [[turn[0] / turn[way] for turn in turns[1:]] for way in (1, 2)]
                table.add_row(
                    *(model, protocol, str(n), str(len(list(padded.launches(clients, True))))),
                    f"{padded.useful([loop.schedule.steps(len(c.x)) for c in clients]):.2f}",
                    *(f"{statistics.median(each):.2f}" for each in ratios),
                    ", ".join(f"{min(each):.2f}-{max(each):.2f}" for each in ratios),
                )
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
