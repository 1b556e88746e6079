"""Norm clipping in front of a rule."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedbench.api import Defense, Prefilter, ServerView, Traits
from fedbench.core.errors import require
from fedbench.core.tiling import tiles
from fedbench.payload import FloatVectors, Payload

from .distances import middle, norms
from .norm_bound import CONSTANT, factors


def clipped(received: Payload, sizes: Tensor, c: float) -> tuple[Payload, Tensor]:
    """Return the rows, those larger than ``c`` brought to that norm, and their row numbers.

    Norms are about the alphabet's middle, which replaces a row that is not finite.
    """
    x = received.values().to(torch.float32, copy=True)
    rows = ((sizes > c) | torch.isinf(sizes)).nonzero()[:, 0]
    lost = torch.isinf(sizes[rows])
    share = factors(sizes, c)[rows].to(torch.float32)
    for tile, origin in tiles(x, received.origin()):
        smaller = (tile[rows] - origin) * share[:, None] + origin
        tile[rows] = torch.where(lost[:, None], origin, smaller)
    return FloatVectors(x), torch.arange(len(x), device=x.device)


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
        """Declare that only a bound that the rows set scales with them."""
        return Traits(shift=False, scale=self.c is None, sharp=self.c is None)

    def tolerates(self, n: int, rule: Defense[Any]) -> int:
        """Return rows up to which the rule sees bounded rows only, or tolerates the others."""
        return n - 1 if self.c is not None else max((n - 1) // 2, rule.tolerates(n))

    def sensitivity(self, clip: float, n: int, rule: Defense[Any]) -> float | None:
        """Return the rule's for rows that are no larger than ``c``."""
        return None if self.c is None else rule.sensitivity(min(self.c, clip), n)

    def transform(self, received: Payload, view: ServerView) -> tuple[Payload, Tensor]:
        """Clip each row by itself."""
        sizes = norms(received.values(), received.origin())
        c = float(middle(sizes)) if self.c is None else self.c
        return clipped(received, sizes, c)
