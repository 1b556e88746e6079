"""The suite of ``fedbench bench``: ours against what somebody would write, side by side."""

from __future__ import annotations

import dataclasses
import os
import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from fedbench import registry
from fedbench.api import Shared
from fedbench.bench import by_hand, defenses, servers
from fedbench.bench.defenses import Cost, described
from fedbench.bench.paired import Pair, Ratio, compare
from fedbench.executors import executor
from fedbench.network import ConvNet
from fedbench.rng import Key
from fedbench.training import Client, Executor, Schedule

IMAGE, CLASSES = (1, 28, 28), 10
PLAIN = "momentum=0,weight_decay=0"
TRAINING, ROUND = "local training", "a round of FSL"


@dataclass(frozen=True)
class Size:
    """How much of everything.

    Args:
        models: Trained.
        batches: Samples a step.
        clients: That train, n.
        samples: Of all of them together, each turn.
        rows: n of what the server does.
        width: d of what the server does.
        repeats: Turns.
        largest: Growth is shown up to this many values, n d.
    """

    models: tuple[str, ...]
    batches: tuple[int, ...]
    clients: int
    samples: int
    rows: int
    width: int
    repeats: int
    largest: float


RULES = ("mean", "median", "trimmed-mean", "multi-krum")  # whose growth is shown
QUICK = Size(("lenet", "conv4"), (8, 32), 4, 256, 25, 200_000, 3, 1e8)
FULL = Size(("lenet", "conv4"), (8, 32, 128), 25, 6400, 25, 1_600_000, 5, 1e9)


@dataclass(frozen=True)
class Machine:
    """Where it was measured.

    Args:
        processor: As it calls itself.
        cores: That this process may use.
        threads: Of torch.
        device: ``cpu``, or the name of the accelerator.
        torch: Version.
        python: Version.
        peak: Operations a second of a float32 matrix product.
    """

    processor: str
    cores: int
    threads: int
    device: str
    torch: str
    python: str
    peak: float


def machine(device: torch.device, peak: float) -> Machine:
    """The one that runs this."""
    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        models = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        name = models[0].partition(":")[2].strip() if models else name
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return Machine(
        processor=name,
        cores=cores or 1,
        threads=torch.get_num_threads(),
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        torch=torch.__version__,
        python=platform.python_version(),
        peak=peak,
    )


def play(
    size: Size,
    device: torch.device,
    engine: str = "auto",
    say: Callable[[str], None] = lambda text: None,
) -> Iterator[Ratio]:
    """Every comparison, one after the other."""

    def pairs() -> Iterator[Pair]:
        yield from training(size, device, engine)
        yield from fsl(size, device, engine)
        yield from servers.rules(size.rows, size.width, device)
        yield from servers.messages(size.rows, size.width, device)
        yield from servers.framework(size.rows, device)

    for pair in pairs():
        say(f"{pair.group}: {pair.what}")
        yield compare(pair, size.repeats, device)


def growths(
    size: Size, device: torch.device, say: Callable[[str], None] = lambda text: None
) -> Iterator[Cost]:
    """Time and memory of the rules whose growth is shown."""
    for n in (10, 100, 1000):
        for d in (100_000, 1_000_000, 10_000_000):
            if n * d <= size.largest:
                threads = torch.get_num_threads()
                yield from defenses.play(RULES, [n], [d], 1, device.type, threads, say)


@dataclass(frozen=True, eq=False)
class Bench:
    """A protocol's clients with random images, equally many each.

    Args:
        protocol: With its parameters.
        shared: Network, seed and device.
        executor: Who trains them.
        clients: Whom.
    """

    protocol: Any
    shared: Shared
    executor: Executor
    clients: list[Client]

    @property
    def network(self) -> ConvNet:
        """Its layers are a table, which can be written by hand as well."""
        return cast(ConvNet, self.shared.network)

    @property
    def samples(self) -> int:
        """Of all clients together."""
        return sum(len(client.x) for client in self.clients)


def bench(
    text: str, model: str, batch: int, size: Size, device: torch.device, engine: str
) -> Bench:
    """One epoch of everybody's images.

    Args:
        text: The protocol, as typed.
        model: Its name.
        batch: Samples a step.
        size: How much.
        device: Where.
        engine: Which executor.
    """
    shared = Shared(registry.load("model", model).build(IMAGE, CLASSES), 1, device)
    protocol = registry.load("protocol", text)
    sent = protocol.broadcast(shared, protocol.init(shared), [0], Key(0))
    tree = protocol.receive(shared, sent.take([0]))
    each = max(size.samples // size.clients // batch, 1) * batch
    labels = torch.arange(each, device=device)
    clients = [
        Client(
            tree=tree,
            x=Key(2).fold(i).normal(each, *IMAGE, device=device),
            y=(labels + i) % CLASSES,
            key=Key(3).fold(i),
            memory=protocol.memory(shared),
            wrap_grad=_untouched,
        )
        for i in range(size.clients)
    ]
    trains = executor(engine, protocol, shared, Schedule(1, batch), together=len(clients))
    return Bench(protocol, shared, trains, clients)


def _untouched(grad: Any) -> Any:
    return grad


def training(size: Size, device: torch.device, engine: str) -> Iterator[Pair]:
    """Our executor against a loop that trains one model in place."""
    for model in size.models:
        for batch in size.batches:
            ours = bench(f"fedavg:lr=0.01,{PLAIN}", model, batch, size, device, engine)
            yield weights(model, ours)
            half = dataclasses.replace(ours.executor, precision="bf16")
            yield weights(f"{model}, bf16", dataclasses.replace(ours, executor=half), None)
            if device.type == "cpu" and torch.get_num_threads() > 1:
                many = executor("forked", ours.protocol, ours.shared, half.schedule, 1, "bf16")
                yield weights(
                    f"{model}, bf16, forked", dataclasses.replace(ours, executor=many), 1.8
                )


def weights(what: str, ours: Bench, target: float | None = 0.95) -> Pair:
    """Plain SGD of all clients, against one model in float32."""
    module = by_hand.model_of(ours.network, ours.shared.device)
    start = ours.shared.layout.flatten(ours.clients[0].tree)
    schedule = ours.executor.schedule
    return Pair(
        TRAINING,
        f"{what}, batch {schedule.batch_size}",
        "a loop by hand",
        lambda: ours.executor.train(ours.clients),
        lambda: by_hand.train(module, start, ours.clients, schedule, 0.01),
        target=target,
        flops=6.0 * by_hand.macs(ours.network) * ours.samples,
        units=len(ours.clients),
    )


def fsl(size: Size, device: torch.device, engine: str) -> Iterator[Pair]:
    """Training of masks, ranking and vote, against the algorithm as it is printed."""
    for batch in size.batches:
        yield ranked(bench(f"fsl:lr=0.4,{PLAIN}", "lenet", batch, size, device, engine))


def ranked(ours: Bench) -> Pair:
    """One round of FSL, on both sides without wire and checks.

    Ours sorts the initial scores once a run and turns the ranking into scores once a round.
    """
    protocol, shared, clients = ours.protocol, ours.shared, ours.clients
    schedule, state = ours.executor.schedule, protocol.init(ours.shared)
    network = protocol.frozen(shared)
    weights = [network[name] for name in shared.weights.names]
    orders = [order.long() for order in shared.weights.layers(state[0])]
    start, sent_down = (
        list(clients[0].tree.values()),
        protocol.broadcast(shared, state, [0], Key(0)),
    )

    def mine() -> Tensor:
        tree = protocol.receive(shared, sent_down)
        trained = [dataclasses.replace(client, tree=tree) for client in clients]
        updates, memories = ours.executor.train(trained)
        sent, _ = protocol.message(shared, updates, [client.key for client in clients], memories)
        total = sent.values().sum(dim=0, dtype=torch.int64).double()
        ranking: Tensor = protocol.server_step(shared, state, total, len(clients), Key(0))
        return ranking

    return Pair(
        ROUND,
        f"lenet, batch {schedule.batch_size}",
        "full sorts",
        mine,
        lambda: by_hand.fsl_round(weights, orders, start, clients, schedule, ours.network, 0.4),
        target=4.0 if schedule.batch_size == 8 else None,
        units=len(clients),
    )


@dataclass(frozen=True)
class Report:
    """What was measured, and on what.

    Args:
        machine: Where.
        ratios: Every comparison.
        growth: Of rules, with the number of rows and columns.
    """

    machine: Machine
    ratios: list[Ratio]
    growth: list[Cost]

    def described(self) -> dict[str, Any]:
        """For programs."""
        return {
            "machine": dataclasses.asdict(self.machine),
            "ratios": [
                dataclasses.asdict(ratio) | {"faster": ratio.faster, "met": ratio.met}
                for ratio in self.ratios
            ],
            "growth": [described(cost) for cost in self.growth],
        }
