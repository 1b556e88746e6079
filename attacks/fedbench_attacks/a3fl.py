"""A3FL, a backdoor whose trigger adapts to the model and to one that unlearns it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count

import torch
from torch import Tensor

from fedbench.api import AttackView, Knowledge
from fedbench.core.errors import require
from fedbench.core.trees import Tree

from .pixel import Pixel

# Training of the model that unlearns, as in the authors' code but for the batches.
EPOCHS = 5
RATE = 0.01
MOMENTUM = 0.9
BATCH = 32
SAMPLES = 256  # of the adversary's clients, drawn anew in each round


@dataclass(frozen=True, kw_only=True)
class A3FL(Pixel):
    """Train as `Pixel`, with a square that is optimised in each round before the clients train.

    The square starts grey, in the middle of what each channel holds, and goes on from where it was.
    With ``L(w)`` the mean cross-entropy of stamped images for ``target`` it goes ``steps`` times
    down the sign of the gradient of ``L(w) + balance cos(w, w') L(w')`` in its pixels, within the
    range of each channel. ``w`` is what the clients received, and ``w'`` is ``w`` after training
    to take stamped images for what they are: five epochs, anew every ``renew`` steps.

    All colluders share the square, which is optimised on at most 256 samples of all clients that
    the adversary owns. It can work on a clean model, as adversarial examples do. A clean twin of
    the run, in which nothing was learned, is tried with the grey one.

    Args:
        steps: Steps of the square in a round.
        step: Length of a step, as a share of a channel's range.
        balance: Weight of the model that unlearns.
        renew: Steps after which that model is trained anew.

    References:
        Zhang et al., "A3FL: Adversarially Adaptive Backdoor Attacks to Federated Learning",
        NeurIPS 2023, https://openreview.net/forum?id=S6ajVZy6FA. The paper's text was not at hand:
        this follows the authors' code, with fewer and longer steps, and takes the cosine of all
        that is trained together, where that code averages one for each convolution's gradients.
    """

    steps: int = 30
    step: float = 0.05
    balance: float = 0.01
    renew: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        require("A3FL.steps", self.steps, self.steps >= 1, ">= 1")
        require("A3FL.step", self.step, 0 < self.step <= 1, "in (0, 1]")
        require("A3FL.balance", self.balance, self.balance >= 0, ">= 0")
        require("A3FL.renew", self.renew, self.renew >= 1, ">= 1")

    def needs(self) -> Knowledge:
        """Share a square, and see how the loss changes with the pixels."""
        return Knowledge("colluders", data=True)

    def square(self, xs: Tensor, learned: Tensor | None) -> Tensor:
        if learned is not None:
            return learned.to(xs)
        grey = (xs.amin(dim=(0, 2, 3)) + xs.amax(dim=(0, 2, 3)))[:, None, None] / 2
        return grey.expand(-1, self.size, self.size)

    def learn(self, view: AttackView, learned: Tensor | None) -> Tensor:
        x, y = drawn(view)
        low, high = x.amin(dim=(0, 2, 3))[:, None, None], x.amax(dim=(0, 2, 3))[:, None, None]
        wanted = torch.full_like(y, self.target)
        square = self.square(x, learned)
        tree = view.ahead()
        other = tree
        draws = count()  # for protocols that draw a mask in every step
        for step in range(self.steps):
            if step % self.renew == 0 and self.balance > 0:
                other = unlearned(view, tree, self.stamp(x, 0, self.size, square), y, draws)
            stamped = self.stamp(x, 0, self.size, square)
            draw = next(draws)
            slope = view.image_gradient(tree, stamped, wanted, draw)
            if self.balance > 0:
                assert view.rehearsal is not None
                weight = self.balance * cosine(tree, other, view.rehearsal.names)
                slope = slope + weight * view.image_gradient(other, stamped, wanted, draw)
            uphill = slope[:, :, -self.size :, -self.size :].sum(dim=0).sign()
            square = torch.clamp(square - self.step * (high - low) * uphill, low, high)
        return square


def drawn(view: AttackView) -> tuple[Tensor, Tensor]:
    """Return at most `SAMPLES` images and labels of the adversary's clients."""
    assert view.rehearsal is not None
    x, y = view.rehearsal.x, view.rehearsal.y
    chosen = view.key.fold("samples").permutation(len(x))[:SAMPLES].to(x.device)
    return x[chosen], y[chosen]


def unlearned(view: AttackView, tree: Tree, x: Tensor, y: Tensor, draws: Iterator[int]) -> Tree:
    """Return the tree after training on images ``x`` with their true labels ``y``.

    ``draws`` numbers the draws of the gradients.
    """
    assert view.rehearsal is not None
    names = view.rehearsal.names
    sizes = [tree[name].numel() for name in names]
    now = dict(tree)
    speed: Tensor | float = 0.0
    for epoch in range(EPOCHS):
        order = view.key.fold("unlearned", epoch).permutation(len(x)).to(x.device)
        for rows in torch.split(order, BATCH):
            speed = MOMENTUM * speed + view.gradient(now, x[rows], y[rows], next(draws))
            for name, part in zip(names, torch.split(speed, sizes), strict=True):
                now[name] = now[name] - RATE * part.reshape(now[name].shape)
    return now


def cosine(tree: Tree, other: Tree, names: Sequence[str]) -> float:
    """Return the cosine similarity of these leaves of two trees, together; 0 beside zeros.

    A tree may hold more than is trained: the seed of a mask is far larger than all weights.
    """
    a, b = (torch.cat([t[name].double().reshape(-1) for name in names]) for t in (tree, other))
    lengths = torch.linalg.vector_norm(a) * torch.linalg.vector_norm(b)
    return float(a @ b / lengths.clamp_min(1e-30))
