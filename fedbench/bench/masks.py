"""Training of masks: against loops by hand, against training of weights, and a round of FSL."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import torch
from torch import Tensor

from fedbench.bench import by_hand
from fedbench.bench.clients import PLAIN, TRAINING, Bench, Size, bench
from fedbench.bench.paired import Pair
from fedbench.core.rng import Key

ROUND = "a round of FSL"
BERNOULLI, TOP = "fedpm:lr=0.1,optimizer=sgd", f"fsl:lr=0.4,{PLAIN}"
SHARE = {("lenet", 8): 0.45, ("conv4", 32): 0.9}  # of a step of weights, at least


def pairs(size: Size, device: torch.device, engine: str) -> Iterator[Pair]:
    """Local training of masks beside a loop by hand, and beside our own training of weights.

    Of fewer samples than weights, for a step takes twice the time.
    """
    for model in size.models:
        for batch in size.batches:
            few = shorter(size, batch)
            drawn = bench(BERNOULLI, model, batch, few, device, engine)
            yield bernoulli(model, drawn)
            if (target := SHARE.get((model, batch))) is None:
                continue
            plain = bench(f"fedavg:lr=0.01,{PLAIN}", model, batch, few, device, engine)
            yield beside(f"{model}, drawn masks", drawn, plain, target)
            best = bench(TOP, model, batch, few, device, engine)
            yield beside(f"{model}, the best half", best, plain, target)


def shorter(size: Size, batch: int) -> Size:
    """Half of the samples, but at least two steps for every client."""
    return dataclasses.replace(size, samples=max(size.samples // 2, 2 * batch * size.clients))


def bernoulli(what: str, ours: Bench) -> Pair:
    """FedPM's local training by plain SGD, masks drawn in every step."""
    frozen = ours.protocol.frozen(ours.shared)
    weights = [frozen[name] for name in ours.shared.weights.names]
    start, schedule = list(ours.clients[0].tree.values()), ours.executor.schedule
    draws = torch.Generator(ours.shared.device).manual_seed(0)

    def coins(p: Tensor) -> Tensor:
        return p.bernoulli(generator=draws)

    return Pair(
        TRAINING,
        f"{what}, drawn masks, batch {schedule.batch_size}",
        "a loop by hand",
        lambda: ours.executor.train(ours.clients),
        lambda: by_hand.mask_train(
            weights, start, ours.clients, schedule, ours.network, ours.protocol.lr, coins
        ),
        target=0.95,
        units=len(ours.clients),
    )


def beside(what: str, masks: Bench, weights: Bench, target: float) -> Pair:
    """As many steps of masks as of weights, both ours."""
    return Pair(
        TRAINING,
        f"{what}, batch {masks.executor.schedule.batch_size}",
        "weights",
        lambda: masks.executor.train(masks.clients),
        lambda: weights.executor.train(weights.clients),
        target=target,
        units=len(masks.clients),
    )


def fsl(size: Size, device: torch.device, engine: str) -> Iterator[Pair]:
    """Training of masks, ranking and vote, against the algorithm as it is printed.

    Of half of the clients with fewer samples each: full sorts take long.
    """
    half = dataclasses.replace(size, clients=size.clients // 2, samples=size.samples // 2)
    for batch in size.batches:
        yield ranked(bench(TOP, "lenet", batch, shorter(half, batch), device, engine))


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
