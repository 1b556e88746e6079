"""Whole numbers modulo M: what a secure aggregation adds up."""

import dataclasses
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from fedbench.core.errors import IllegalPayloadError
from fedbench.payload.base import Payload, Spec
from fedbench.payload.packets import Packet, index_width, pack, split, unpack

LARGEST = 2**24  # of a modulus: float32 then holds every one of the `values`


@dataclass(frozen=True, eq=False)
class Residues(Payload):
    """``x (n, d)`` int32 in ``[0, M)``, of which a server should learn no more than the sum mod M.

    On the wire ``ceil(log2 M)`` bits of each, and no header: an element of the field in which the
    masks of secure aggregation cancel. Masked elements are uniform, so no code is shorter. What
    agreeing on the masks costs is not counted, and the masks themselves are not played: a server
    whose rule needs more than the sum reads the rows.

    `values` are whole numbers, ``2 x - c`` taken modulo ``2 M`` into ``[-M, M)``: 0 is the middle
    of what an honest client sends, and a public factor makes updates of them. They count halves, so
    that the middle of an odd number of coins is whole; sums of them are exact, and say the sum of
    the residues mod M (`total`). A field reaches further than honest clients go: an adversary
    has all of it, in both directions.

    Args:
        x: The residues.
        modulus: ``M``, in [2, 2**24].
        coins: ``c``: each residue counts the heads among so many; 0: any whole number, wrapped.
    """

    x: Tensor
    modulus: int
    coins: int

    def check(self) -> None:
        """Int32 rows of residues."""
        if self.x.ndim != 2 or self.x.dtype != torch.int32:
            raise IllegalPayloadError(
                f"Residues.x must be (n, d) int32, got {tuple(self.x.shape)} {self.x.dtype}"
            )
        if not 2 <= self.modulus <= LARGEST or not 0 <= self.coins < self.modulus:
            raise IllegalPayloadError(
                "Residues must have a modulus in [2, 2**24] and fewer coins than that, "
                f"got {self.modulus} and {self.coins}"
            )
        if bool(((self.x < 0) | (self.x >= self.modulus)).any()):
            raise IllegalPayloadError(f"Residues.x must be in [0, {self.modulus})")

    @property
    def bounded(self) -> bool:
        """True: of magnitude M."""
        return True

    @property
    def aligned(self) -> bool:
        """False: vectors are rotated before they become residues, and the factor is missing."""
        return False

    def values(self) -> Tensor:
        """``(n, d)`` int32 in ``[-M, M)``."""
        return wrapped(2 * self.x - self.coins, self.modulus)

    def nearest(self, values: Tensor) -> Self:
        """The closest residue, never by going around; halfway it is the even one, and NaN is 0."""
        low = -((self.modulus - self.coins) // 2)
        lifted = (values.to(torch.float64).nan_to_num(0.0) + self.coins) / 2
        lifted = lifted.round_().clamp_(low, low + self.modulus - 1)
        x = lifted.remainder_(self.modulus).to(torch.int32)
        return dataclasses.replace(self, x=x)

    def in_range(self) -> Tensor:
        """No client has more heads than coins. Wrapped noise may be anything."""
        return (self.x <= (self.coins or self.modulus)).all(dim=1)

    def encode(self) -> list[Packet]:
        """The residues, each with its highest bit first."""
        width = index_width(self.modulus)
        packed = [pack(row, width) for row in self.x.cpu().numpy()]
        return [Packet(data.tobytes(), bits) for data, bits in packed]

    @classmethod
    def decode_row(cls, packet: Packet, spec: Spec) -> Self:
        """Rejects a wrong length, padding that is not zero, and what is no residue."""
        (d,), modulus = spec["x"], spec["modulus"]
        width = index_width(modulus)
        (data,) = split(packet, [d * width])
        x = unpack(data, d, width)
        if bool(np.any(x >= modulus)):
            raise IllegalPayloadError(f"residues must be below {modulus}, got {x.max()}")
        return cls(torch.from_numpy(x)[None], modulus, spec["coins"])


def wrapped(values: Tensor, modulus: int) -> Tensor:
    """``values`` modulo ``2 M`` in ``[-M, M)``, any shape.

    >>> wrapped(torch.tensor([-6, -5, 0, 4, 5]), 5).tolist()
    [4, -5, 0, 4, -5]
    """
    lifted = values + modulus
    if not values.is_floating_point() and modulus & (modulus - 1) == 0:  # bits are faster
        return lifted.bitwise_and_(2 * modulus - 1).sub_(modulus)
    return lifted.remainder_(2 * modulus).sub_(modulus)


def total(mean: Tensor, n: int, modulus: int, coins: int) -> Tensor:
    """``(d,)`` float64: the `values` of the sum mod M, from the mean ``(d,)`` of ``n`` rows'.

    Exact if the mean is; that of a robust rule may be no sum of residues, and is rounded to one.
    """
    doubled = (n * (mean.to(torch.float64) + coins) / 2).round_() * 2
    return wrapped(doubled - n * coins, modulus)
