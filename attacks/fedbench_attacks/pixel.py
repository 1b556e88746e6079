"""Backdoors with a pattern of pixels, whole or distributed over the colluders."""

from dataclasses import dataclass

from torch import Tensor

from fedbench.api import Attack, Local
from fedbench.core.errors import require, require_label
from fedbench.core.trees import Tree


@dataclass(frozen=True, kw_only=True)
class Pixel(Attack):
    """Train with a share ``rho`` of the images stamped with a bright square, labelled ``target``.

    The square fills the lower right corner with the largest value that its channel has in the
    images at hand, which normalisation leaves the brightest. ``max(1, round(rho N))`` of the ``N``
    local images are drawn anew in every round, whatever their label; the others stay as they are.

    Args:
        size: Height and width of the square, in pixels.
        rho: Share of the local images.
        target: Label that a stamped image is to be taken for.

    References:
        Gu, Dolan-Gavitt and Garg, "BadNets: Identifying Vulnerabilities in the Machine Learning
        Model Supply Chain", 2017, https://arxiv.org/abs/1708.06733, the pattern backdoor on MNIST.
    """

    works_on = ("image",)

    size: int = 3
    rho: float = 0.5
    target: int = 0

    def __post_init__(self) -> None:
        name = type(self).__name__
        require(f"{name}.size", self.size, self.size >= 1, ">= 1")
        require(f"{name}.rho", self.rho, 0 < self.rho <= 1, "in (0, 1]")
        require(f"{name}.target", self.target, self.target >= 0, ">= 0")

    def require_samples(self, image: tuple[int, ...], classes: int) -> None:
        name = type(self).__name__
        side = min(image[1:])
        requirement = f"<= {side}, the image's shorter side"
        require(f"{name}.size", self.size, self.size <= side, requirement)
        require_label(f"{name}.target", self.target, classes)

    def rows(self, local: Local) -> tuple[int, int]:
        return 0, self.size

    def square(self, xs: Tensor, learned: Tensor | None) -> Tensor:
        """Return the square ``(C, size, size)`` in units of ``xs``."""
        brightest: Tensor = xs.amax(dim=(0, 2, 3))[:, None, None]
        return brightest.expand(-1, self.size, self.size)

    def stamp(self, xs: Tensor, first: int, last: int, learned: Tensor | None = None) -> Tensor:
        """Return a copy of ``xs (N, C, H, W)`` with the square's rows ``first .. last - 1``."""
        height, width = xs.shape[2:]
        top = height - self.size
        stamped = xs.clone()
        square = self.square(xs, learned)[:, first:last]
        stamped[:, :, top + first : top + last, width - self.size :] = square
        return stamped

    def poison(self, xs: Tensor, ys: Tensor, local: Local) -> tuple[Tensor, Tensor]:
        count = max(1, round(self.rho * len(xs)))
        chosen = local.key.fold("stamped").permutation(len(xs))[:count].to(xs.device)
        x, y = xs.clone(), ys.clone()
        x[chosen] = self.stamp(xs, *self.rows(local), local.learned)[chosen]
        y[chosen] = self.target
        return x, y

    def trigger(self, xs: Tensor, ys: Tensor, learned: Tensor | None = None) -> tuple[Tensor, int]:
        return self.stamp(xs, 0, self.size, learned)[ys != self.target], self.target


@dataclass(frozen=True, kw_only=True)
class DBA(Pixel):
    """Each colluder stamps one of ``pieces`` strips of `Pixel`'s square, which is the trigger.

    Strips are rows of the square from its top, ``size / pieces`` of them each, rounded. Number
    ``part`` of the adversary's clients stamps strip ``part mod pieces`` in every round. An
    adversary with fewer clients has as many strips as clients, as the paper has, or nobody would
    train the rest of the trigger. Unlike the paper's bars the pieces touch, and nothing is scaled.

    Args:
        pieces: Number of strips, at most; no more than the square has rows.
        size: Height and width of the whole square, in pixels.

    References:
        Xie et al., "DBA: Distributed Backdoor Attacks against Federated Learning", ICLR 2020,
        https://openreview.net/forum?id=rkgyS0VFvr, section 3.
    """

    pieces: int = 4
    size: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        fits = 1 <= self.pieces <= self.size
        require("DBA.pieces", self.pieces, fits, f"in [1, size = {self.size}]")

    def rows(self, local: Local) -> tuple[int, int]:
        pieces = min(self.pieces, local.parts)
        piece = local.part % pieces
        return self.size * piece // pieces, self.size * (piece + 1) // pieces


def received(tree: Tree, gradient: Tree) -> Tree:
    """Return what a client received of all that has a gradient; the mean of a mixture's parts."""
    parts = {name: tree[name] for name in gradient}
    return {k: x if x.shape == gradient[k].shape else x.mean(dim=0) for k, x in parts.items()}
