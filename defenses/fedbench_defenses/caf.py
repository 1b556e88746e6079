"""Covariance-bound agnostic filter (CAF), which weighs rows down along the widest direction."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedbench.api import ServerView, Traits
from fedbench.payload import Rows

from .distances import Geometric, combine, gram

_EQUAL = 1 - 1e-9  # eigenvalues closer than that are one, to which a space of vectors belongs


@dataclass(frozen=True, kw_only=True)
class CAF(Geometric[None]):
    """Weigh rows by ``c``, filter while ``sum_i c_i > n - 2 f``, answer the least spread mean.

    From ``c = 1`` on: ``mu`` is the weighted mean, ``v`` the top eigenvector of the weighted
    covariance, ``tau_i = <x_i - mu, v>^2``, and ``c_i`` becomes ``c_i (1 - tau_i / max_j tau_j)``.
    The answer is the ``mu`` whose covariance has the smallest top eigenvalue, of equal ones the
    first.

    Eigenvectors are exact, from the rows' Gram matrix; public code multiplies a random vector by
    the covariance once (D21). ``max_j`` is over rows that have a weight, so that each step takes a
    row's last; over all rows, as in public code, one far row that has none left keeps all others as
    they are (D22). If several eigenvectors share the top eigenvalue ``tau_i`` is the square of the
    projection on all of them. A row that is not finite has no weight. Ignores the clients' sizes.

    The paper's text was not at hand, but for the title and the inputs of the algorithm: the rule is
    as its authors' library, ByzFL, describes it.

    Args:
        f: Malicious rows the server is prepared for; ``n >= 2 f + 1``.

    References:
        Allouah, Guerraoui and Stephan, "Towards Trustworthy Federated Learning with Untrusted
        Participants", ICML 2025, https://arxiv.org/abs/2505.01874, Algorithm 2 (CAF).
    """

    f: int | None = None

    def traits(self) -> Traits:
        return Traits(detects=True, mean_at_zero=True, sharp=False)

    def rows_needed(self) -> int:
        return 2 * (self.f or 0) + 1

    def tolerates(self, n: int) -> int:
        # A lower bound. While far rows have weight they lose more of it than the others, so that up
        # to f of them are gone before f is lost of the others, and a mean without them is found.
        return min(self.f or 0, (n - 1) // 2)

    def answer(self, x: Rows, origin: Tensor, state: None, view: ServerView) -> tuple[Tensor, None]:
        products, finite = (part.cpu() for part in gram(x))  # the filter is the processor's
        rows = finite.nonzero()[:, 0]
        share = torch.zeros(len(x), dtype=torch.float64)
        if len(rows):
            least = len(x) - 2 * (self.f or 0)
            share[rows] = filtered(products[rows][:, rows], least)
        view.findings.kept = share > 0
        return combine(share, x), None


def filtered(g: Tensor, least: int) -> Tensor:
    """Return each row's share ``(n,)`` in the answer, given products ``g (n, n)`` of rows.

    It filters while the weights add up to more than ``least``.
    """
    c = torch.ones(len(g), dtype=g.dtype)
    best = c / c.sum()
    spread = torch.inf
    while float(c.sum()) > least and spread > 0:  # 0: all rows that have a weight are equal
        share = c / c.sum()
        mean = g @ share
        centred = g - mean - mean[:, None] + share @ mean
        root = share.sqrt()
        values, vectors = torch.linalg.eigh(root[:, None] * centred * root)
        if float(values[-1]) < spread:
            best = share
            spread = float(values[-1])
        top = root[:, None] * vectors[:, values >= _EQUAL * values[-1]]
        tau = torch.where(c > 0, (centred @ top).square().sum(dim=1), 0.0)
        c = c * (1 - tau / tau.max())
    return best
