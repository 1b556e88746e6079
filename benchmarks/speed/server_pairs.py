"""Work of a round beside training, against the obvious library call."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import by_hand
import torch
from paired import Pair, Work
from torch import Tensor

from fedbench.api import AttackView, Batches, Defense, Grad, Memory, Oracle
from fedbench.core import registry
from fedbench.core.blocks import hadamard
from fedbench.core.order_statistics import largest
from fedbench.core.rng import Key
from fedbench.core.tiling import column_sums
from fedbench.core.trees import Tree
from fedbench.executors.training import Loop
from fedbench.experiment.prepare import prepare
from fedbench.experiment.scenario import Scenario
from fedbench.experiment.state import RunState
from fedbench.payload import FloatVectors, Rankings, ranking
from fedbench.payload.packets import pack
from fedbench.protocols.fedavg import FedAvg
from fedbench.run import play_round
from fedbench.testing.defenses import view_of

SERVER, MESSAGES, FRAMEWORK = "server", "messages", "framework"


def rules(n: int, d: int, device: torch.device) -> Iterator[Pair]:
    """Yield aggregation of random rows ``(n, d)``, and the search of an attack by a fifth."""
    f = n // 5
    x = Key(4).normal(n, d, device=device)
    payload = FloatVectors(x)

    def call(name: str) -> Callable[[], Tensor]:
        rule: Defense[Any] = registry.load("defense", name).declared(f)
        view = view_of(payload)
        return lambda: rule.aggregate(payload, rule.init(payload.spec), view.asked())[0]

    def mean() -> Tensor:
        return x.mean(dim=0)

    trimmed, median, krum = (call(name) for name in ("trimmed-mean", "median", "multi-krum"))

    def pair(
        what: str, against: str, mine: Work, theirs: Work, target: float | None = None
    ) -> Pair:
        return Pair(SERVER, what, against, mine, theirs, target)

    yield pair("trimmed mean", "torch.sort", trimmed, lambda: by_hand.trimmed_mean(x, f), 5.0)
    if device.type == "cpu":
        tiled = partial(by_hand.tiled_trimmed_mean, x)
        yield pair("trimmed mean", "tiled np.sort", trimmed, lambda: tiled(f))
        yield pair("median", "tiled np.sort", median, lambda: tiled((n - 1) // 2))
    yield pair("trimmed mean", "a plain mean", trimmed, mean, 0.1)
    yield pair("median", "torch.median", median, lambda: x.median(dim=0), 5.0)
    yield pair("median", "a plain mean", median, mean, 0.1)
    yield pair("multi-krum", "torch.cdist", krum, lambda: by_hand.multi_krum(x, f))
    for name, rule in (("trimmed-mean", trimmed), ("median", median), ("multi-krum", krum)):
        yield pair(f"dyn-opt on {name}", "one call", craft(x, f, name), rule, 1 / 1.5)


def craft(x: Tensor, m: int, name: str) -> Callable[[], object]:
    """Prepare DYN-OPT by the first ``m`` of the clients with rows ``x (n, d)``, who see all."""
    rule: Defense[Any] = registry.load("defense", name).declared(m)
    attack = registry.load("attack", "dyn-opt")
    own = FloatVectors(x[:m])
    benign = FloatVectors(x[m:])
    view = view_of(FloatVectors(x))

    def ask(sent: FloatVectors, draw: int) -> Tensor:
        rows = FloatVectors(torch.cat([sent.x, benign.x]))
        return rule.aggregate(rows, rule.init(rows.spec), view.asked())[0]

    def crafted() -> object:
        shown = AttackView(
            own=own,
            updates=own.x,
            trained=own.x,
            poisoned=own,
            idle=torch.zeros_like(own.x),
            seen=benign,
            n=len(x),
            broadcast=own.take([0]),
            step=0,
            key=Key(5),
            compress=FloatVectors,
            memories=[{}] * m,
            defense=Oracle(rule, cast(Any, ask)),
        )
        return attack.craft(shown, None)

    return crafted


def messages(n: int, d: int, device: torch.device) -> Iterator[Pair]:
    """Yield what is done to rankings, masks and rotated vectors."""
    scores = Key(6).uniform(n, d, device=device)
    sent = Rankings(ranking(scores, (d,)), (d,))
    flags = (scores[0] < 0.5).cpu()
    masks = scores < 0.5
    word = scores[0, : 1 << (d.bit_length() - 1)].clone()
    ways: list[tuple[str, str, Work, Work, int]] = [
        (
            f"rankings of {n} clients",
            "argsort",
            lambda: ranking(scores, (d,)),
            lambda: scores.argsort(dim=1),
            n,
        ),
        (
            f"{n} rankings summed",
            "argsort",
            lambda: sent.values().sum(dim=0),
            lambda: sent.symbols.argsort(dim=1).sum(dim=0),
            n,
        ),
        (
            f"{n} masks summed",
            "float().mean()",
            lambda: column_sums(masks, torch.int32),
            lambda: masks.float().mean(dim=0),
            n,
        ),
        (
            "the best half",
            "a full sort",
            lambda: largest(scores[:1], d // 2),
            lambda: scores[:1].sort(),
            1,
        ),
        ("a rotation", "butterflies", lambda: hadamard(word), lambda: butterflies(word), 1),
        (
            "packing a mask",
            "shifts and sums",
            lambda: pack(flags.numpy(), 1),
            lambda: shifted(flags),
            1,
        ),
    ]
    for what, against, mine, theirs, units in ways:
        yield Pair(MESSAGES, what, against, mine, theirs, units=units)


def butterflies(x: Tensor) -> Tensor:
    """Transform ``x (d,)`` by the fast Hadamard transform as textbooks have it, orthonormal."""
    h = 1
    d = len(x)
    while h < d:
        pairs = x.view(-1, 2, h)
        x = torch.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], dim=1).flatten()
        h *= 2
    return x.div(d**0.5)


def shifted(flags: Tensor) -> Tensor:
    """Pack eight bits a byte, the first one in the highest bit; drop an incomplete byte."""
    groups = flags[: len(flags) // 8 * 8].view(-1, 8).to(torch.uint8)
    places = 2 ** torch.arange(7, -1, -1, dtype=torch.uint8)
    return (groups * places).sum(dim=1, dtype=torch.uint8)


@dataclass(frozen=True, kw_only=True)
class Idle(FedAvg):
    """FedAvg whose clients send what they were sent."""

    def local_update(
        self, tree: Tree, batches: Batches, grad: Grad, key: Key, memory: Memory
    ) -> tuple[Tree, Memory]:
        """Return an update of zeros."""
        return {name: torch.zeros_like(x) for name, x in tree.items()}, memory


def framework(n: int, device: torch.device) -> Iterator[Pair]:
    """Yield whole rounds of clients that do nothing, with 1.6 million parameters each."""
    scenario = Scenario.of(
        dataset="mnist-5k",
        model="lenet",
        clients=4 * n,
        per_round=n,
        malicious=0.0,
        rounds=10**6,
        eval_every=10**6,
    )
    setup = prepare(scenario, device.type)
    idle = Idle()
    setup = dataclasses.replace(
        setup,
        plugins=dataclasses.replace(setup.plugins, protocol=idle),
        executor=Loop(idle, setup.shared, setup.executor.schedule),
    )
    state = RunState(idle.init(setup.shared))
    tree = {
        name: torch.zeros(shape, device=device)
        for name, shape in setup.shared.network.shapes.items()
    }

    def alone() -> Tensor:
        updates = []
        for _ in range(n):
            moved = [x.clone() - x for x in tree.values()]
            updates.append(torch.cat([x.flatten() for x in moved]))
        return torch.stack(updates).mean(dim=0)

    steps = iter(range(10**6))
    yield Pair(
        FRAMEWORK,
        f"{n} idle clients",
        "a bare loop",
        lambda: play_round(setup, state, next(steps)),
        alone,
        units=n,
    )
