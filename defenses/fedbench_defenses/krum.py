"""Krum."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from fedbench.api import Defense, ServerView, Traits
from fedbench.core.errors import require
from fedbench.payload import Payload

from .multi_krum import MultiKrum


@dataclass(frozen=True, kw_only=True)
class Krum(Defense[None]):
    """The one row with the smallest sum of squared distances to its ``n - f - 2`` nearest others.

    `MultiKrum` with ``m = 1``; to score again after the only pick changes nothing, so there is no
    recursive variant. ``public`` counts a row as a neighbour of itself. Ignores the clients' sizes.

    Args:
        f: Malicious rows the server is prepared for; ``n >= 2 f + 3``.
        variant: Whose Krum: the paper's or that of the attacks' public code.

    References:
        Blanchard et al., "Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent",
        NeurIPS 2017, https://arxiv.org/abs/1703.02757, section 4.
    """

    f: int | None = None
    variant: Literal["canonical", "public"] = "canonical"

    def __post_init__(self) -> None:
        require("Krum.f", self.f, self.f is None or self.f >= 0, ">= 0")

    @property
    def _rule(self) -> MultiKrum:
        return MultiKrum(f=self.f, m=1, variant=self.variant)

    def traits(self) -> Traits:
        """Of the rows it keeps one, even if ``f`` is 0."""
        return Traits(detects=True)

    def rows_needed(self) -> int:
        """``n > 2 f + 2``."""
        return self._rule.rows_needed()

    def tolerates(self, n: int) -> int:
        """Two more than ``f`` where they are no majority; see `MultiKrum.tolerates`."""
        return self._rule.tolerates(n)

    def select(self, squared: Tensor) -> Tensor:
        """The lowest score."""
        return self._rule.select(squared)

    def aggregate(self, received: Payload, state: None, view: ServerView) -> tuple[Tensor, None]:
        """A row as it was sent."""
        return self._rule.aggregate(received, state, view)
