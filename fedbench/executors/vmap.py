"""Training of many clients at once: `local_update` mapped over them.

On an accelerator, and with small networks on a CPU, the time of a step is that of its launches;
here many clients share them. `fedbench.executors.training.Loop` is the oracle.
"""

import warnings
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import conv2d

from fedbench.api import Batches, Memory, hooks
from fedbench.core.copies import copied_to
from fedbench.core.devices import accelerated, replays_graphs, usable_memory
from fedbench.core.rng import Key, seeds_of
from fedbench.core.trees import Tree
from fedbench.executors import training
from fedbench.executors.conv_kernels import ConvLoad, chosen
from fedbench.executors.cuda_graphs import GraphReplay
from fedbench.executors.padded import Gathered, PaddedBatches, Play, WalkedAlone
from fedbench.models.network import Convolve, Network, saved_bytes

CPU_LAUNCH_BYTES = 1 << 29  # bytes of a launch on a CPU, where more gain nothing
MEMORY_SHARE = 0.4  # of an accelerator's memory that a launch may take
MAX_TIMED_CLIENTS = 32  # of a convolution
# Time of a launch's step beside that of one client in it: with more, longer launches are better.
CPU_OVERHEAD = 8.0  # on a CPU (benchmarks/uneven.py)
DEVICE_OVERHEAD = 64.0  # on an accelerator, where it was not measured
PARAMETER_COPIES = 6  # of a client's parameters: tree, gradient, momentum, mask, update, frozen


@dataclass(frozen=True, eq=False)
class Stacked(training.Executor):
    """Executor that trains up to ``chunk`` clients at once, in lock step, as memory allows.

    A launch holds the samples of all its steps, of every client as many as of the longest one.
    Clients of a launch have the same ``wrap_grad``; a short batch is padded with samples that have
    no gradient. With ``padded`` a client that ends early goes on in vain until the longest one of
    its launch ends (`fedbench.executors.padded`). Without, or if the protocol goes through its
    batches by itself, only clients with equally many steps share a launch. Where an accelerator's
    memory runs out, launches have half as many clients from then on; the second time it is an
    error.
    """

    halved: ClassVar[bool] = False  # True in an object whose memory ran out

    chunk: int = 32
    padded: bool = field(default=False, kw_only=True)
    play: Play | None = field(default=None, kw_only=True)  # how steps are repeated

    def train(self, clients: Sequence[training.Client]) -> training.Trained:
        try:
            return self._train(clients, self.padded)
        except WalkedAlone:
            return self._train(clients, False)

    def _train(self, clients: Sequence[training.Client], padded: bool) -> training.Trained:
        groups = list(self.launches(clients, padded))
        if groups == [list(range(len(clients)))]:  # no row changes its place
            updates, memory = self._launched(clients, padded)
            return updates, rows_of(memory, len(clients))
        width = self.protocol.trained(self.shared).d
        rows = [torch.zeros(0, width, device=self.shared.device)] * (1 + len(clients))
        memories: list[Memory] = [{} for _ in clients]
        for group in groups:
            updates, memory = self._launched([clients[i] for i in group], padded)
            for position, (i, own) in enumerate(
                zip(group, rows_of(memory, len(group)), strict=True)
            ):
                rows[1 + i] = updates[position, None]
                memories[i] = own
        return torch.cat(rows), memories

    def launches(self, clients: Sequence[training.Client], padded: bool) -> Iterator[list[int]]:
        """Yield the clients that are trained together, by number, the longest first."""
        alike: dict[Hashable, list[int]] = {}
        steps = [self.schedule.steps(len(client.x)) for client in clients]
        for i, client in enumerate(clients):
            kind = (min(steps[i], 1) if padded else steps[i], _wraps(client.wrap_grad))
            alike.setdefault(kind, []).append(i)
        for group in alike.values():
            group.sort(key=lambda i: -steps[i])
            x = clients[group[0]].x
            samples = steps[group[0]] * self.schedule.batch_size * (x.nbytes // max(1, len(x)))
            most = min(self.width, self._fitting(self._footprint + samples))
            start = 0
            for size in cheapest([steps[i] for i in group], most, self._overhead):
                yield group[start : start + size]
                start += size

    def useful(self, steps: Sequence[int]) -> float:
        """Return the share of the executed steps that clients with these ``steps`` need."""
        longest_first = sorted(steps, reverse=True)
        executed = 0
        start = 0
        for size in cheapest(longest_first, self.width, self._overhead):
            executed += size * longest_first[start]
            start += size
        return sum(steps) / max(1, executed)

    @property
    def _overhead(self) -> float:
        return DEVICE_OVERHEAD if accelerated(self.shared.device) else CPU_OVERHEAD

    @cached_property
    def width(self) -> int:
        """Largest number of clients that a launch trains."""
        return self._fitting(self._footprint)

    def _fitting(self, client: int) -> int:
        """Return how many clients of this size in bytes fit into one launch."""
        return max(1, min(self.chunk, self._budget // client))

    @cached_property
    def _footprint(self) -> int:
        """Bytes of a client without its samples."""
        return footprint(self.shared.network, self.schedule.batch_size, self.convolve)

    @cached_property
    def _budget(self) -> int:
        """Bytes of a launch; asked for once, since other launches round otherwise."""
        device = self.shared.device
        if not accelerated(device):
            return CPU_LAUNCH_BYTES
        recorded = self.play is not None  # a recording keeps as much again
        share = MEMORY_SHARE / 2 if recorded else MEMORY_SHARE
        return int(share * usable_memory(device))

    @property
    def at_once(self) -> int:
        """Number of clients of a launch: ``chunk``, or fewer since memory ran out."""
        return self.width if self.halved else self.chunk

    def halve(self, width: int) -> None:
        """Limit later launches to ``width`` clients, half of the launch that ran out of memory."""
        vars(self).update(width=width, halved=True)  # in place of what `cached_property` keeps

    @cached_property
    def convolve(self) -> Convolve:
        """The faster form of every layer, see `fedbench.executors.conv_kernels`."""
        grouped = footprint(self.shared.network, self.schedule.batch_size)
        clients = min(self._fitting(grouped), MAX_TIMED_CLIENTS)
        half = self.precision == "bf16"
        replayed = replays_graphs(self.shared.device) and self.play is not None
        load = ConvLoad(self.shared.device, clients, self.schedule.batch_size, half, replayed)
        return chosen(self.shared.network, load)

    def _launch(self, clients: Sequence[training.Client], padded: bool) -> tuple[Tensor, Memory]:
        device = self.shared.device
        frozen = self.frozen
        layout = self.protocol.trained(self.shared)
        xs, ys = gathered(clients, self.schedule)
        counts = [self.schedule.steps(len(client.x)) for client in clients]

        def train(
            tree: Tree,
            own: tuple[Tensor, Tensor],
            of: Tensor,
            seed: Tensor,
            number: Tensor,
            memory: Memory,
        ) -> tuple[Tensor, Memory]:
            def grad(
                tree: Tree, x: Tensor, y: Tensor, key: Key, slope: Tensor | None = None
            ) -> Tree:
                loss_grad = torch.func.grad(self.loss, has_aux=True)
                gradient, statistics = loss_grad(tree, frozen, x, y, key, slope)
                return training.with_statistics(gradient, tree, statistics)

            wrapped = hooks.wrapped(clients[0].wrap_grad, self.gradient(grad, grad, frozen))
            key = Key(seed)
            steps = Gathered(*own)
            batches: Batches = self.batches(steps, key, number)
            if padded:
                batches = PaddedBatches(
                    steps,
                    number,
                    batches.epochs,
                    batches.weights,
                    batches.statistics,
                    of=of,
                    shortest=min(counts),
                    longest=max(counts),
                    key=key,
                    augment=self.augment,
                    play=self.play,
                )
            trained, memory = self.protocol.local_update(tree, batches, wrapped, key, memory)
            return layout.flatten(trained), memory

        numbers = copied_to(torch.tensor([counts, [client.round for client in clients]]), device)
        seeds = seeds_of([client.key for client in clients], device)
        tree = stacked([client.tree for client in clients])
        memory = stacked([client.memory for client in clients])
        with training.products(self.precision):
            trained: tuple[Tensor, Memory] = torch.vmap(train)(
                tree, (xs, ys), numbers[0], seeds, numbers[1], memory
            )
        return trained

    def _launched(self, clients: Sequence[training.Client], padded: bool) -> tuple[Tensor, Memory]:
        """Train in one launch; where memory runs out, in halves, and all later launches too.

        Launches that were planned before are cut to the same size.
        """
        if len(clients) <= self.width:
            try:
                return self._launch(clients, padded)
            except torch.OutOfMemoryError:
                if len(clients) == 1 or self.halved:
                    raise
            half = -(-len(clients) // 2)
            self.halve(half)
            warnings.warn(
                f"memory ran out with {len(clients)} clients in a launch: from now on at most "
                f"{half}, as --chunk {half} would have it",
                stacklevel=2,
            )
        starts = range(0, len(clients), self.width)
        parts = [self._launch(clients[i : i + self.width], padded) for i in starts]
        names = parts[0][1]
        memory = {name: torch.cat([remembered[name] for _, remembered in parts]) for name in names}
        return torch.cat([updates for updates, _ in parts]), memory


@dataclass(frozen=True, eq=False)
class Padded(Stacked):
    """`Stacked` whose clients share launches although some end earlier than others."""

    padded: bool = field(default=True, kw_only=True)


@dataclass(frozen=True, eq=False)
class Recorded(Padded):
    """`Padded` whose local steps are recorded and replayed, see `GraphReplay`."""

    play: Play | None = field(default_factory=GraphReplay, kw_only=True)


def _same(thing: object) -> Hashable:
    """Return a hashable key of an object: itself if it hashes, else its identity."""
    try:
        hash(thing)
    except TypeError:
        return id(thing)
    return thing


def _wraps(wrap: training.WrapGrad) -> Hashable:
    """Return a key of a gradient wrapper, equal for the same method of two equal objects."""
    owner = getattr(wrap, "__self__", None)
    return _same(wrap) if owner is None else (getattr(wrap, "__func__", None), _same(owner))


def stacked(trees: Sequence[Tree]) -> Tree:
    """Stack trees: every leaf gets a leading dimension of clients, of one tree without a copy."""
    first = trees[0]
    if all(tree is first for tree in trees):
        return {name: leaf.expand(len(trees), *leaf.shape) for name, leaf in first.items()}
    return {name: torch.stack([tree[name] for tree in trees]) for name in first}


def rows_of(tree: Tree, n: int) -> list[Tree]:
    """Undo `stacked`: return the trees of ``n`` clients, as views."""
    rows = {name: leaf.unbind() for name, leaf in tree.items()}
    return [{name: leaf[i] for name, leaf in rows.items()} for i in range(n)]


def gathered(
    clients: Sequence[training.Client], schedule: training.Schedule
) -> tuple[Tensor, Tensor]:
    """Gather the images ``(n, steps, B, C, H, W)`` and labels ``(n, steps, B)`` of each step.

    Steps are as many as the longest client has. Where a batch is short, and after a client's end,
    labels are -1 and images the client's first one: not zeros, since a network that divides by the
    deviation of an image answers NaN to these.
    """
    drawn = [schedule.rows(len(client.x), client.key) for client in clients]
    longest = max(len(steps) for steps in drawn)
    width = max([schedule.batch_size, *(len(rows) for steps in drawn for rows in steps)])
    total = sum(len(client.x) for client in clients)
    order = torch.full((len(clients), longest, width), total)
    firsts = torch.full((len(clients), 1, 1), total)
    start = 0
    for places, first, client, steps in zip(order, firsts, clients, drawn, strict=True):
        if len(client.x):
            first.fill_(start)
        for place, rows in zip(places, steps, strict=False):
            place[: len(rows)] = rows + start
        start += len(client.x)
    x, y = clients[0].x, clients[0].y
    images = torch.cat([*(client.x for client in clients), x.new_zeros(1, *x.shape[1:])])
    labels = torch.cat([*(client.y for client in clients), y.new_full((1,), -1)])
    shown = torch.where(order == total, firsts, order)
    return images[copied_to(shown, x.device)], labels[copied_to(order, x.device)]


def cheapest(steps: Sequence[int], most: int, overhead: float) -> list[int]:
    """Return the cheapest sizes of launches for clients with these ``steps``, sorted descending.

    A launch of k clients costs ``overhead + k`` in each step of its longest one; the sum of all is
    least.

    >>> cheapest([9, 8, 2, 2], most=32, overhead=2.0)  # 9 * 4 + 2 * 4 = 44, in one launch 54
    [2, 2]
    >>> cheapest([9, 8, 2, 2], most=32, overhead=64.0)
    [4]
    """
    costs = [0.0]  # of the first clients, by their number
    last: list[int] = [0]  # size of their last launch
    for end in range(1, len(steps) + 1):
        starts = range(max(0, end - most), end)
        ways = [(costs[i] + steps[i] * (overhead + end - i), end - i) for i in starts]
        cost, size = min(ways)
        costs.append(cost)
        last.append(size)
    sizes: list[int] = []
    left = len(steps)
    while left:
        sizes.append(last[left])
        left -= last[left]
    return sizes[::-1]


def footprint(network: Network, batch: int, convolve: Convolve = conv2d) -> int:
    """Return a client's bytes in lock step: copies of parameters, what a step saves, gradients."""
    return PARAMETER_COPIES * 4 * network.parameters + 2 * batch * saved_bytes(network, convolve)
