"""Smallest maximum eigenvalue averaging (SMEA) of rows."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .subsets import ClosestSubset


@dataclass(frozen=True, kw_only=True)
class SMEA(ClosestSubset):
    """Average the ``n - f`` rows whose covariance ``C`` has the smallest largest eigenvalue.

    ``C = 1/(n - f) sum_i (x_i - mean) (x_i - mean)'`` over the subset. Its largest eigenvalue is
    that of the centred Gram matrix, which squared distances determine: exact, where public code
    multiplies a random vector by ``C`` once and compares the lengths of the products (D21). Every
    subset is looked at, at most 60,000 of them. Among equal eigenvalues the smaller sum of squared
    distances wins, then that of fourth powers to all rows, then the lower rows. Ignores the
    clients' sizes.

    The paper's text was not at hand; the rule is as its authors' library, ByzFL, describes it.

    Args:
        f: Malicious rows the server is prepared for; ``n >= 2 f + 1``.

    References:
        Allouah, Guerraoui, Gupta, Pinot and Stephan, "On the Privacy-Robustness-Utility Trilemma in
        Distributed Learning", ICML 2023, https://arxiv.org/abs/2302.04787, smallest maximum
        eigenvalue averaging (SMEA).
    """

    subsets: ClassVar[int] = 60_000

    def size(self, squared: Tensor, inside: Tensor) -> Tensor:
        """Return ``n - f`` times the top eigenvalues: ``C`` has those of ``-1/2 J squared J``."""
        rows = inside.nonzero()[:, 1].view(len(inside), -1)
        gram = squared[rows[:, :, None], rows[:, None, :]] / -2
        gram -= gram.mean(dim=1, keepdim=True)
        gram -= gram.mean(dim=2, keepdim=True)
        values: Tensor = torch.linalg.eigvalsh(gram)
        return values[:, -1].clamp_min(0)
