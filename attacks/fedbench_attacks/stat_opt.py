"""STAT-OPT, the attacks of Fang et al. on Krum, trimmed mean and median."""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedbench.api import AttackView, Choices, Knowledge
from fedbench.core.errors import require

from .crafted import Crafted, deviation, mirrored, sender
from .search import Search, Traced
from .searched import Trials

SMALLEST = 1e-5  # least lambda of the published search


@dataclass(frozen=True, kw_only=True)
class StatOpt(Crafted):
    """All colluders send ``-lambda * s`` against the sign ``s`` of the mean, or go beyond all rows.

    - Against a rule that selects rows (Krum family) all colluders send ``-lambda * s``, with the
      largest lambda at which all of them are selected.
    - Against every other rule each draws every coordinate uniformly: where ``s = 1`` from
      ``[min / b, min]`` if the smallest known value is positive and ``[b min, min]`` if not, where
      ``s = -1`` from ``[max, b max]`` or ``[max, max / b]``. With ``knows=colluders`` it draws from
      ``[mean - 4 std, mean - 3 std]`` and ``[mean + 3 std, mean + 4 std]`` (ddof 1; a single row
      has no deviation, and ``|mean|`` stands in). Where ``s = 0`` it sends the mean.

    The paper does this to weights, of which ``s`` is the global change; here it is done to updates.
    ``s`` and the zero are about the middle of the alphabet, 1/2 for masks. (Positions are positive:
    against a rule that selects, rankings stay.)

    Args:
        search: Of lambda: ``exact``, the supremum within a relative 1e-3; on alphabets other than
            floats the most damage on a grid. ``published``: from the upper bound of the paper's
            theorem halved until all are selected or it is below 1e-5, whatever the updates' size.
        bound: Longest ``lambda * s`` of ``exact``, in root mean square lengths of messages read.
        b: Factor by which it goes beyond the known values.

    References:
        Fang, Cao, Jia and Gong, "Local Model Poisoning Attacks to Byzantine-Robust Federated
        Learning", USENIX Security 2020, https://arxiv.org/abs/1911.11815, Theorem 1 and the
        sections on attacking Krum, trimmed mean and median; called STAT-OPT in Shejwalkar et al.,
        "Back to the Drawing Board", IEEE S&P 2022, https://arxiv.org/abs/2108.10241.
    """

    choices: ClassVar[Choices] = {"b": (1.5, 4.0, 10.0)}

    search: Literal["exact", "published"] = "exact"
    bound: float = 1e5
    b: float = 2.0

    def __post_init__(self) -> None:
        require("StatOpt.bound", self.bound, self.bound > 0, "> 0")
        require("StatOpt.b", self.b, self.b > 1, "> 1")

    def needs(self) -> Knowledge:
        return Knowledge(self.knows, defense=True)

    def rows(self, view: AttackView, honest: Tensor) -> Tensor:
        mean = honest.mean(dim=0)
        zero = mirrored(view, mean, 0.0)
        sign = torch.sign(mean - zero)
        trials = Trials(view, honest, zero, -sign, sender(view, self.via), knows=self.knows)
        if not trials.selects:
            return zero + self._beyond(view, honest - zero, mean - zero, sign)
        search = self._strength(trials)
        view.notes.update({"lambda": search.gamma} | search.notes)
        view.trace.extend(search.trace)
        return zero - search.gamma * sign

    def _strength(self, trials: Trials) -> Search:
        if self.search == "exact" or not trials.dense:
            return trials.exact(self.bound)
        accepted = Traced(trials.accepted)
        strength = largest_lambda(trials)
        while not (good := accepted(strength)) and strength >= SMALLEST:
            strength /= 2
        return Search(strength, "published", "converged" if good else "never", accepted.trace)

    def _beyond(self, view: AttackView, honest: Tensor, mean: Tensor, sign: Tensor) -> Tensor:
        if self.knows == "all":
            low, high = honest.amin(dim=0), honest.amax(dim=0)
            below = torch.where(low > 0, low / self.b, low * self.b)
            above = torch.where(high > 0, high * self.b, high / self.b)
        else:
            std = deviation(honest, mean) if len(honest) > 1 else mean.abs()
            low = mean - 3 * std
            below = mean - 4 * std
            high = mean + 3 * std
            above = mean + 4 * std
        edge = torch.where(sign > 0, low, torch.where(sign < 0, high, mean))
        end = torch.where(sign > 0, below, torch.where(sign < 0, above, mean))
        key = view.key.fold("stat-opt")
        draws = key.uniform(len(view.own), len(mean), device=mean.device)
        return edge.lerp(end, draws)


def largest_lambda(trials: Trials) -> float:
    """Return the upper bound of lambda in Theorem 1, for Krum that is prepared for all ``m``.

    ``sqrt(min_i sum_l |x_l - x_i|^2 / ((n - 2 m - 1) d)) + max_i |x_i| / sqrt(d)``, the sum over
    the ``n - m - 2`` benign rows closest to ``i``, and ``|x_i|`` the distance to what was received.
    Where ``n <= 2 m + 1`` there is no theorem, and 1 stands in for ``n - 2 m - 1``.
    """
    squares = trials.squares
    d = len(trials.base)
    nearest = squares.among.sort(dim=1).values[:, 1 : max(trials.n - trials.m - 1, 2)]
    spread = float(nearest.sum(dim=1).min()) / (max(trials.n - 2 * trials.m - 1, 1) * d)
    return math.sqrt(spread) + math.sqrt(float(squares.norms.max()) / d)
