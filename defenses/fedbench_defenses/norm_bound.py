"""Norm bounding with weak differential privacy."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedbench.api import Defense, ServerView, Traits
from fedbench.core.errors import require
from fedbench.payload import BinaryMasks, Payload, Rankings, SignBits, TopRankings

from .distances import combine, middle, norms

ONE_NORM = "would be the plain mean, since all messages of one length have one norm"
CONSTANT: dict[type[Payload], str] = dict.fromkeys(
    (SignBits, BinaryMasks, Rankings, TopRankings), ONE_NORM
)


def factors(sizes: Tensor, c: float) -> Tensor:
    """Return ``min(1, c / size)``, ``(n,)`` float64, and 0 for an infinite size."""
    return torch.where(torch.isfinite(sizes), (c / sizes).clamp_max(1).nan_to_num_(1.0), 0.0)


@dataclass(frozen=True, kw_only=True)
class NormBound(Defense[None]):
    """Compute ``1/n sum_i x_i min(1, c / |x_i|) + noise N(0, I)``.

    Norms are about the alphabet's middle, which stands in for a row that is not finite. Ignores the
    clients' sizes: a size that a client states would be a way around the bound. The noise is the
    paper's "weak" differential privacy; no epsilon is claimed for it here.

    Args:
        c: Largest norm of a row. None is ours: the median norm of the round's rows.
        noise: Standard deviation of a coordinate of the noise that is added to the mean.

    References:
        Sun et al., "Can You Really Backdoor Federated Learning?", 2019,
        https://arxiv.org/abs/1911.07963, norm thresholding of updates and weak differential
        privacy.
    """

    without: ClassVar[dict[type[Payload], str]] = CONSTANT

    c: float | None = None
    noise: float = 0.0

    def __post_init__(self) -> None:
        require("NormBound.c", self.c, self.c is None or self.c > 0, "> 0")
        require("NormBound.noise", self.noise, self.noise >= 0, ">= 0")

    def traits(self) -> Traits:
        """Declare that only a bound that the rows set scales with them."""
        noisy = self.noise > 0
        own = self.c is None
        return Traits(randomized=noisy, shift=False, scale=own and not noisy, sharp=own)

    def tolerates(self, n: int) -> int:
        """Return all but one if ``c`` is given; fewer than half if it is the median norm."""
        return n - 1 if self.c is not None else (n - 1) // 2

    def aggregate(self, received: Payload, state: None, view: ServerView) -> tuple[Tensor, None]:
        x = received.values()
        origin = received.origin()
        sizes = norms(x, origin)
        c = float(middle(sizes)) if self.c is None else self.c
        view.findings.notes |= {"c": c, "clipped": int((sizes > c).sum())}
        out = combine(factors(sizes, c) / len(x), x, origin)
        if self.noise:
            drawn = view.key.fold("norm-bound").gaussian(len(out), device=out.device)
            out = out + self.noise * drawn.to(out)
        return out, None

    def sensitivity(self, clip: float, n: int) -> float | None:
        """Return ``2 c / n``: clipping to a ball moves no two rows apart."""
        return None if self.c is None else 2 * min(self.c, clip) / n
