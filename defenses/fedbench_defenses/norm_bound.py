"""Clipping by norms: norm bounding, and the prefilters that clip in front of a rule."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedbench.api import Defense, Prefilter, ServerView, Traits
from fedbench.core.errors import require
from fedbench.core.tiling import tiles
from fedbench.payload import (
    BinaryMasks,
    FloatVectors,
    Payload,
    Rankings,
    Rows,
    SignBits,
    TopRankings,
)

from .distances import Geometric, combine, middle, norms, real_dtype

ONE_NORM = "would be the plain mean, since all messages of one length have one norm"
ONE_LENGTH: tuple[type[Payload], ...] = (SignBits, BinaryMasks, Rankings, TopRankings)
CONSTANT = dict.fromkeys(ONE_LENGTH, ONE_NORM)


def factors(sizes: Tensor, c: float) -> Tensor:
    """Return ``min(1, c / size)``, ``(n,)`` float64, and 0 for an infinite size."""
    return torch.where(torch.isfinite(sizes), (c / sizes).clamp_max(1).nan_to_num_(1.0), 0.0)


def clipped(received: Payload, sizes: Tensor, c: float) -> tuple[Payload, Tensor]:
    """Return the rows, those larger than ``c`` brought to that norm, and their row numbers.

    Norms are about the alphabet's middle, which replaces a row that is not finite.
    """
    values = received.values()
    x = values.to(real_dtype(values), copy=True)
    rows = ((sizes > c) | torch.isinf(sizes)).nonzero()[:, 0]
    lost = torch.isinf(sizes[rows])
    share = factors(sizes, c)[rows].to(x.dtype)
    for tile, origin in tiles(x, received.origin()):
        smaller = (tile[rows] - origin) * share[:, None] + origin
        tile[rows] = torch.where(lost[:, None], origin, smaller)
    return FloatVectors(x), torch.arange(len(x), device=x.device)


@dataclass(frozen=True, kw_only=True)
class NormBound(Geometric[None]):
    """Compute ``1/n sum_i x_i min(1, c / |x_i|) + noise N(0, I)``.

    Norms are about the alphabet's middle, which stands in for a row that is not finite. Ignores the
    clients' sizes, which would be a way around the bound. No epsilon is claimed for the noise, the
    paper's "weak" differential privacy.

    Args:
        c: Largest norm of a row. None is ours: the median norm of the round's rows.
        noise: Standard deviation of a coordinate of the noise that is added to the mean.

    References:
        Sun et al., "Can You Really Backdoor Federated Learning?", 2019,
        https://arxiv.org/abs/1911.07963, norm thresholding of updates and weak differential
        privacy.
    """

    without: ClassVar[dict[type[Payload], str]] = CONSTANT
    pairs: ClassVar[bool] = False
    c: float | None = None
    noise: float = 0.0

    def __post_init__(self) -> None:
        require("NormBound.c", self.c, self.c is None or self.c > 0, "> 0")
        require("NormBound.noise", self.noise, self.noise >= 0, ">= 0")

    def traits(self) -> Traits:
        noisy = self.noise > 0
        own = self.c is None
        return Traits(randomized=noisy, shift=False, scale=own and not noisy, sharp=own)

    def tolerates(self, n: int) -> int:
        return n - 1 if self.c is not None else (n - 1) // 2

    def answer(self, x: Rows, origin: Tensor, state: None, view: ServerView) -> tuple[Tensor, None]:
        sizes = norms(x, origin)
        c = float(middle(sizes)) if self.c is None else self.c
        view.findings.notes |= {"c": c, "clipped": int((sizes > c).sum())}
        out = combine(factors(sizes, c) / len(x), x, origin)
        if self.noise:
            drawn = view.key.fold("norm-bound").gaussian(len(out), device=out.device)
            out = out + self.noise * drawn.to(out)
        return out, None

    def sensitivity(self, clip: float, n: int) -> float | None:
        return None if self.c is None else 2 * min(self.c, clip) / n


@dataclass(frozen=True, kw_only=True)
class Clip(Prefilter):
    """Replace ``x_i`` by ``x_i min(1, c / |x_i|)``, with norms about the alphabet's middle.

    A row that is not finite becomes the middle.

    Args:
        c: Largest norm of a row. None: the median norm of the round's rows.

    References:
        Sun et al., "Can You Really Backdoor Federated Learning?", 2019,
        https://arxiv.org/abs/1911.07963, norm thresholding of updates.
    """

    mixes = False
    without: ClassVar[dict[type[Payload], str]] = CONSTANT
    c: float | None = None

    def __post_init__(self) -> None:
        require("Clip.c", self.c, self.c is None or self.c > 0, "> 0")

    def traits(self) -> Traits:
        return Traits(shift=False, scale=self.c is None, sharp=self.c is None)

    def tolerates(self, n: int, rule: Defense[Any]) -> int:
        return n - 1 if self.c is not None else max((n - 1) // 2, rule.tolerates(n))

    def sensitivity(self, clip: float, n: int, rule: Defense[Any]) -> float | None:
        return None if self.c is None else rule.sensitivity(min(self.c, clip), n)

    def transform(self, received: Payload, view: ServerView) -> tuple[Payload, Tensor]:
        sizes = norms(received.values(), received.origin())
        return clipped(received, sizes, float(middle(sizes)) if self.c is None else self.c)


@dataclass(frozen=True, kw_only=True)
class ARC(Prefilter):
    """Clip the ``k = floor(2 (f / n) (n - f))`` rows of largest norm to the norm of the next one.

    Norms are measured from the alphabet's middle, which also replaces a row that is not finite.

    Args:
        f: Malicious rows the server is prepared for; ``n >= 2 f + 1``.

    References:
        Allouah et al., "Adaptive Gradient Clipping for Robust Federated Learning", ICLR 2025,
        https://arxiv.org/abs/2405.14432, adaptive robust clipping (ARC).
    """

    mixes = False
    without: ClassVar[dict[type[Payload], str]] = CONSTANT
    f: int | None = None

    def _k(self, n: int) -> int:
        f = min(self.f or 0, n)
        return 2 * f * (n - f) // n

    def traits(self) -> Traits:
        return Traits(shift=False, mean_at_zero=True)

    def rows_needed(self, rule: Defense[Any]) -> int:
        return max(rule.rows_needed(), 2 * (self.f or 0) + 1)

    def tolerates(self, n: int, rule: Defense[Any]) -> int:
        return max(self._k(n), rule.tolerates(n))  # k rows are brought to a benign norm

    def transform(self, received: Payload, view: ServerView) -> tuple[Payload, Tensor]:
        sizes = norms(received.values(), received.origin())
        bound = sizes.sort(descending=True).values[self._k(len(sizes))]
        return clipped(received, sizes, float(bound))
