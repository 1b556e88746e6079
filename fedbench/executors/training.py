"""Training of a round's clients, one after the other or many in lock step.

A protocol is written for one client. `Loop` calls it client by client and is the oracle;
`fedbench.executors.vmap` maps it over clients, draws the same numbers, and agrees to rounding.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property, partial, reduce
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from fedbench.api import (
    Batches,
    Defense,
    Grad,
    Gradient,
    Memory,
    Protocol,
    ServerView,
    Shared,
    hooks,
)
from fedbench.api.protocol import Pull
from fedbench.core.blame import Hook
from fedbench.core.choices import Precision
from fedbench.core.copies import copied_to
from fedbench.core.devices import accelerated
from fedbench.core.errors import require
from fedbench.core.rng import Key
from fedbench.core.trees import Tree
from fedbench.data.augmentation import AugmentedSteps, CropFlip, Steps
from fedbench.models.network import Convolve, Step, channels_last, saved_bytes
from fedbench.payload import FoldedMessages, KeptMessages, Payload
from fedbench.payload.packets import Packet

WrapGrad = Callable[[Gradient], Grad]
Trained = tuple[Tensor, list[Memory]]  # updates (n, d), and the memory of each client


class Made(NamedTuple):
    """Messages that were made where their clients trained."""

    messages: Payload
    memories: Sequence[Memory]  # of each client, after its own message
    packets: Sequence[Packet]  # of which the messages were decoded


def untouched(grad: Gradient) -> Grad:
    """Return the gradient as it is: the `WrapGrad` of clients that train as the protocol says."""
    return grad


@dataclass(frozen=True, eq=False)
class Client:
    """One client's part in a round."""

    tree: Tree  # as received
    x: Tensor  # ``(N, C, H, W)`` normalised training images
    y: Tensor  # ``(N,)`` labels
    key: Key  # source of all of its draws
    memory: Memory  # from its last round
    wrap_grad: WrapGrad = untouched  # change of the gradient by a mechanism or an attack
    round: int = 0  # its number, from 0


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """Return the mean cross-entropy of the samples whose label is not -1 (padding).

    >>> x = torch.tensor([[0.0, 0.0], [5.0, 1.0]])
    >>> round(cross_entropy(x, torch.tensor([1, -1])).item(), 4)
    0.6931
    """
    logits = logits.float() if logits.dtype == torch.bfloat16 else logits
    labels = torch.arange(logits.shape[1], device=y.device)
    # as a sum, because the backward pass of `gather` is slow in torch's deterministic mode on CUDA
    chosen = torch.where(y[:, None] == labels, log_softmax(logits, dim=1), 0.0).sum(dim=1)
    return -chosen.sum() / (y >= 0).sum(dtype=logits.dtype)


@dataclass(frozen=True)
class Schedule:
    """How often and in which portions a client sees its data.

    With ``coins`` each step draws every sample with probability ``batch_size / count`` instead
    (Poisson sampling, which accountants of DP-SGD assume), in as many steps.
    """

    epochs: int  # passes over the data in a round, each in a new order
    batch_size: int  # samples of a step; the last one of an epoch may have fewer
    coins: bool = False

    def __post_init__(self) -> None:
        require("--epochs", self.epochs, self.epochs >= 1, ">= 1")
        require("--batch-size", self.batch_size, self.batch_size >= 1, ">= 1")

    def rows(self, count: int, key: Key) -> list[Tensor]:
        """Draw the indices of each step's samples."""
        if self.coins:
            keys = [key.fold("batches", step) for step in range(self.steps(count))]
            return [k.sampled(count, self.batch_size / count).nonzero()[:, 0] for k in keys]
        orders = [key.fold("batches", epoch).permutation(count) for epoch in range(self.epochs)]
        return [rows for order in orders for rows in torch.split(order, self.batch_size)]

    def steps(self, count: int) -> int:
        """Return the number of local steps of a client with ``count`` samples."""
        return self.epochs * -(-count // self.batch_size)


@dataclass(frozen=True, eq=False)
class _Steps(Sequence[tuple[Tensor, Tensor]]):
    """The batches of a client, cut out when they are needed."""

    client: Client
    rows: list[Tensor]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, step: Any) -> Any:
        rows = self.rows[step]
        return self.client.x[rows], self.client.y[rows]


@dataclass(frozen=True, eq=False)
class Executor(ABC):
    """A way to train the clients of a round."""

    elsewhere: ClassVar[bool] = False  # whether other processes read the clients' samples

    protocol: Protocol[Any]
    shared: Shared
    schedule: Schedule
    precision: Precision = field(default="fp32", kw_only=True)
    augment: CropFlip | None = field(default=None, kw_only=True)  # change of training images

    @property
    def title(self) -> str:
        """Name of this executor in a record."""
        return type(self).__name__.lower()

    @property
    def at_once(self) -> int | None:
        """Number of clients that are trained together; None where each is trained alone."""
        return None

    @abstractmethod
    def train(self, clients: Sequence[Client]) -> Trained:
        """Return ``updates (n, d)`` in the order of ``clients``, and the memory of each client."""

    def trained(self, clients: Sequence[Client], step: int | None = None) -> Trained:
        """Return what `train` does, with errors that name the protocol."""
        with Hook(self.protocol, "local_update", step):
            return self.train(clients)

    def exchange(self, clients: Sequence[Client]) -> tuple[Trained, Made | None]:
        """Train the clients of a round, and make their messages if it is done where they train.

        Then updates are those of the clients that attack in the round; other rows are NaN.
        """
        return self.trained(clients), None

    def aggregate(
        self,
        rule: Defense[Any],
        received: Payload | FoldedMessages | KeptMessages,
        state: Any,
        view: ServerView,
    ) -> tuple[Tensor, Any]:
        """Return the answer of `hooks.aggregate`, wherever it is computed."""
        return hooks.aggregate(rule, received, state, view)

    def begin(self, clients: Sequence[Client]) -> Callable[[], tuple[Trained, Made | None]]:
        """Return a function that returns the answer of `exchange`.

        Clients that train elsewhere have begun to; here they begin when it is called.
        """
        return partial(self.exchange, clients)

    def batches(self, steps: Steps, key: Key, number: Tensor) -> Batches:
        """Return a client's batches in round ``number``, with their images changed by its key."""
        augmented = steps if self.augment is None else AugmentedSteps(steps, self.augment, key)
        network = self.shared.network
        epochs = self.schedule.epochs
        return Batches(augmented, number, epochs, network.weights, network.statistics)

    @cached_property
    def frozen(self) -> Tree:
        """Tree that all clients have from the seed."""
        return self.protocol.frozen(self.shared)

    @cached_property
    def convolve(self) -> Convolve:
        """Convolution of networks in training; see `fedbench.models.network.convolution`."""
        return torch.nn.functional.conv2d

    def loss(
        self,
        tree: Tree,
        frozen: Tree,
        x: Tensor,
        y: Tensor,
        key: Key,
        slope: Tensor | None = None,
    ) -> tuple[Tensor, Tree]:
        """Return the cross-entropy of the protocol's network, and its statistics after this step.

        With a ``slope (B, p)`` its product with the features instead, which has their loss's
        gradient.
        """
        network = self.shared.network
        if slope is not None:
            features, statistics = self._output(network.features, tree, frozen, x, y, key)
            return (features * slope).sum(), statistics
        logits, statistics = self._output(network.logits, tree, frozen, x, y, key)
        return cross_entropy(logits, y), statistics

    def losses(self, trees: Tree, x: Tensor, y: Tensor, key: Key, *, frozen: Tree) -> Tensor:
        """Return the losses ``(p,)`` of this step at ``p`` trees, without a graph.

        Leaves have a leading dimension of trees. All trees see the same draws.
        """
        draws = Key(key.tensor(x.device))

        def at(tree: Tree) -> Tensor:
            return self.loss(tree, frozen, x, y, draws)[0]

        with torch.no_grad():
            if self.shared.network.alone:
                count = len(next(iter(trees.values())))
                each = ({name: leaf[i] for name, leaf in trees.items()} for i in range(count))
                return torch.stack([at(tree) for tree in each])
            losses: Tensor = torch.vmap(at)(trees)
            return losses

    def features(self, tree: Tree, x: Tensor, y: Tensor, key: Key, *, frozen: Tree) -> Tensor:
        """Return what the last layer gets in this step, ``(B, p)``, without a graph."""
        tree = {name: leaf.detach() for name, leaf in tree.items()}
        return self._output(self.shared.network.features, tree, frozen, x, y, key)[0]

    def _output(
        self,
        network: Callable[[Tree, Tensor, Step], Tensor],
        tree: Tree,
        frozen: Tree,
        x: Tensor,
        y: Tensor,
        key: Key,
    ) -> tuple[Tensor, Tree]:
        half = self.precision == "bf16"
        convolve = in_bfloat16(self.convolve) if half else self.convolve
        step = Step(key.fold("network"), y >= 0, convolve=convolve)
        parameters = self.protocol.weights(tree, frozen, key)
        with torch.autocast(x.device.type, torch.bfloat16, half, False) if half else nullcontext():
            return network(parameters, x, step), step.statistics

    def each(self, tree: Tree, x: Tensor, y: Tensor, key: Key, *, frozen: Tree) -> Tree:
        """Return the gradient of every sample's own loss, with a leading dimension of samples.

        All samples see the same draws (of a mask, say), as a batch would; padding has none. Not for
        networks with running statistics, which belong to a batch.
        """
        draws = Key(key.tensor(x.device))

        def of_sample(x: Tensor, y: Tensor) -> Tree:
            gradient: Tree
            gradient, _ = torch.func.grad(self.loss, has_aux=True)(tree, frozen, x, y, draws)
            return gradient  # 0 of padding, whose loss depends on no logit

        if not len(x):
            return {name: leaf.new_zeros(0, *leaf.shape) for name, leaf in tree.items()}
        if self.shared.network.alone:
            single = [of_sample(x[i, None], y[i, None]) for i in range(len(x))]
            return {name: torch.stack([g[name] for g in single]) for name in tree}
        gradients: Tree = torch.vmap(of_sample)(x[:, None], y[:, None])
        return gradients

    def gradient(self, batch: Grad, pull: Pull, frozen: Tree) -> Gradient:
        """Return the gradient that mechanisms and attacks wrap."""
        each = partial(self.each, frozen=frozen)
        features = partial(self.features, frozen=frozen)
        losses = partial(self.losses, frozen=frozen)
        return Gradient(batch, each, self.schedule.batch_size, features, pull, losses)


@contextmanager
def products(precision: Precision) -> Iterator[None]:
    """Let CUDA multiply float32 in TF32 inside the block if that is the precision.

    Products then read ten bits of mantissa, forward and backward; outside the block all 23.
    """
    if precision != "tf32":
        yield
        return
    parts: list[Any] = [torch.backends.cuda.matmul, torch.backends.cudnn]
    before = [part.allow_tf32 for part in parts]
    try:
        for part in parts:
            part.allow_tf32 = True
        yield
    finally:
        for part, allowed in zip(parts, before, strict=True):
            part.allow_tf32 = allowed


def in_bfloat16(convolve: Convolve) -> Convolve:
    """Return the convolution of inputs that were cast as `torch.autocast` does.

    Autocast itself sees no convolution that `torch.vmap` maps without a gradient. Those of a module
    of your own stay in float32 there, because they do not ask the step.
    """

    def cast(x: Tensor, weight: Tensor, bias: Tensor | None = None, **options: int) -> Tensor:
        bias = None if bias is None else bias.bfloat16()
        return convolve(x.bfloat16(), weight.bfloat16(), bias, **options)

    return cast


def with_statistics(gradient: Tree, tree: Tree, statistics: Tree) -> Tree:
    """Return the gradient in which running statistics have their change in the step, negated.

    That of a layer that was not called is 0.
    """

    def of(name: str, x: Tensor) -> Tensor:
        if name in statistics:
            return (x - statistics[name]).detach()
        return gradient[name] if name in gradient else torch.zeros_like(x)

    return {name: of(name, x) for name, x in tree.items()}


@dataclass(frozen=True, eq=False)
class Loop(Executor):
    """Executor that trains the clients one after the other."""

    @cached_property
    def last(self) -> bool:
        """Whether batches, and so all activations, are laid out channels last.

        On a CPU that is faster unless convolutions, which reorder their weights for it, have more
        than a quarter of what a step saves; on an accelerator it is for bfloat16.
        """
        network = self.shared.network
        if accelerated(self.shared.device):
            return self.precision == "bf16"
        kernels = sum(math.prod(s) * 4 for s in network.shapes.values() if len(s) == 4)
        return 4 * kernels <= saved_bytes(network) * self.schedule.batch_size

    def train(self, clients: Sequence[Client]) -> Trained:
        gradient = self.gradient(self._grad, self._grad, self.frozen)
        layout = self.protocol.trained(self.shared)
        updates = torch.zeros(0, layout.d, device=self.shared.device)
        memories = []
        for i, client in enumerate(clients):
            drawn = self.schedule.rows(len(client.x), client.key)
            steps = _Steps(client, [copied_to(rows, client.x.device) for rows in drawn])
            number = torch.full((), client.round, device=self.shared.device)
            batches = self.batches(steps, client.key, number)
            grad = hooks.wrapped(client.wrap_grad, gradient)
            with products(self.precision):
                tree, memory = self.protocol.local_update(
                    client.tree, batches, grad, client.key, client.memory
                )
            if not i:
                dtype = reduce(torch.promote_types, [x.dtype for x in (updates, *tree.values())])
                updates = updates.new_empty(len(clients), layout.d, dtype=dtype)
            layout.flatten_into(updates[i], tree)
            memories.append(memory)
        return updates, memories

    def _grad(
        self, tree: Tree, x: Tensor, y: Tensor, key: Key, slope: Tensor | None = None
    ) -> Tree:
        still = self.shared.network.statistics
        leaves = {n: x.detach().requires_grad_(n not in still) for n, x in tree.items()}
        if self.last:
            x = channels_last(x)
        loss, statistics = self.loss(leaves, self.frozen, x, y, key, slope)
        trained = {name: leaf for name, leaf in leaves.items() if leaf.requires_grad}
        gradient: Sequence[Tensor]
        if slope is not None and not loss.requires_grad:  # only the last layer is trained
            gradient = [torch.zeros_like(leaf) for leaf in trained.values()]
        else:  # a parameter that no sample needs, as in a mixture of experts, has gradient 0
            gradient = torch.autograd.grad(loss, list(trained.values()), materialize_grads=True)
        return with_statistics(dict(zip(trained, gradient, strict=True)), tree, statistics)
