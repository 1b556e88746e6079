"""FedAvg through secure aggregation: the server needs only a sum of integers."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedbench.api import Memory, Shared
from fedbench.core.errors import require
from fedbench.core.hadamard import rotate, unrotate
from fedbench.core.rng import Key
from fedbench.core.trees import Tree
from fedbench.payload import Payload, Residues
from fedbench.payload.residues import total
from fedbench.protocols.fedavg import DenseWeights


@dataclass(frozen=True, kw_only=True)
class SummedResidues(DenseWeights):
    """Clients clip their update, spread it over all coordinates, and send residues modulo M.

    ``x = R u min(1, clip / |u|)``, where R is a rotation that all clients share (`flattened`); an
    update that is not finite is clipped to 0, because no residue says NaN. The server turns the sum
    of the residues mod M into an estimate of the sum of the ``x``, rotates it back and adds the
    ``n``-th part to the weights: every client counts the same. A rule that is not the mean sees the
    rows, and its result is taken for the ``n``-th part of such a sum.

    Args:
        clip: Largest L2 norm of an update.
        clients: Expected number ``n`` of clients in a round, for which modulus and noise are set:
            the sum of more may wrap, that of fewer has less noise than was asked for.
        sigmas: How many root mean squares of a rotated update each coordinate has room for.
    """

    sends = Residues
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
    def residues(self, x: Tensor, keys: Sequence[Key]) -> Residues:
        """Encode ``x (n, d)`` float64 of norm ``clip`` at most, with noise."""

    @abstractmethod
    def unit(self, d: int) -> float:
        """Size of 1 of `Residues.values` in a coordinate of ``x``."""

    def message(
        self, shared: Shared, updates: Tensor, keys: Sequence[Key], memory: Sequence[Memory]
    ) -> tuple[Payload, Sequence[Memory]]:
        # clipped after the rotation, whose rounding errors are then clipped as well
        x = clipped(flattened(updates, shared.key).to(torch.float64), self.clip)
        return self.residues(x, keys), memory

    def server_step(
        self, shared: Shared, state: Tensor, aggregate: Tensor, n: int, key: Key
    ) -> Tensor:
        """``w + R^-1 (sum mod M) / n``, ``aggregate`` being the mean of ``n`` rows."""
        form = self.residues(state.new_zeros(0, len(state)), [])
        mean = total(aggregate, n, form.modulus, form.coins) / n
        return state + self._restored(shared, mean[None]).to(state)[0]

    def local_model(self, shared: Shared, broadcast: Payload, sent: Payload) -> Tree | None:
        """The broadcast plus what a sum of this message alone would add, noise included."""
        update = self._restored(shared, sent.values().to(torch.float64))
        return shared.layout.unflatten((broadcast.values() + update.to(torch.float32))[0])

    def _restored(self, shared: Shared, values: Tensor) -> Tensor:
        return unflattened(values * self.unit(values.shape[1]), shared.key)


def clipped(x: Tensor, clip: float) -> Tensor:
    """``x min(1, clip / |x|)`` for rows ``(n, d)``; 0 where a row is not finite."""
    norms = torch.linalg.vector_norm(x, dim=1, keepdim=True)
    x = x * (clip / norms).clamp_max(1.0)  # infinity for norm 0, clamped
    return torch.where(torch.isfinite(norms), x, 0.0)


def flattened(x: Tensor, key: Key) -> Tensor:
    """``R x`` for rows ``(n, d)``: no coordinate keeps much of the norm to itself.

    With ``p`` the largest power of two up to ``d``, the first ``p`` coordinates are rotated, then
    the last ``p`` of the result: every coordinate is mixed with at least ``p - 1`` others and
    nothing is padded, where the papers pad to a power of two. Their server draws a rotation for
    every round, here the seed of the run names one. Privacy rests on neither, being proved for any
    rotation; wrapping and clipping of coordinates do.
    """
    for part, seeds in zip(_halves(x.shape[1]), _seeds(x, key), strict=True):
        x = x.clone()
        x[:, part] = rotate(x[:, part], seeds, (part.stop - part.start,))
    return x


def unflattened(y: Tensor, key: Key) -> Tensor:
    """``R^-1 y`` for rows ``(n, d)``, the inverse of `flattened`."""
    for part, seeds in reversed(list(zip(_halves(y.shape[1]), _seeds(y, key), strict=True))):
        y = y.clone()
        y[:, part] = unrotate(y[:, part], seeds, (part.stop - part.start,))
    return y


def _halves(d: int) -> list[slice]:
    p = 1 << (d.bit_length() - 1)
    return [slice(0, p), slice(d - p, d)]


def _seeds(x: Tensor, key: Key) -> list[Tensor]:
    seeds = [key.fold("flatten", i).tensor(x.device) for i in range(2)]
    return [seed.expand(len(x), 1) for seed in seeds]
