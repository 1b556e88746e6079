"""Divide and Conquer (DnC), spectral outlier removal."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from fedbench.api import ServerView, Traits
from fedbench.core.copies import copied_to
from fedbench.core.errors import require
from fedbench.core.rng import Key
from fedbench.payload import KeptMessages, Rows

from .distances import Geometric, finite_of
from .mean import mean_of


@dataclass(frozen=True, kw_only=True)
class DnC(Geometric[None]):
    """Leave out the ``c f`` rows with the largest ``<x_i - mean, v>^2``, average the others.

    ``v`` is the top right singular vector of the centred rows, on ``sketch`` random coordinates.
    The projections on ``v`` are ``s u``, with ``u`` the top eigenvector of the rows' Gram matrix to
    the eigenvalue ``s^2``: exact, where the paper iterates. A row must pass all iterations; if none
    does, the one with the lowest sum of scores is the answer, and `findings` say so. A row that is
    not finite is never averaged; without another one the answer is the alphabet's middle. Ignores
    the clients' sizes; among equal scores the lower row stays. Not proved to be bounded: a row may
    be far away outside the sketch, and of two at very different distances in two directions one
    iteration sees only the farther.

    Args:
        f: Malicious rows the server is prepared for.
        c: Rows to leave out, per malicious one; ``c f`` is rounded up.
        iterations: Number of sketches.
        sketch: Coordinates of each; all, if there are no more.

    References:
        Shejwalkar and Houmansadr, "Manipulating the Byzantine: Optimizing Model Poisoning Attacks
        and Defenses for Federated Learning", NDSS 2021, Algorithm 2,
        https://doi.org/10.14722/ndss.2021.24498.
    """

    f: int | None = None
    c: float = 1.0
    iterations: int = 1
    sketch: int = 10_000

    def __post_init__(self) -> None:
        super().__post_init__()
        require("DnC.c", self.c, self.c > 0, "> 0")
        require("DnC.c", self.c, math.isfinite(self.c), "finite")
        require("DnC.iterations", self.iterations, 1 <= self.iterations <= 10**4, "in [1, 10000]")
        require("DnC.sketch", self.sketch, self.sketch >= 1, ">= 1")

    def _out(self) -> int:
        return math.ceil(Fraction(str(self.c)) * (self.f or 0))  # as floats 2.2 * 25 > 55

    def traits(self) -> Traits:
        return Traits(randomized=True, detects=True, mean_at_zero=True, sharp=False)

    def rows_needed(self) -> int:
        return self._out() + 1

    def tolerates(self, n: int) -> int:
        return 0  # the sketch may miss where a row is far away

    def sketched(self, x: Rows, key: Key) -> Iterator[Tensor]:
        """Yield one sketch of the rows, of packets a few columns at a time."""
        if isinstance(x, KeptMessages):
            k = len(x.span)
            drawn = torch.ones(k, dtype=torch.bool)
            if k > self.sketch:
                drawn[key.permutation(k)[self.sketch :]] = False
            for tile, within in x.tiles(copied_to(drawn, x.form.values().device)):
                yield tile[:, within]
        elif x.shape[1] > self.sketch:
            drawn = key.permutation(x.shape[1])[: self.sketch].sort().values
            yield x[:, drawn.to(x.device)]
        else:
            yield x

    def scores(self, x: Rows, finite: Tensor, key: Key) -> Tensor:
        """Return the outlier scores ``(n,)`` on one sketch; infinite for a row not finite."""
        products = torch.zeros((), dtype=torch.float64, device=finite.device)
        for part in self.sketched(x, key):
            rows = part[finite].to(torch.float64)
            rows = rows - rows.mean(dim=0)
            products = products + rows @ rows.T
        values, vectors = torch.linalg.eigh(products)
        scores = torch.full_like(finite, torch.inf, dtype=torch.float64)
        scores[finite] = (values[-1:] * vectors[:, -1:].square()).flatten()
        return scores

    def answer(self, x: Rows, origin: Tensor, state: None, view: ServerView) -> tuple[Tensor, None]:
        finite = finite_of(x)
        good = finite.clone()
        total = torch.zeros(len(x), dtype=torch.float64, device=origin.device)
        for i in range(self.iterations):
            scores = self.scores(x, finite, view.key.fold("dnc", i))
            good[scores.sort(stable=True).indices[len(x) - self._out() :]] = False
            total += scores
        passed = good.cpu()
        if not bool(passed.any()):
            order = total.cpu().sort(stable=True)
            if not bool(torch.isfinite(order.values[0])):
                view.findings.kept = passed
                return origin.clone(), None
            passed[order.indices[0]] = True
            view.findings.notes["fell_back"] = "empty intersection"
        view.findings.kept = passed
        return mean_of(x, passed.nonzero()[:, 0]), None
