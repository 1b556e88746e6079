"""Skellam mechanism: sums under Skellam noise, a share of it from every client."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

import torch
from torch import Tensor

from fedbench.api import DpEvent, Release
from fedbench.core.errors import require
from fedbench.core.rng import Key
from fedbench.payload import Residues
from fedbench.privacy.events import SkellamShare
from fedbench.protocols.draws import skellam
from fedbench.protocols.secure_sums import SummedResidues


@dataclass(frozen=True, kw_only=True)
class Skellam(SummedResidues):
    """Round ``s x`` at random, add ``Poisson(v/2) - Poisson(v/2)``, send it modulo ``2**bits``.

    The sum of ``n`` clients is ``s sum x`` plus Skellam noise of variance ``n v = (s z clip)**2``
    and rounding errors; the server divides it by ``s``. Rounding is unbiased, and is repeated while
    the result is longer than `rounded_norm`, which costs a bias unless ``beta = 0``. As in the
    paper's code, ``s`` makes the modulus ``2 sigmas`` standard deviations of a coordinate of that
    sum, for rotated updates that are Gaussian and all alike::

        2**bits = 2 sigmas sqrt(s**2 n**2 clip**2 / d + n / 4 + s**2 z**2 clip**2)

    so a sum that wraps is rare but possible. Privacy does not depend on it: wrapping is no secret.
    Not here, but in the paper: a rotation of each round, padding, and clients that drop out after
    they added noise.

    Args:
        z: Standard deviation of the noise on a coordinate of the sum of ``n`` updates, in units of
            ``clip``; 0: none.
        bits: Bits of a residue, up to 24.
        beta: Largest share of roundings that may be refused and repeated; 0: none is.

    References:
        Agarwal, Kairouz, Liu, "The Skellam Mechanism for Differentially Private Federated
        Learning", NeurIPS 2021, https://arxiv.org/abs/2110.04995, Algorithm 1; conditional rounding
        and scale are those of Kairouz, Liu, Steinke, "The Distributed Discrete Gaussian Mechanism
        for Federated Learning with Secure Aggregation", ICML 2021,
        https://arxiv.org/abs/2102.06387, Algorithm 1.
    """

    z: float = 0.3
    bits: int = 12
    beta: float = math.exp(-0.5)

    def __post_init__(self) -> None:
        super().__post_init__()
        require("Skellam.z", self.z, 0 <= self.z <= 1e38, "in [0, 1e38]")
        require("Skellam.bits", self.bits, 2 <= self.bits <= 24, "in [2, 24]")
        require("Skellam.beta", self.beta, 0 <= self.beta < 1, "in [0, 1)")
        least = math.log2(self.sigmas**2 * self.clients) / 2
        rule = f"> {least:.3g}, for so many clients and sigmas"
        require("Skellam.bits", self.bits, self.bits > least, rule)

    def scale(self, d: int) -> float:
        """Scale ``s`` of the updates before rounding."""
        n = self.clients
        room = 4**self.bits / (4 * self.sigmas**2) - self.clients / 4
        return math.sqrt(room / (n**2 / d + self.z**2)) / self.clip

    def variance(self, d: int) -> float:
        """Variance ``v`` of one client's noise on a coordinate, in integers."""
        return (self.scale(d) * self.z * self.clip) ** 2 / self.clients

    def unit(self, d: int) -> float:
        return 0.5 / self.scale(d)

    def residues(self, x: Tensor, keys: Sequence[Key]) -> Residues:
        """Round and add noise, each client from its own key, the noise on the CPU."""
        d = x.shape[1]
        scale = self.scale(d)
        longest = rounded_norm(d, scale * self.clip, self.beta)
        integers = rounded(scale * x, longest, keys)
        for row, key in zip(integers, keys, strict=True):
            noise = skellam(key.fold("privacy", "noise").numpy(), self.variance(d) / 2, d)
            row += torch.from_numpy(noise).to(row)
        wrapped = integers.bitwise_and_(2**self.bits - 1).to(torch.int32)  # modulo a power of two
        return Residues(wrapped, 2**self.bits, 0)

    def event(self, release: Release) -> DpEvent | None:
        """Privacy event: a share of the noise on a rounded update; None without noise."""
        if self.z == 0:
            return None
        norm = rounded_norm(release.d, self.scale(release.d) * self.clip, self.beta)
        return SkellamShare(release.d, norm, self.variance(release.d))


def rounded_norm(d: int, norm: float, beta: float) -> float:
    """Largest L2 norm after rounding of a vector ``(d,)`` whose norm is ``norm``.

    ``min{D + sqrt d, sqrt(D**2 + d/4 + sqrt(2 ln(1/beta)) (D + sqrt(d)/2))}``: the first holds for
    every rounding, the second for all but a share ``beta`` of them.

    References:
        Kairouz, Liu, Steinke, ICML 2021, https://arxiv.org/abs/2102.06387, Algorithm 1.
    """
    root = math.sqrt(d)
    if beta == 0:
        return norm + root
    likely = norm**2 + d / 4 + math.sqrt(-2 * math.log(beta)) * (norm + root / 2)
    return min(norm + root, math.sqrt(likely))


def rounded(x: Tensor, most: float, keys: Sequence[Key]) -> Tensor:
    """Round ``x (n, d)`` to int64 without bias, until no row is longer than ``most``.

    Probabilities of rounding up are multiples of 2**-24, rounded up.
    """
    out = torch.empty(x.shape, dtype=torch.int64, device=x.device)
    for row, exact, key in zip(out, x, keys, strict=True):
        low = exact.floor()
        for attempt in count():
            coins = key.fold("privacy", "round", attempt).uniform(len(exact), device=x.device)
            integers = low + (coins < exact - low)
            if not bool(integers.to(torch.float64).square().sum() > most**2):
                break
        row.copy_(integers)
    return out
