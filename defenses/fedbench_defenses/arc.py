"""Adaptive robust clipping (ARC)."""

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from fedbench.api import Defense, Prefilter, ServerView, Traits
from fedbench.payload import Payload

from .clip import clipped
from .distances import norms
from .norm_bound import CONSTANT


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
        """Declare the mean at ``f`` 0, where nothing is clipped."""
        return Traits(shift=False, mean_at_zero=True)

    def rows_needed(self, rule: Defense[Any]) -> int:
        return max(rule.rows_needed(), 2 * (self.f or 0) + 1)

    def tolerates(self, n: int, rule: Defense[Any]) -> int:
        """Return ``k``, rows brought to a benign norm, or what the rule tolerates if more."""
        return max(self._k(n), rule.tolerates(n))

    def transform(self, received: Payload, view: ServerView) -> tuple[Payload, Tensor]:
        """Clip each row by itself, once the norms are sorted."""
        sizes = norms(received.values(), received.origin())
        bound = sizes.sort(descending=True).values[self._k(len(sizes))]
        return clipped(received, sizes, float(bound))
