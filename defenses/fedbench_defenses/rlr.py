"""Robust learning rate (RLR)."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedbench.api import Defense, ServerView, Traits
from fedbench.core.errors import require
from fedbench.core.tiling import tiles
from fedbench.payload import FoldedMessages, KeptMessages, Payload

from .distances import combine
from .mean import Mean


@dataclass(frozen=True, kw_only=True)
class RLR(Defense[None]):
    """Compute the mean, turned around in coordinates where ``|sum_i sign(x_i)| < theta``.

    Where too few clients agree on a direction the server goes back instead, to unlearn what a few
    want. The mean is weighted by the clients' sizes, the signs all count the same. Both are
    measured from the middle of the alphabet. The share of such coordinates is in `findings`. Where
    ``theta > n - 2 f``, ``f`` rows turn even what all others agree on: by default from a little
    less than a third of the rows on.

    Args:
        f: Malicious rows the server is prepared for.
        theta: Clients that must go one way more than the other. Default ``f + sqrt(n - f)``,
            rounded up: the signs of benign clients that toss coins add up to ``sqrt(n - f)``, one
            standard deviation, and ``f`` malicious ones beside them decide nothing then. The paper
            has a number for each experiment; the authors' code 4 of 10 with 1, 8 of 40 with 4 and 8
            of 33 with 3.3 malicious, where the default is 4, 10 and 10.

    References:
        Ozdayi, Kantarcioglu and Gel, "Defending against Backdoors in Federated Learning with
        Robust Learning Rate", AAAI 2021, https://arxiv.org/abs/2007.03767.
    """

    pairs: ClassVar[bool] = False
    f: int | None = None
    theta: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require("RLR.theta", self.theta, self.theta is None or self.theta >= 0, ">= 0")

    @property
    def lacks_f(self) -> bool:
        """Whether neither ``theta`` nor the ``f`` that gives it is there."""
        return self.theta is None and self.f is None

    def _theta(self, n: int) -> int:
        if self.theta is not None:
            return self.theta
        f = self.f or 0
        return f + math.isqrt(max(n - f, 1) - 1) + 1  # the root, rounded up

    def traits(self) -> Traits:
        return Traits(counts=True, shift=False)  # no mean at f 0: of as many each way it is turned

    def rows_needed(self) -> int:
        """Return so many that not everything is turned around whatever the rows are."""
        return (self.f or 0) + 1 if self.theta is None else max(1, self.theta)

    def tolerates(self, n: int) -> int:
        return 0

    def aggregate(self, received: Payload, state: None, view: ServerView) -> tuple[Tensor, None]:
        x = received.values()
        origin = received.origin()
        mean, _ = Mean().aggregate(received, None, view)
        votes = torch.cat([torch.sign(tile - mid).sum(dim=0) for tile, mid in tiles(x, origin)])
        return self._turned(mean, votes, len(received), origin, view), None

    def aggregate_sums(
        self, received: FoldedMessages, state: None, view: ServerView
    ) -> tuple[Tensor, None]:
        mean, _ = Mean().aggregate_sums(received, None, view)
        votes = 2 * received.ones() - len(received)
        return self._turned(mean, votes, len(received), received.form.origin(), view), None

    def aggregate_kept(
        self, received: KeptMessages, state: None, view: ServerView
    ) -> tuple[Tensor, None]:
        origin = received.form.origin()
        mean = combine(view.weights / view.weights.sum(), received)
        parts = received.tiles(origin)
        votes = torch.cat([torch.sign(tile - mid).sum(dim=0) for tile, mid in parts])
        return self._turned(mean, votes, len(received), origin, view), None

    def _turned(
        self, mean: Tensor, votes: Tensor, n: int, origin: Tensor, view: ServerView
    ) -> Tensor:
        """Return the mean ``(k,)``, turned around where ``votes (k,)`` of ``n`` nearly tie."""
        theta = self._theta(n)
        turned = votes.abs() < theta
        view.findings.notes |= {"theta": theta, "turned": float(turned.double().mean())}
        return torch.where(turned, 2 * origin.to(mean) - mean, mean)
