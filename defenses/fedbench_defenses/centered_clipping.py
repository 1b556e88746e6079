"""Centred clipping around the last answer."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedbench.api import ServerView, Traits
from fedbench.core.errors import require
from fedbench.payload import Rows

from .distances import Geometric, combine, gram, middle


@dataclass(frozen=True, kw_only=True)
class CenteredClipping(Geometric[Tensor]):
    """Iterate ``v <- v + 1/n sum_i (x_i - v) min(1, tau / |x_i - v|)`` from the last round's ``v``.

    Before the first round ``v`` is the middle of the alphabet. A row that is not finite counts in
    ``n`` and moves nothing. Ignores the clients' sizes.

    Args:
        tau: How far one row may pull. None is ours: in each step the rows' median distance from
            ``v``.
        steps: Steps a round, the paper's ``L``.

    References:
        Karimireddy, He and Jaggi, "Learning from History for Byzantine Robust Optimization",
        ICML 2021, https://arxiv.org/abs/2012.10333, centered clipping.
    """

    tau: float | None = None
    steps: int = 1

    def __post_init__(self) -> None:
        require("CenteredClipping.tau", self.tau, self.tau is None or self.tau > 0, "> 0")
        require("CenteredClipping.steps", self.steps, 1 <= self.steps <= 10**4, "in [1, 10000]")

    def traits(self) -> Traits:
        return Traits(history=True, shift=False, scale=False, sharp=self.tau is None)

    def tolerates(self, n: int) -> int:
        return n - 1 if self.tau is not None else (n - 1) // 2

    def answer(
        self, x: Rows, origin: Tensor, state: Tensor | None, view: ServerView
    ) -> tuple[Tensor, Tensor]:
        n = len(x)
        v = origin if state is None else state
        g, finite = (part.cpu() for part in gram(x, v))  # the steps are the processor's
        lengths = g.diagonal()
        share = torch.zeros(n, dtype=torch.float64)
        for _ in range(self.steps):
            squared = lengths - 2 * g @ share + share @ g @ share
            distances = torch.where(finite, squared.clamp_min(0).sqrt(), torch.inf)
            tau = float(middle(distances)) if self.tau is None else self.tau
            pull = torch.where(finite & (distances > tau), tau / distances, finite.to(g)) / n
            share = share * (1 - pull.sum()) + pull
        view.findings.notes["clipped"] = int((distances > tau).sum())
        v = combine(share, x, v)
        return v, v
