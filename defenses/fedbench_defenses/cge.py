"""Comparative gradient elimination (CGE), a filter by norms."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedbench.api import ServerView, Traits
from fedbench.payload import Payload, Rows

from .distances import Geometric, combine, norms, smallest
from .norm_bound import CONSTANT

ROUNDING = 1e-6  # relative difference of norms: rows of float32 that are clipped to one have 1e-7


@dataclass(frozen=True, kw_only=True)
class CGE(Geometric[None]):
    """Average the ``n - f`` rows of smallest norm.

    Norms are measured from the middle of the alphabet. Rows that tie for the last places share
    them, also if only rounding tells their norms apart, as behind a prefilter that clips rows to
    one norm. A row that is not finite has the largest norm. Ignores the clients' sizes.

    The paper's text was not at hand; the rule is as public code has it. In some versions the server
    adds the rows up, which a learning rate of the server can undo.

    Args:
        f: Malicious rows the server is prepared for; ``n >= f + 1``.

    References:
        Gupta, Liu and Vaidya, "Byzantine Fault-Tolerant Distributed Machine Learning Using
        Stochastic Gradient Descent (SGD) and Norm-Based Comparative Gradient Elimination (CGE)",
        DSN Workshops 2021, https://arxiv.org/abs/2008.04699, CGE gradient filter.
    """

    without: ClassVar[dict[type[Payload], str]] = CONSTANT
    pairs: ClassVar[bool] = False
    f: int | None = None

    def traits(self) -> Traits:
        return Traits(detects=True, shift=False, mean_at_zero=True)

    def rows_needed(self) -> int:
        return (self.f or 0) + 1  # one row must be left

    def tolerates(self, n: int) -> int:
        return self.f or 0

    def answer(self, x: Rows, origin: Tensor, state: None, view: ServerView) -> tuple[Tensor, None]:
        count = len(x) - (self.f or 0)
        share = smallest(norms(x, origin), count, ROUNDING).cpu()
        view.findings.kept = share > 0
        return combine(share / count, x), None
