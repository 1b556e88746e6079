"""Local training against loops by hand, masks against weights, lock step against one by one."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import by_hand
import torch
from paired import Pair, Work
from torch import Tensor

from fedbench.api import Shared
from fedbench.core import registry
from fedbench.core.rng import Key
from fedbench.executors.conv_kernels import FORMS, ConvLoad, geometries, there_and_back
from fedbench.executors.factory import executor, untrained_clients
from fedbench.executors.training import Client, Executor, Loop, Schedule
from fedbench.executors.vmap import MAX_TIMED_CLIENTS, Padded
from fedbench.models.network import ConvNet, Convolve

TRAINING = "local training"
ROUND = "a round of FSL"
LOCK_STEP = "lock step"
IMAGE = (1, 28, 28)
CLASSES = 10
PLAIN = "momentum=0,weight_decay=0"
WEIGHTS = f"fedavg:lr=0.01,{PLAIN}"
BERNOULLI = "fedpm:lr=0.1,optimizer=sgd"
TOP = f"fsl:lr=0.4,{PLAIN}"
SHARE = {("lenet", 8): 0.45, ("conv4", 32): 0.9}  # of a step of weights, at least
BATCH = 8  # of lock step
EVEN = (3,) * 12
UNEVEN = (1, 1, 1, 2, 2, 2, 3, 3, 4, 5, 6, 8)  # steps of each client, 36 and 38


@dataclass(frozen=True)
class Size:
    """How much is measured.

    Args:
        models: Networks that are trained.
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


@dataclass(frozen=True, eq=False)
class Cohort:
    """Clients of a protocol with random images, equally many each, and who trains them."""

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
        """Samples of all clients together."""
        return sum(len(client.x) for client in self.clients)

    @property
    def batch(self) -> int:
        """Samples of a client per step."""
        return self.executor.schedule.batch_size

    def train(self) -> tuple[Tensor, Any]:
        """Train all clients: updates ``(n, d)`` and memories."""
        return self.executor.train(self.clients)


def cohort(
    text: str, model: str, batch: int, size: Size, device: torch.device, engine: str
) -> Cohort:
    """Prepare clients that train one epoch.

    Args:
        text: The protocol, as typed.
        model: Its network.
        batch: Samples a step.
        size: How much.
        device: Where.
        engine: Which executor.
    """
    shared = Shared(registry.load("model", model).build(IMAGE, CLASSES), 1, device)
    protocol = registry.load("protocol", text)
    each = max(size.samples // size.clients // batch, 1) * batch
    clients = untrained_clients(protocol, shared, size.clients, each)
    trains = executor(engine, protocol, shared, Schedule(1, batch), sizes=[each] * len(clients))
    return Cohort(protocol, shared, trains, clients)


def training(size: Size, device: torch.device, engine: str) -> Iterator[Pair]:
    """Yield our executor against a loop that trains one model in place.

    In bfloat16 the first network only, if the processor has no instructions for it: that is slow.
    """
    in_bf16 = size.models if multiplies_bf16(device) else size.models[:1]
    for model in size.models:
        for batch in size.batches:
            ours = cohort(WEIGHTS, model, batch, size, device, engine)
            yield weights(model, ours)
            if model not in in_bf16:
                continue
            half = dataclasses.replace(ours.executor, precision="bf16")
            yield weights(f"{model}, bf16", dataclasses.replace(ours, executor=half), None)


def multiplies_bf16(device: torch.device, info: Path = Path("/proc/cpuinfo")) -> bool:
    """Return False for a processor that lists its instructions, without bfloat16 among them."""
    if device.type != "cpu" or not info.exists():
        return True
    words = set(info.read_text().split())
    return not words & {"flags", "Features"} or bool(words & {"avx512_bf16", "amx_bf16", "bf16"})


def weights(what: str, ours: Cohort, target: float | None = 0.95) -> Pair:
    """Compare plain SGD of all clients with one model in float32."""
    module = by_hand.model_of(ours.network, ours.shared.device)
    start = ours.shared.layout.flatten(ours.clients[0].tree)
    schedule = ours.executor.schedule
    return Pair(
        TRAINING,
        f"{what}, batch {ours.batch}",
        "a loop by hand",
        ours.train,
        lambda: by_hand.train(module, start, ours.clients, schedule, 0.01),
        target=target,
        flops=6.0 * by_hand.macs(ours.network) * ours.samples,
        units=len(ours.clients),
    )


def masks(size: Size, device: torch.device, engine: str) -> Iterator[Pair]:
    """Yield training of masks beside a loop by hand, and beside our own training of weights.

    On fewer samples than weights, for a step takes twice the time.
    """
    for model in size.models:
        for batch in size.batches:
            few = shorter(size, batch)
            drawn = cohort(BERNOULLI, model, batch, few, device, engine)
            yield bernoulli(model, drawn)
            if (target := SHARE.get((model, batch))) is None:
                continue
            plain = cohort(WEIGHTS, model, batch, few, device, engine)
            best = cohort(TOP, model, batch, few, device, engine)
            for what, ours in (("drawn masks", drawn), ("the best half", best)):
                yield Pair(
                    TRAINING,
                    f"{model}, {what}, batch {batch}",
                    "weights",
                    ours.train,
                    plain.train,
                    target=target,
                    units=len(ours.clients),
                )


def shorter(size: Size, batch: int) -> Size:
    """Half of the samples, but at least two steps for every client."""
    return dataclasses.replace(size, samples=max(size.samples // 2, 2 * batch * size.clients))


def bernoulli(what: str, ours: Cohort) -> Pair:
    """Compare FedPM's local training by plain SGD, masks drawn in every step."""
    frozen = ours.protocol.frozen(ours.shared)
    fixed = [frozen[name] for name in ours.shared.weights.names]
    start = list(ours.clients[0].tree.values())
    schedule = ours.executor.schedule
    draws = torch.Generator(ours.shared.device).manual_seed(0)

    def coins(p: Tensor) -> Tensor:
        return p.bernoulli(generator=draws)

    return Pair(
        TRAINING,
        f"{what}, drawn masks, batch {ours.batch}",
        "a loop by hand",
        ours.train,
        lambda: by_hand.mask_train(
            fixed, start, ours.clients, schedule, ours.network, ours.protocol.lr, coins
        ),
        target=0.95,
        units=len(ours.clients),
    )


def fsl(size: Size, device: torch.device, engine: str) -> Iterator[Pair]:
    """Yield a round of FSL, of half of the clients with fewer samples: full sorts take long."""
    half = dataclasses.replace(size, clients=size.clients // 2, samples=size.samples // 2)
    for batch in size.batches:
        model = size.models[0]
        yield ranked(model, cohort(TOP, model, batch, shorter(half, batch), device, engine))


def ranked(model: str, ours: Cohort) -> Pair:
    """Compare a round of FSL with the algorithm as it is printed, without wire and checks.

    Ours sorts the initial scores once a run and turns the ranking into scores once a round.
    """
    protocol, shared, clients = ours.protocol, ours.shared, ours.clients
    schedule = ours.executor.schedule
    state = protocol.init(ours.shared)
    network = protocol.frozen(shared)
    fixed = [network[name] for name in shared.weights.names]
    orders = [order.long() for order in shared.weights.layers(state[0])]
    start = list(clients[0].tree.values())
    sent_down = protocol.broadcast(shared, state, [0], Key(0))

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
        f"{model}, batch {ours.batch}",
        "full sorts",
        mine,
        lambda: by_hand.fsl_round(fixed, orders, start, clients, schedule, ours.network, 0.4),
        target=4.0 if ours.batch == 8 else None,
        units=len(clients),
    )


def lock_step(size: Size, device: torch.device) -> Iterator[Pair]:
    """Yield lock step on a small network and on the first of the sizes', with even and uneven data.

    Then the layers of that one in two forms. Launches that are recorded: `gpu_stages.steps`.
    """
    for model in ("micro", size.models[0]):
        for steps in (EVEN, UNEVEN):
            yield stacked(model, uneven(model, steps, size, device))
    yield forms(size.models[0], device)


def uneven(model: str, steps: Sequence[int], size: Size, device: torch.device) -> Cohort:
    """Prepare clients with so many steps each."""
    n = len(steps)
    most = dataclasses.replace(size, clients=n, samples=n * BATCH * max(steps))
    whole = cohort(WEIGHTS, model, BATCH, most, device, "loop")
    clients = [
        dataclasses.replace(client, x=client.x[: BATCH * s], y=client.y[: BATCH * s])
        for client, s in zip(whole.clients, steps, strict=True)
    ]
    return dataclasses.replace(whole, clients=clients)


def stacked(model: str, ours: Cohort) -> Pair:
    """Compare both executors on the same clients; the name says how many share a launch."""
    loop = Loop(ours.protocol, ours.shared, ours.executor.schedule)
    many = Padded(ours.protocol, ours.shared, ours.executor.schedule)
    groups = list(many.launches(ours.clients, True))
    return Pair(
        LOCK_STEP,
        f"{model}, {len(ours.clients)} clients in {len(groups)}",
        "one by one",
        lambda: many.train(ours.clients),
        lambda: loop.train(ours.clients),
        units=len(ours.clients),
    )


def forms(model: str, device: torch.device) -> Pair:
    """Compare the convolutions of a network in a step of `MAX_TIMED_CLIENTS` clients, both ways."""
    network = registry.load("model", model).build(IMAGE, CLASSES)

    def step(form: Convolve) -> Work:
        load = ConvLoad(device, MAX_TIMED_CLIENTS, BATCH)
        layers = [there_and_back(layer, load, form) for layer in geometries(network)]
        return lambda: [layer() for layer in layers]

    what = f"{model}, convolutions of {MAX_TIMED_CLIENTS} clients in groups"
    ways = step(FORMS["groups"]), step(FORMS["matrices"])
    return Pair(LOCK_STEP, what, "as matrices", *ways)
