"""Training of many clients at once: `local_update` mapped over them, of one run or several.

On an accelerator, and with small networks on a CPU, the time of a step is that of its launches;
here many clients share them. `fedbench.executors.training.Loop` is the oracle.
"""

import math
import warnings
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import conv2d

from fedbench.api import Memory, hooks
from fedbench.core.devices import accelerated, usable_memory
from fedbench.core.rng import Key
from fedbench.core.trees import Tree
from fedbench.executors import training
from fedbench.executors.conv_kernels import Load, chosen
from fedbench.executors.cuda_graphs import Recorder, Work, cuda_graphs, fixed
from fedbench.models.network import Convolve, Network, saved_bytes

BUDGET = 1 << 29  # bytes of a launch on a CPU, where more gain nothing
SHARE = 0.4  # of an accelerator's memory that a launch may take
TIMED = 8  # largest number of clients of a convolution that is timed
COPIES = 6  # of a client's parameters: tree, gradient, momentum, mask, update, frozen


@dataclass(frozen=True, eq=False)
class Stacked(training.Executor):
    """Trains up to ``chunk`` clients at once, in lock step, as far as memory allows.

    Only clients with equally many steps and the same ``wrap_grad`` share a launch; a short last
    batch is padded with samples that have no gradient. A ``recorder`` replays launches that recur
    (`fedbench.executors.cuda_graphs`). Where an accelerator's memory runs out, launches have half
    as many clients from then on; the second time it is an error.
    """

    halved: ClassVar[bool] = False  # True in an object whose memory ran out

    chunk: int = 32
    recorder: Recorder | None = field(default=None, kw_only=True)

    def train(self, clients: Sequence[training.Client]) -> training.Trained:
        return train_all([(self, clients)])[0]

    @cached_property
    def width(self) -> int:
        """Largest number of clients that a launch trains."""
        return self._width(self.convolve)

    def _width(self, convolve: Convolve) -> int:
        device = self.shared.device
        budget = BUDGET
        if accelerated(device):
            share = SHARE if self.recorder is None else SHARE / 2  # recordings keep as much again
            budget = int(share * usable_memory(device))
        client = footprint(self.shared.network, self.schedule.batch_size, convolve)
        return max(1, min(self.chunk, budget // client))

    @property
    def at_once(self) -> int:
        """Number of clients that were asked for, or how many there are since memory ran out."""
        return self.width if self.halved else self.chunk

    def halve(self, width: int) -> None:
        """Train at most so many clients at once from now on: half of what memory was short for."""
        vars(self).update(width=width, halved=True)  # in place of what `cached_property` keeps

    @cached_property
    def convolve(self) -> Convolve:
        """The faster form of every layer, see `fedbench.executors.conv_kernels`."""
        clients = min(self._width(conv2d), TIMED)
        half = self.precision == "bf16"
        load = Load(self.shared.device, clients, self.schedule.batch_size, half)
        return chosen(self.shared.network, load)


@dataclass(frozen=True, eq=False)
class Recorded(Stacked):
    """`Stacked` whose launches are recorded when they recur, and replayed from then on."""

    recorder: Recorder | None = field(default_factory=lambda: Recorder(cuda_graphs()), kw_only=True)


Part = tuple[Stacked, Sequence[training.Client]]  # executor of a run, and its clients to be trained
Job = tuple[Stacked, training.Client]


def train_all(parts: Sequence[Part]) -> list[training.Trained]:
    """Train the clients of several runs, which share launches where they can.

    They can if network, protocol, schedule, precision, augmentation and device are equal, and both
    take equally many steps with an equal ``wrap_grad``. What they have from a seed may differ. Each
    run gets what `Executor.train` gives it.
    """
    rows: list[list[Tensor]] = []
    memories: list[list[Memory]] = [[{} for _ in clients] for _, clients in parts]
    for engine, clients in parts:
        width = engine.protocol.trained(engine.shared).d
        nothing = torch.zeros(0, width, device=engine.shared.device)
        rows.append([nothing] * (1 + len(clients)))
    for places in launches(parts):
        updates, memory = _launched([(parts[run][0], parts[run][1][i]) for run, i in places])
        for position, (run, i) in enumerate(places):
            rows[run][1 + i] = updates[position, None]
            memories[run][i] = {name: value[position] for name, value in memory.items()}
    return [(torch.cat(updates), run) for updates, run in zip(rows, memories, strict=True)]


def launches(parts: Sequence[Part]) -> Iterator[list[tuple[int, int]]]:
    """Yield the clients that are trained together, as numbers of run and client."""
    alike: dict[Hashable, list[tuple[int, int]]] = {}
    for run, (engine, clients) in enumerate(parts):
        for i, client in enumerate(clients):
            alike.setdefault(kind(engine, client), []).append((run, i))
    for group in alike.values():
        chunk = min(parts[run][0].width for run in {run for run, _ in group})
        for start in range(0, len(group), chunk):
            yield group[start : start + chunk]


def kind(engine: Stacked, client: training.Client) -> Hashable:
    """Key that is equal for clients that can be trained together."""
    return (
        *(_same(thing) for thing in (engine.protocol, engine.shared.network)),
        (engine.schedule, engine.precision, engine.shared.device, _same(engine.convolve)),
        engine.augment,
        engine.schedule.steps(len(client.x)),
        _wraps(client.wrap_grad),
    )


def _same(thing: object) -> Hashable:
    """Key that is equal for interchangeable things: by value where they have one."""
    try:
        hash(thing)
    except TypeError:
        return id(thing)
    return thing


def _wraps(wrap: training.WrapGrad) -> Hashable:
    """Key of a wrapper; methods of two equal objects are the same, unlike in Python."""
    owner = getattr(wrap, "__self__", None)
    return _same(wrap) if owner is None else (getattr(wrap, "__func__", None), _same(owner))


def _launched(jobs: Sequence[Job]) -> tuple[Tensor, Memory]:
    """Train in one launch; where memory runs out, in two halves, and all later launches too."""
    engines = list(dict.fromkeys(engine for engine, _ in jobs))
    try:
        return _launch(jobs)
    except torch.OutOfMemoryError:
        if len(jobs) == 1 or any(engine.halved for engine in engines):
            raise
    half = -(-len(jobs) // 2)
    for engine in engines:
        engine.halve(half)
    warnings.warn(
        f"memory ran out with {len(jobs)} clients in a launch: from now on at most {half}, "
        f"as --chunk {half} would have it",
        stacklevel=2,
    )
    parts = [_launch(jobs[:half]), _launch(jobs[half:])]
    names = parts[0][1]
    memory = {name: torch.cat([kept[name] for _, kept in parts]) for name in names}
    return torch.cat([updates for updates, _ in parts]), memory


def _launch(jobs: Sequence[Job]) -> tuple[Tensor, Memory]:
    engine, first = jobs[0]
    clients = [client for _, client in jobs]
    x, y = batched(clients, engine.schedule)
    seeds = torch.stack([client.key.tensor() for client in clients]).to(engine.shared.device)
    rounds = torch.tensor([client.round for client in clients], device=engine.shared.device)
    several = any(other is not engine for other, _ in jobs)
    frozen = stacked([other.frozen for other, _ in jobs]) if several else engine.frozen
    layout = engine.protocol.trained(engine.shared)

    def train(
        tree: Tree, frozen: Tree, x: Tensor, y: Tensor, seed: Tensor, number: Tensor, memory: Memory
    ) -> tuple[Tensor, Memory]:
        def grad(tree: Tree, x: Tensor, y: Tensor, key: Key, slope: Tensor | None = None) -> Tree:
            loss_grad = torch.func.grad(engine.loss, has_aux=True)
            gradient, statistics = loss_grad(tree, frozen, x, y, key, slope)
            return training.with_statistics(gradient, tree, statistics)

        wrapped = hooks.wrapped(first.wrap_grad, engine.gradient(grad, grad, frozen))
        steps = list(zip(x.unbind(0), y.unbind(0), strict=True))
        key = Key(seed)
        batches = engine.batches(steps, key, number)
        trained, memory = engine.protocol.local_update(tree, batches, wrapped, key, memory)
        return layout.flatten(trained), memory

    tree = stacked([client.tree for client in clients])
    memory = stacked([client.memory for client in clients])
    inputs = (tree, frozen, x, y, seeds, rounds, memory)
    work: Work = torch.vmap(train, (0, 0 if several else None, 0, 0, 0, 0, 0))
    with training.products(engine.precision):
        if engine.recorder is None or not lasting(engine, first.wrap_grad):
            return work(*inputs)
        return engine.recorder.play((kind(engine, first), several), work, inputs)


def lasting(engine: Stacked, wrap: training.WrapGrad) -> bool:
    """Whether all that a launch decides by in Python is constant, so that it can be recorded."""
    owners = () if wrap is training.untouched else (getattr(wrap, "__self__", None),)
    return fixed(engine.protocol, engine.shared.network, *owners)


def stacked(trees: Sequence[Tree]) -> Tree:
    """Stack trees: every leaf gets a leading dimension of clients."""
    return {name: torch.stack([tree[name] for tree in trees]) for name in trees[0]}


def batched(
    clients: Sequence[training.Client], schedule: training.Schedule
) -> tuple[Tensor, Tensor]:
    """Gather what clients with equally many steps see, in their orders, in one gather for all.

    ``(n, steps, B, C, H, W)`` and ``(n, steps, B)``; where a batch is short, zeros and label -1.
    """
    drawn = [schedule.rows(len(client.x), client.key) for client in clients]
    width = max(schedule.batch_size, *(len(rows) for steps in drawn for rows in steps))
    order = torch.full((len(clients), len(drawn[0]), width), -1)  # the last row is padding
    start = 0
    for places, client, steps in zip(order, clients, drawn, strict=True):
        for place, rows in zip(places, steps, strict=True):
            place[: len(rows)] = rows + start
        start += len(client.x)
    x, y = clients[0].x, clients[0].y
    order = order.to(x.device)
    images = torch.cat([*(client.x for client in clients), x.new_zeros(1, *x.shape[1:])])
    labels = torch.cat([*(client.y for client in clients), y.new_full((1,), -1)])
    return images[order], labels[order]


def footprint(network: Network, batch: int, convolve: Convolve = conv2d) -> int:
    """Bytes of a client in lock step: copies of its parameters, what a step saves, gradients."""
    size = sum(math.prod(shape) for shape in network.shapes.values()) * 4
    return COPIES * size + 2 * batch * saved_bytes(network, convolve)
