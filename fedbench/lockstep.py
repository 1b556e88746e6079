"""Train many clients at once: a protocol's `local_update` mapped over them, of one run or several.

On an accelerator, and with small networks on a CPU, a step costs its launches and not its
arithmetic; here many clients share them. `fedbench.training.Loop` is the oracle.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fedbench.api import Memory
from fedbench.layout import Tree
from fedbench.network import Network, saved_bytes
from fedbench.rng import Key
from fedbench.training import Client, Executor, Trained, WrapGrad, with_statistics

BUDGET = 1 << 29  # bytes of a launch on a CPU, where more at once gain nothing
SHARE = 0.4  # of an accelerator's memory
COPIES = 6  # of its parameters that a client holds: tree, gradient, momentum, mask, update, frozen


@dataclass(frozen=True, eq=False)
class Stacked(Executor):
    """Up to ``chunk`` clients at once, in lock step, or as many as the memory is for.

    Only clients with equally many steps and the same ``wrap_grad`` share a launch; a short last
    batch is padded with samples that have no gradient.
    """

    chunk: int = 32

    def train(self, clients: Sequence[Client]) -> Trained:
        """See `Executor.train`."""
        return train_all([(self, clients)])[0]

    @cached_property
    def width(self) -> int:
        """How many clients a launch trains at most."""
        device = self.shared.device
        budget = BUDGET
        if device.type == "cuda":
            budget = int(SHARE * torch.cuda.get_device_properties(device).total_memory)
        one = footprint(self.shared.network, self.schedule.batch_size)
        return max(1, min(self.chunk, budget // one))


Part = tuple[Stacked, Sequence[Client]]  # a run, and those of its clients that are to be trained
Job = tuple[Stacked, Client]


def train_all(parts: Sequence[Part]) -> list[Trained]:
    """What `Executor.train` gives each run; clients of different runs share launches if they can.

    They can if network, protocol, schedule, precision and device are equal, and both take equally
    many steps with an equal ``wrap_grad``. What they have from a seed may differ.
    """
    rows: list[list[Tensor]] = []
    memories: list[list[Memory]] = []
    for engine, clients in parts:
        width = engine.protocol.trained(engine.shared).d
        nothing = torch.zeros(0, width, device=engine.shared.device)
        rows.append([nothing] * (1 + len(clients)))
        memories.append([{} for _ in clients])
    for places in launches(parts):
        jobs = [(parts[run][0], parts[run][1][i]) for run, i in places]
        updates, kept = _launch(jobs)
        for position, (run, i) in enumerate(places):
            rows[run][1 + i] = updates[position, None]
            memories[run][i] = {name: value[position] for name, value in kept.items()}
    return [(torch.cat(updates), kept) for updates, kept in zip(rows, memories, strict=True)]


def launches(parts: Sequence[Part]) -> Iterator[list[tuple[int, int]]]:
    """Who is trained together: numbers of run and client."""
    alike: dict[Hashable, list[tuple[int, int]]] = {}
    for run, (engine, clients) in enumerate(parts):
        what = (
            *(_same(thing) for thing in (engine.protocol, engine.shared.network)),
            (engine.schedule, engine.precision, engine.shared.device),
        )
        for i, client in enumerate(clients):
            steps = engine.schedule.steps(len(client.x))
            key = (what, steps, _wraps(client.wrap_grad))
            alike.setdefault(key, []).append((run, i))
    for group in alike.values():
        chunk = min(parts[run][0].width for run in {run for run, _ in group})
        for start in range(0, len(group), chunk):
            yield group[start : start + chunk]


def _same(thing: object) -> Hashable:
    """Equal for things that are interchangeable: by value where they have one."""
    try:
        hash(thing)
    except TypeError:
        return id(thing)
    return thing


def _wraps(wrap: WrapGrad) -> Hashable:
    """A method of two equal objects is the same, which Python does not say of bound methods."""
    owner = getattr(wrap, "__self__", None)
    return _same(wrap) if owner is None else (getattr(wrap, "__func__", None), _same(owner))


def _launch(jobs: Sequence[Job]) -> tuple[Tensor, Memory]:
    engine, first = jobs[0]
    clients = [client for _, client in jobs]
    drawn = [engine.schedule.rows(len(client.x), client.key) for client in clients]
    width = max(engine.schedule.batch_size, *(len(rows) for steps in drawn for rows in steps))
    padded = [_padded(client, steps, width) for client, steps in zip(clients, drawn, strict=True)]
    x = torch.stack([x for x, _ in padded])
    y = torch.stack([y for _, y in padded])
    seeds = torch.stack([client.key.tensor(engine.shared.device) for client in clients])
    several = any(other is not engine for other, _ in jobs)
    known = stacked([other.frozen for other, _ in jobs]) if several else engine.frozen
    layout = engine.protocol.trained(engine.shared)

    def one(
        tree: Tree, frozen: Tree, x: Tensor, y: Tensor, seed: Tensor, memory: Memory
    ) -> tuple[Tensor, Memory]:
        def grad(tree: Tree, x: Tensor, y: Tensor, key: Key) -> Tree:
            of = torch.func.grad(engine.loss, has_aux=True)
            gradient, statistics = of(tree, frozen, x, y, key)
            return with_statistics(gradient, tree, statistics)

        wrapped = first.wrap_grad(engine.gradient(grad, frozen))
        batches = list(zip(x.unbind(0), y.unbind(0), strict=True))
        trained, kept = engine.protocol.local_update(tree, batches, wrapped, Key(seed), memory)
        return layout.flatten(trained), kept

    tree = stacked([client.tree for client in clients])
    memory = stacked([client.memory for client in clients])
    dims = (0, 0 if several else None, 0, 0, 0, 0)
    result: tuple[Tensor, Memory] = torch.vmap(one, dims)(tree, known, x, y, seeds, memory)
    return result


def stacked(trees: Sequence[Tree]) -> Tree:
    """Every leaf with a leading dimension of clients."""
    return {name: torch.stack([tree[name] for tree in trees]) for name in trees[0]}


def _padded(client: Client, steps: list[Tensor], width: int) -> tuple[Tensor, Tensor]:
    """``(steps, width, C, H, W)`` and ``(steps, width)`` with label -1 where there is none."""
    xs, ys = [], []
    for rows in steps:
        missing = width - len(rows)
        x, y = client.x[rows], client.y[rows]
        xs.append(torch.cat([x, x.new_zeros(missing, *x.shape[1:])]))
        ys.append(torch.cat([y, y.new_full((missing,), -1)]))
    return torch.stack(xs), torch.stack(ys)


def footprint(network: Network, batch: int) -> int:
    """Bytes that a client in lock step takes: copies of its parameters, and what a step saves.

    The gradients of what it saves are as much again.
    """
    size = sum(math.prod(shape) for shape in network.shapes.values()) * 4
    return COPIES * size + 2 * batch * saved_bytes(network)
