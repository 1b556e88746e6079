"""IBA, a backdoor whose trigger a small network draws for every image."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from torch.nn.functional import conv2d, instance_norm

from fedbench.api import Attack, AttackView, Choices, Grad, Gradient, Knowledge, Local
from fedbench.core.errors import require, require_label
from fedbench.core.rng import Key
from fedbench.core.tiling import all_finite
from fedbench.core.trees import Tree
from fedbench.payload import Payload
from fedbench.protocols.optimizers import Adam

from .a3fl import BATCH, drawn
from .neurotoxin import projected

WIDTH = 16  # channels of the generator's two inner layers
LAYERS = ("conv1", "conv2", "conv3")
NOT_YET = -1.0  # the round of the switch, before it


@dataclass(frozen=True, eq=False)
class Trigger:
    """All that the adversary's clients share: the generator, and what it may do to an image.

    Args:
        since: Round in which poisoning began; negative before.
        eps: Bound of this round, as a share of each channel's range.
        low: ``(C,)`` the least values of the adversary's images.
        high: ``(C,)`` their largest values.
        generator: Kernels of the network ``g``.
        gradient: ``(d,)`` mean size of the honest gradient so far, leaves in the order of names.
        rounds: Number of rounds of which that is the mean.
    """

    since: float
    eps: float
    low: Tensor
    high: Tensor
    generator: Tree
    gradient: Tensor
    rounds: float

    @classmethod
    def read(cls, learned: Tensor, channels: int) -> Self:
        """Return what `flat` has written for images of so many channels."""
        shapes = generator_shapes(channels)
        sizes = [torch.Size(shape).numel() for shape in shapes.values()]
        numbers, low, high, *layers, gradient = torch.split(
            learned, [3, channels, channels, *sizes, len(learned) - 3 - 2 * channels - sum(sizes)]
        )
        since, eps, rounds = numbers.tolist()
        generator = {
            name: layer.reshape(shape)
            for (name, shape), layer in zip(shapes.items(), layers, strict=True)
        }
        return cls(since, eps, low, high, generator, gradient, rounds)

    def flat(self) -> Tensor:
        """Return one tensor that holds everything."""
        numbers = self.low.new_tensor([self.since, self.eps, self.rounds])
        layers = [layer.reshape(-1) for layer in self.generator.values()]
        return torch.cat([numbers, self.low, self.high, *layers, self.gradient])

    def stamp(self, xs: Tensor, eps: float, generator: Tree) -> Tensor:
        """Return ``clip(x + eps (high - low) g(x))``: no value moves by more than the bound."""
        low = self.low[:, None, None].to(xs)
        high = self.high[:, None, None].to(xs)
        layers = {name: layer.to(xs) for name, layer in generator.items()}
        stamped = xs + eps * (high - low) * generated(layers, xs)
        # Images of others may lie outside of the range: they are not moved further out.
        return torch.minimum(torch.maximum(stamped, low.minimum(xs)), high.maximum(xs))


@dataclass(frozen=True, kw_only=True)
class IBA(Attack):
    """Train on ``alpha L(x, y) + (1 - alpha) L(T(x), target)``, where a network draws ``T``.

    ``T(x) = clip(x + eps r g(x))`` with each channel's range ``r`` and a generator ``g``: three
    3x3 convolutions, each normalised image by image, ReLU after two of them and tanh after the
    last. In a round, before the clients train, Adam goes down the cross-entropy of ``T(x)`` for
    ``target`` in the model that they received, on at most 256 samples of the adversary's clients.

    First the clients are honest and only the generator learns. Poisoning begins in the round in
    which the model takes a share ``ready`` of these samples, triggered, for ``target``. ``t``
    rounds later ``eps`` is ``max(final, eps (1 - decay)^t)``, and the generator learns in every
    second of the adversary's rounds. Clients train the ``ratio`` of all coordinates in which the
    honest gradient was smallest, on average over the adversary's rounds; the others get no
    gradient. What they learned is scaled down to ``clip`` times their honest L2 norm.

    Success is measured with the bound ``final``; before anything is learned, with ``T(x) = x``. A
    large bound also finds adversarial examples of a clean model. With the default ``ratio`` a
    backdoor takes far more rounds than with 1. Clients that train scalars along directions train
    all of these. A model whose gradients are not finite teaches the generator nothing.

    Args:
        target: Label that a triggered image is to be taken for.
        eps: Bound in the beginning, as a share of a channel's range.
        final: Bound in the end, and of the trigger that is measured.
        decay: Share of ``eps`` that is lost in a round.
        alpha: Weight of the honest loss.
        ready: Share of the triggered samples with which poisoning begins.
        epochs: Passes of the generator over the samples in a round.
        rate: Learning rate of the generator.
        ratio: Share of the coordinates that are trained.
        clip: Largest norm of the update, relative to the honest one.

    References:
        Nguyen et al., "IBA: Towards Irreversible Backdoor Attacks in Federated Learning", NeurIPS
        2023, https://openreview.net/forum?id=cemEOP8YoC. The paper's text was not at hand: this
        follows the authors' code, but for its runs of a thousand rounds with an autoencoder or a
        U-Net, bounds of 0.3 to 0.05 in normalised pixels, ``ready`` 0.85, ``epochs`` 3, ``rate``
        and ``decay`` 0.001. There one client's generator learns after that client has trained, in
        its own model; masks are averaged and not gradients, or would be (A10); and the mask
        excludes the projection, which has a fixed radius and follows every step.
    """

    works_on = ("image",)

    choices: ClassVar[Choices] = {"final": (0.3,), "ratio": (1.0,)}

    target: int = 0
    eps: float = 0.3
    final: float = 0.2
    decay: float = 0.1
    alpha: float = 0.5
    ready: float = 0.5
    epochs: int = 10
    rate: float = 0.01
    ratio: float = 0.3
    clip: float = 1.0

    def __post_init__(self) -> None:
        require("IBA.target", self.target, self.target >= 0, ">= 0")
        require("IBA.eps", self.eps, 0 < self.eps <= 1, "in (0, 1]")
        require("IBA.final", self.final, 0 < self.final <= self.eps, f"in (0, eps = {self.eps}]")
        require("IBA.decay", self.decay, 0 <= self.decay < 1, "in [0, 1)")
        require("IBA.alpha", self.alpha, 0 <= self.alpha < 1, "in [0, 1)")
        require("IBA.ready", self.ready, 0 <= self.ready <= 1, "in [0, 1]")
        require("IBA.epochs", self.epochs, 1 <= self.epochs <= 10_000, "in [1, 10000]")
        require("IBA.rate", self.rate, self.rate > 0, "> 0")
        require("IBA.ratio", self.ratio, 0 < self.ratio <= 1, "in (0, 1]")
        require("IBA.clip", self.clip, self.clip > 0, "> 0")

    def require_samples(self, image: tuple[int, ...], classes: int) -> None:
        require_label("IBA.target", self.target, classes)

    def needs(self) -> Knowledge:
        """Share a generator, and see how the loss changes with the pixels."""
        return Knowledge("colluders", data=True)

    def learn(self, view: AttackView, learned: Tensor | None) -> Tensor:
        assert view.rehearsal is not None
        x, y = drawn(view)
        tree = view.ahead()
        sizes = [tree[name].numel() for name in view.rehearsal.names]
        leaves = torch.split(view.gradient(tree, x, y).abs(), sizes)
        named = dict(zip(view.rehearsal.names, leaves, strict=True))
        gradient = in_order(named, view.rehearsal.statistics)
        if learned is None:
            low = x.amin(dim=(0, 2, 3))
            high = x.amax(dim=(0, 2, 3))
            generator = untrained(x.shape[1], view.key.fold("generator"), x)
            past = Trigger(NOT_YET, self.eps, low, high, generator, torch.zeros_like(gradient), 0)
        else:
            past = Trigger.read(learned.to(x), x.shape[1])
        rounds = past.rounds + 1
        finite = torch.isfinite(gradient).all()
        mean = past.gradient + torch.where(finite, gradient - past.gradient, 0.0) / rounds
        eps = self.bound(view.step, past.since)
        generator = past.generator
        if past.since < 0 or rounds % 2 == 0:
            after = self.trained(view, tree, past, eps)
            generator = after if all_finite(list(after.values())) else generator
        since = past.since
        if since < 0 and self.works(view, past.stamp(x, eps, generator), y):
            since = float(view.step)
        return Trigger(since, eps, past.low, past.high, generator, mean, rounds).flat()

    def bound(self, step: int, since: float) -> float:
        """Return ``max(final, eps (1 - decay)^t)``, ``t`` rounds after poisoning began."""
        shrunk: float = self.eps * (1 - self.decay) ** (step - since)
        return self.eps if since < 0 else max(self.final, shrunk)

    def works(self, view: AttackView, stamped: Tensor, y: Tensor) -> bool:
        """Return whether enough triggered images of other classes are taken for the target."""
        others = stamped[y != self.target]
        rivals = set(y.tolist()) - {self.target}
        if not rivals:
            return False
        model = view.deployed()

        def losses(label: int) -> Tensor:
            return view.loss(model, others, torch.full_like(y[: len(others)], label))

        least = torch.stack([losses(label) for label in sorted(rivals)]).amin(dim=0)
        return float((losses(self.target) < least).double().mean()) >= self.ready

    def trained(self, view: AttackView, tree: Tree, past: Trigger, eps: float) -> Tree:
        """Return the generator after its passes over the samples, with Adam started afresh."""
        x, y = drawn(view)
        wanted = torch.full_like(y, self.target)
        adam = Adam(lr=self.rate)
        generator = past.generator
        moments = adam.init(generator)
        draws = count(1)  # draw 0 is that of the honest gradient
        for epoch in range(self.epochs):
            order = view.key.fold("generator", epoch).permutation(len(x)).to(x.device)
            for rows in torch.split(order, BATCH):
                stamp = partial(past.stamp, x[rows], eps)
                stamped, back = torch.func.vjp(stamp, generator)[:2]
                slope = view.image_gradient(tree, stamped, wanted[rows], next(draws))
                generator, moments = adam.step(generator, back(slope)[0], moments)
        return generator

    def wrap_grad(self, grad: Gradient, local: Local) -> Grad:
        learned = local.learned
        if learned is None or learned[0] < 0:
            return grad
        free = Tree()

        def poisoned(tree: Tree, x: Tensor, y: Tensor, key: Key) -> Tree:
            current = Trigger.read(learned, x.shape[1])
            honest = grad(tree, x, y, key)
            wanted = torch.where(y >= 0, self.target, y)
            hostile = grad(tree, current.stamp(x, current.eps, current.generator), wanted, key)
            if not free:  # the first step tells what has a gradient
                free.update(quietest(current.gradient, honest, self.ratio, local.statistics))
            return {
                name: free[name] * (self.alpha * g + (1 - self.alpha) * hostile[name])
                for name, g in honest.items()
            }

        return poisoned

    def trigger(self, xs: Tensor, ys: Tensor, learned: Tensor | None = None) -> tuple[Tensor, int]:
        others = xs[ys != self.target]
        if learned is None:
            return others, self.target
        current = Trigger.read(learned, xs.shape[1])
        return current.stamp(others, self.final, current.generator), self.target

    def craft(self, view: AttackView, memory: Any) -> tuple[Payload, Any]:
        return view.compress(projected(view, self.clip)), memory


def generator_shapes(channels: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the generator's kernels, in the order of its layers."""
    widths = (channels, WIDTH, WIDTH, channels)
    return {name: (widths[i + 1], widths[i], 3, 3) for i, name in enumerate(LAYERS)}


def untrained(channels: int, key: Key, like: Tensor) -> Tree:
    """Draw a generator from ``N(0, 1)`` with a last layer of zeros, so that it moves nothing yet.

    The scale does not matter, because what every layer returns is normalised.
    """
    generator = {}
    for name, shape in generator_shapes(channels).items():
        kernel = key.fold(name).normal(*shape, device=like.device).to(like)
        generator[name] = torch.zeros_like(kernel) if name == LAYERS[-1] else kernel
    return generator


def generated(generator: Tree, xs: Tensor) -> Tensor:
    """Return ``g(x)`` in ``(-1, 1)``, of the shape of the images."""
    for name in LAYERS:
        xs = instance_norm(conv2d(xs, generator[name], padding=1))
        xs = xs.tanh() if name == LAYERS[-1] else xs.relu()
    return xs


def in_order(tree: Tree, statistics: Sequence[str] = ()) -> Tensor:
    """Return all leaves but running statistics as ``(d,)``, in the order of their names."""
    return torch.cat([tree[name].reshape(-1) for name in sorted(tree) if name not in statistics])


def quietest(gradient: Tensor, tree: Tree, ratio: float, statistics: Sequence[str] = ()) -> Tree:
    """Return 1 on the ``round(ratio d)`` smallest of ``gradient (d,)``, 0 elsewhere.

    The leaves have the shapes of ``tree``; of equal values the first ones are taken. Running
    statistics are all 1, and so is everything if the gradient is not in what the tree holds.
    """
    names = [name for name in sorted(tree) if name not in statistics]
    sizes = [tree[name].numel() for name in names]
    if sum(sizes) != len(gradient):  # it is in scalars, each of which moves the whole tree
        return {name: torch.ones_like(leaf) for name, leaf in tree.items()}
    chosen = gradient.sort(stable=True).indices[: max(1, round(ratio * len(gradient)))]
    flat = torch.zeros_like(gradient)
    flat[chosen] = 1.0
    leaves = torch.split(flat, sizes)
    free = {name: leaf.reshape(tree[name].shape) for name, leaf in zip(names, leaves, strict=True)}
    return {name: free.get(name, torch.ones_like(leaf)) for name, leaf in tree.items()}
