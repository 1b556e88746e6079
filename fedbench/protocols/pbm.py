"""Poisson binomial mechanism: sums of coins whose chance depends on the update."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedbench.api import DpEvent, Release
from fedbench.core.errors import require
from fedbench.core.rng import Key
from fedbench.payload import Residues
from fedbench.payload.residues import LARGEST
from fedbench.privacy.events import BinomialCounts
from fedbench.privacy.poisson_binomial import LEAST
from fedbench.protocols.draws import binomial
from fedbench.protocols.secure_sums import SummedResidues


@dataclass(frozen=True, kw_only=True)
class PBM(SummedResidues):
    """Clients send the heads of ``m`` coins of chance ``1/2 + theta x_i / C`` a coordinate.

    The server adds up the counts of ``n`` clients, modulo ``n m + 1``, which no honest sum reaches,
    and estimates the sum of the ``x`` by ``C / (m theta) (S - n m / 2)``. There is no other noise,
    and no bias but for coordinates beyond ``C = sigmas clip / sqrt(d)``, which are clipped to it.

    The paper bounds each of ``D > d`` coordinates by Kashin's representation; here a shared
    rotation does it without further coordinates, and what is beyond ``C`` is clipped: of a Gaussian
    coordinate 1 in 16,000 at 4 sigmas. So the L2 norm, which the accountant counts with, stays
    bounded too.

    Args:
        m: Number of coins for a coordinate.
        theta: How far a coin can be from fair, in [0.001, 1/2); the paper's is at most 1/4.

    References:
        Chen, Ozgur, Kairouz, "The Poisson Binomial Mechanism for Unbiased Federated Learning with
        Secure Aggregation", ICML 2022, https://arxiv.org/abs/2207.09916, the scalar mechanism and
        its use for L2 mean estimation.
    """

    m: int = 6
    theta: float = 0.02

    def __post_init__(self) -> None:
        super().__post_init__()
        require("PBM.m", self.m, self.m >= 1, ">= 1")
        require("PBM.theta", self.theta, LEAST <= self.theta < 0.5, f"in [{LEAST:g}, 1/2)")
        fits = self.clients * self.m < LARGEST
        require("PBM.m", self.m, fits, f"< {LARGEST // self.clients}, for so many clients")

    def bound(self, d: int) -> float:
        """Largest magnitude ``C`` of a coordinate."""
        return self.sigmas * self.clip / math.sqrt(d)

    def unit(self, d: int) -> float:
        """``C / (2 m theta)``, since values count halves of a head."""
        return self.bound(d) / (2 * self.m * self.theta)

    def residues(self, x: Tensor, keys: Sequence[Key]) -> Residues:
        bound = self.bound(x.shape[1])
        chances = 0.5 + self.theta * (x.clamp(-bound, bound) / bound)
        counts = torch.zeros(x.shape, dtype=torch.int32, device=x.device)
        for row, key, chance in zip(counts, keys, chances.cpu().numpy(), strict=True):
            draws = key.fold("privacy", "coins").numpy()
            row.copy_(torch.from_numpy(binomial(draws, self.m, chance)))
        return Residues(counts, self.clients * self.m + 1, self.m)

    def event(self, release: Release) -> DpEvent:
        norm = self.theta * self.clip / self.bound(release.d)
        return BinomialCounts(release.d, self.m, self.theta, norm)
