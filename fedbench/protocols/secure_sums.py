"""FedAvg through secure aggregation: the server needs only a sum of integers."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import ive
from torch import Tensor

from fedbench.api import DpEvent, Keys, Memories, Messages, Release, Shared
from fedbench.core.blocks import rotate, unrotate
from fedbench.core.copies import copied_to
from fedbench.core.errors import require
from fedbench.core.rng import Key
from fedbench.core.trees import Tree
from fedbench.payload import Payload, Residues
from fedbench.payload.residues import MAX_MODULUS, total
from fedbench.privacy.events import BinomialCounts, SkellamShare
from fedbench.privacy.sums import LEAST
from fedbench.protocols.fedavg import DenseWeights

Numbers = npt.NDArray[np.integer[Any]]

_BLOCK = 1 << 15  # draws at once: they stay in cache
_GUIDE = 16  # leading bits of a draw, which decide most draws by table lookup
_COINS = 24  # more coins than this are drawn faster as one binomial


@dataclass(frozen=True, eq=False)
class Symmetric:
    """Symmetric distribution on the integers, drawn by inversion of 64 random bits.

    The last bit is the sign. The others are compared with the cumulative probabilities of the
    magnitudes, the largest first, where floats are exact; 16 bits in a table decide most draws.
    """

    limits: npt.NDArray[np.uint64]  # ``2**63 P(magnitude >= far, far - 1, ..., 0)``, ``(far + 1,)``
    guide: npt.NDArray[np.int32]  # ``(2**16,)`` magnitude for leading bits; -1: see more bits

    @classmethod
    def of(cls, chances: npt.NDArray[np.float64]) -> Symmetric:
        """Build the table from the probabilities of ``0, 1, 2, ...``, up to a common factor.

        Magnitudes that together have less than ``2**-63`` count as the largest one left.
        """
        folded = np.where(np.arange(len(chances)) > 0, 2.0, 1.0) * chances
        cumulative = np.cumsum(folded[::-1])
        limits = (cumulative / cumulative[-1] * 2.0**63).astype(np.uint64)
        limits = limits[limits > 0]
        begins = np.arange(2**_GUIDE, dtype=np.uint64) << np.uint64(63 - _GUIDE)
        ends = begins + np.uint64(2 ** (63 - _GUIDE) - 1)
        most, least = (_magnitudes(limits, bits) for bits in (begins, ends))
        return cls(limits, np.where(least == most, least, -1).astype(np.int32))

    def at(self, bits: npt.NDArray[np.uint64]) -> Numbers:
        """Map uint64 random bits to int32 draws."""
        magnitude_bits = bits >> np.uint64(1)
        magnitudes = self.guide[magnitude_bits >> np.uint64(63 - _GUIDE)]
        undecided = (magnitudes < 0).nonzero()[0]
        magnitudes[undecided] = _magnitudes(self.limits, magnitude_bits[undecided])
        signs = (bits & np.uint64(1)).astype(np.int32)
        signed: Numbers = (magnitudes ^ -signs) + signs  # in two's complement
        return signed

    def draw(self, draws: np.random.Generator, count: int) -> Numbers:
        """Draw ``(count,)`` int32 numbers."""
        out = np.empty(count, dtype=np.int32)
        for start in range(0, count, _BLOCK):
            part = out[start : start + _BLOCK]
            part[:] = self.at(draws.integers(0, 1 << 64, len(part), dtype=np.uint64))
        return out


def _magnitudes(limits: npt.NDArray[np.uint64], bits: npt.NDArray[np.uint64]) -> Numbers:
    return len(limits) - 1 - np.searchsorted(limits, bits, side="right")


@lru_cache(maxsize=8)
def _skellam(half: float) -> Symmetric:
    """Return the table of ``P(k) = exp(-2 half) I_k(2 half)``, as far as it can be drawn."""
    far = int(12 * (2 * half) ** 0.5) + 40
    chances = ive(np.arange(far + 1), 2 * half)
    return Symmetric.of(np.asarray(chances, dtype=np.float64))


def skellam(draws: np.random.Generator, half: float, count: int) -> Numbers:
    """Return ``(count,)`` differences of two Poisson numbers of mean ``half`` each (Skellam, 1946).

    Up to ``half = 1e6`` they come from a table: the probability of a tail is right to a relative
    1e-12 and an absolute ``2**-63``, which no accountant knows. Beyond, NumPy draws.
    """
    if half == 0:
        return np.zeros(count, dtype=np.int32)
    if half > 1e6:  # a table as long as that is slower
        return draws.poisson(half, count) - draws.poisson(half, count)
    return _skellam(half).draw(draws, count)


def binomial(draws: np.random.Generator, m: int, chances: npt.NDArray[np.float64]) -> Numbers:
    """Return ``(d,)`` heads among ``m`` coins of each chance, rounded to ``2**-32`` and below 1."""
    if m > _COINS:
        return draws.binomial(m, chances)
    out = np.zeros(len(chances), dtype=np.int32)
    for start in range(0, len(chances), _BLOCK):
        part = out[start : start + _BLOCK]
        limits = np.rint(chances[start : start + _BLOCK] * 2.0**32).astype(np.uint64)
        heads = np.minimum(limits, 2**32 - 1).astype(np.uint32)
        words = draws.integers(0, 1 << 64, -(-m * len(part) // 2), dtype=np.uint64)
        for coins in words.view(np.uint32)[: m * len(part)].reshape(m, len(part)):
            part += coins < heads
    return out


@dataclass(frozen=True, kw_only=True)
class SummedResidues(DenseWeights):
    """Clients clip their update, spread it over all coordinates, and send residues modulo M.

    ``x = R u min(1, clip / |u|)``, where R is a rotation that all clients share (`flattened`); an
    update that is not finite is clipped to 0, because no residue says NaN. The server turns the sum
    of the residues mod M into an estimate of the sum of the ``x``, rotates it back and adds the
    ``n``-th part to the weights. The result of another rule is taken for that part of such a sum.

    Args:
        clip: Largest L2 norm of an update.
        clients: Expected number ``n`` of clients in a round, for which modulus and noise are set:
            the sum of more may wrap, that of fewer has less noise than was asked for.
        sigmas: How many root mean squares of a rotated update each coordinate has room for.
    """

    sends = Residues
    adds = False  # the server adds what the residues stand for, not the rule's answer
    statistics = False
    weighted = False  # a sum counts all clients the same

    clip: float = 0.5
    clients: int = 10
    sigmas: float = 4.0

    def __post_init__(self) -> None:
        super().__post_init__()
        name = type(self).__name__
        require(f"{name}.clip", self.clip, 1e-38 <= self.clip <= 1e38, "in [1e-38, 1e38]")
        require(f"{name}.clients", self.clients, self.clients >= 1, ">= 1")
        require(f"{name}.sigmas", self.sigmas, 0.01 <= self.sigmas <= 1e6, "in [0.01, 1e6]")

    @abstractmethod
    def residues(self, x: Tensor, keys: Keys) -> Residues:
        """Encode ``x (n, d)`` float64 of norm ``clip`` at most, with noise."""

    @abstractmethod
    def unit(self, d: int) -> float:
        """Return the size of 1 of `Residues.values` in a coordinate of ``x``."""

    def message(self, shared: Shared, updates: Tensor, keys: Keys, memory: Memories) -> Messages:
        # clipped after the rotation, whose rounding errors are then clipped as well
        x = clipped(flattened(updates, shared.key).to(torch.float64), self.clip)
        return self.residues(x, keys), memory

    def move(self, shared: Shared, w: Tensor, aggregate: Tensor, n: int, key: Key) -> Tensor:
        """Return ``R^-1 (sum mod M) / n``, ``aggregate`` being the mean of ``n`` rows."""
        form = self.residues(w.new_zeros(0, len(w)), [])
        estimate = total(aggregate, n, form.modulus, form.coins) / n
        return self._restored(shared, estimate[None]).to(w)[0]

    def local_model(self, shared: Shared, broadcast: Payload, sent: Payload) -> Tree | None:
        """Return the broadcast plus what a sum of this message alone would add, noise included."""
        update = self._restored(shared, sent.values().to(torch.float64))
        return shared.layout.unflatten((broadcast.values() + update.to(torch.float32))[0])

    def _restored(self, shared: Shared, values: Tensor) -> Tensor:
        return unflattened(values * self.unit(values.shape[1]), shared.key)


def clipped(x: Tensor, clip: float) -> Tensor:
    """Return ``x min(1, clip / |x|)`` for rows ``(n, d)``; 0 where a row is not finite."""
    norms = torch.linalg.vector_norm(x, dim=1, keepdim=True)
    x = x * (clip / norms).clamp_max(1.0)  # infinity for norm 0, clamped
    return torch.where(torch.isfinite(norms), x, 0.0)


def flattened(x: Tensor, key: Key) -> Tensor:
    """Return ``R x`` for rows ``(n, d)``: no coordinate keeps much of the norm to itself.

    With ``p`` the largest power of two up to ``d``, the first ``p`` coordinates are rotated, then
    the last ``p`` of the result, where the papers pad to a power of two. Their server draws a
    rotation for every round, here the seed of the run names one: privacy is proved for any.
    """
    for part, seeds in _halves(x, key):
        x = x.clone()
        x[:, part] = rotate(x[:, part], seeds, (part.stop - part.start,))
    return x


def unflattened(y: Tensor, key: Key) -> Tensor:
    """Return ``R^-1 y`` for rows ``(n, d)``, the inverse of `flattened`."""
    for part, seeds in reversed(_halves(y, key)):
        y = y.clone()
        y[:, part] = unrotate(y[:, part], seeds, (part.stop - part.start,))
    return y


def _halves(x: Tensor, key: Key) -> list[tuple[slice, Tensor]]:
    """Return the two parts of a row that are rotated one after the other, with their seeds."""
    n, d = x.shape
    p = 1 << (d.bit_length() - 1)
    seeds = [key.fold("flatten", i).tensor(x.device).expand(n, 1) for i in range(2)]
    return [(slice(0, p), seeds[0]), (slice(d - p, d), seeds[1])]


@dataclass(frozen=True, kw_only=True)
class Skellam(SummedResidues):
    """Round ``s x`` at random, add ``Poisson(v/2) - Poisson(v/2)``, send it modulo ``2**bits``.

    The sum of ``n`` clients is ``s sum x`` plus Skellam noise of variance ``n v = (s z clip)**2``
    and rounding errors; the server divides it by ``s``. Rounding is unbiased, and is repeated while
    the result is longer than `rounded_norm`, which costs a bias unless ``beta = 0``. As in the
    paper's code, ``s`` makes the modulus ``2 sigmas`` standard deviations of a coordinate of that
    sum, for rotated updates that are Gaussian and all alike::

        2**bits = 2 sigmas sqrt(s**2 n**2 clip**2 / d + n / 4 + s**2 z**2 clip**2)

    so a sum that wraps is rare but possible; privacy does not depend on it. Not here, but in the
    paper: a rotation of each round, padding, and clients that drop out after they added noise.

    Args:
        z: Standard deviation of the noise on a coordinate of the sum of ``n`` updates, in units of
            ``clip``; 0: none.
        bits: Bits of a residue, up to 24.
        beta: Largest share of roundings that may be refused and repeated; 0: none is.

    References:
        Agarwal, Kairouz, Liu, "The Skellam Mechanism for Differentially Private Federated
        Learning", NeurIPS 2021, https://arxiv.org/abs/2110.04995, Algorithm 1; conditional rounding
        and scale: Kairouz, Liu, Steinke, "The Distributed Discrete Gaussian Mechanism for Federated
        Learning with Secure Aggregation", ICML 2021, https://arxiv.org/abs/2102.06387, Algorithm 1.
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
        requirement = f"> {least:.3g}, for so many clients and sigmas"
        require("Skellam.bits", self.bits, self.bits > least, requirement)

    def scale(self, d: int) -> float:
        """Return the scale ``s`` of the updates before rounding."""
        n = self.clients
        room = 4**self.bits / (4 * self.sigmas**2) - self.clients / 4
        return math.sqrt(room / (n**2 / d + self.z**2)) / self.clip

    def variance(self, d: int) -> float:
        """Return the variance ``v`` of one client's noise on a coordinate, in integers."""
        return (self.scale(d) * self.z * self.clip) ** 2 / self.clients

    def unit(self, d: int) -> float:
        return 0.5 / self.scale(d)

    def residues(self, x: Tensor, keys: Keys) -> Residues:
        """Round and add noise, each client from its own key, the noise on the CPU."""
        d = x.shape[1]
        scale = self.scale(d)
        longest = rounded_norm(d, scale * self.clip, self.beta)
        integers = rounded(scale * x, longest, keys)
        for row, key in zip(integers, keys, strict=True):
            noise = skellam(key.fold("privacy", "noise").numpy(), self.variance(d) / 2, d)
            row += copied_to(torch.from_numpy(noise), row.device).to(row)
        wrapped = integers.bitwise_and_(2**self.bits - 1).to(torch.int32)  # modulo a power of two
        return Residues(wrapped, 2**self.bits, 0)

    def event(self, release: Release) -> DpEvent | None:
        """Return the event of a share of the noise on a rounded update; None without noise."""
        if self.z == 0:
            return None
        norm = rounded_norm(release.d, self.scale(release.d) * self.clip, self.beta)
        return SkellamShare(release.d, norm, self.variance(release.d))


def rounded_norm(d: int, norm: float, beta: float) -> float:
    """Return the largest L2 norm after rounding of a vector ``(d,)`` whose norm is ``norm``.

    ``min{D + sqrt d, sqrt(D**2 + d/4 + sqrt(2 ln(1/beta)) (D + sqrt(d)/2))}``: the first holds for
    every rounding, the second for all but a share ``beta`` of them (Kairouz et al., see `Skellam`).
    """
    root = math.sqrt(d)
    if beta == 0:
        return norm + root
    likely = norm**2 + d / 4 + math.sqrt(-2 * math.log(beta)) * (norm + root / 2)
    return min(norm + root, math.sqrt(likely))


def rounded(x: Tensor, most: float, keys: Keys) -> Tensor:
    """Round ``x (n, d)`` to int64 without bias, until no row is longer than ``most``.

    All rows that are still too long are rounded again, then their lengths are read at once.
    """
    out = torch.empty(x.shape, dtype=torch.int64, device=x.device)
    left = list(range(len(x)))
    attempts = count()
    while left:
        attempt = next(attempts)
        squares = []
        for i in left:
            low = x[i].floor()
            coins = keys[i].fold("privacy", "round", attempt).uniform(len(low), device=x.device)
            integers = low + (coins < x[i] - low)
            squares.append(integers.to(torch.float64).square().sum())
            out[i] = integers
        long = (torch.stack(squares) > most**2).tolist()
        left = [i for i, again in zip(left, long, strict=True) if again]
    return out


@dataclass(frozen=True, kw_only=True)
class PBM(SummedResidues):
    """Clients send the heads of ``m`` coins of chance ``1/2 + theta x_i / C`` a coordinate.

    The server adds up the counts of ``n`` clients, modulo ``n m + 1``, which no honest sum reaches,
    and estimates the sum of the ``x`` by ``C / (m theta) (S - n m / 2)``. There is no other noise,
    and no bias but for coordinates beyond ``C = sigmas clip / sqrt(d)``, which are clipped to it.
    The paper bounds each of ``D > d`` coordinates by Kashin's representation; here a shared
    rotation does it without further coordinates.

    Args:
        m: Number of coins for a coordinate.
        theta: How far a coin can be from fair, in [0.001, 1/2); the paper's is at most 1/4.

    References:
        Chen, Ozgur, Kairouz, "The Poisson Binomial Mechanism for Unbiased Federated Learning with
        Secure Aggregation", ICML 2022, https://arxiv.org/abs/2207.09916.
    """

    m: int = 6
    theta: float = 0.02

    def __post_init__(self) -> None:
        super().__post_init__()
        require("PBM.m", self.m, self.m >= 1, ">= 1")
        require("PBM.theta", self.theta, LEAST <= self.theta < 0.5, f"in [{LEAST:g}, 1/2)")
        fits = self.clients * self.m < MAX_MODULUS
        require("PBM.m", self.m, fits, f"< {MAX_MODULUS // self.clients}, for so many clients")

    def bound(self, d: int) -> float:
        """Return the largest magnitude ``C`` of a coordinate."""
        return self.sigmas * self.clip / math.sqrt(d)

    def unit(self, d: int) -> float:
        """Return ``C / (2 m theta)``, since values count halves of a head."""
        return self.bound(d) / (2 * self.m * self.theta)

    def residues(self, x: Tensor, keys: Keys) -> Residues:
        bound = self.bound(x.shape[1])
        chances = 0.5 + self.theta * (x.clamp(-bound, bound) / bound)
        counts = torch.zeros(x.shape, dtype=torch.int32, device=x.device)
        for row, key, chance in zip(counts, keys, chances.cpu().numpy(), strict=True):
            draws = key.fold("privacy", "coins").numpy()
            row.copy_(torch.from_numpy(binomial(draws, self.m, chance)), non_blocking=True)
        return Residues(counts, self.clients * self.m + 1, self.m)

    def event(self, release: Release) -> DpEvent:
        norm = self.theta * self.clip / self.bound(release.d)
        return BinomialCounts(release.d, self.m, self.theta, norm)
