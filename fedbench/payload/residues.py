"""Whole numbers modulo M, as a secure aggregation adds them up, and the cost of a masked sum."""

import dataclasses
from dataclasses import dataclass
from functools import lru_cache
from typing import Self

import numpy as np
import torch
from torch import Tensor

from fedbench.core.errors import IllegalPayloadError
from fedbench.core.rng import Key
from fedbench.payload.base import Payload, Spec, require_form
from fedbench.payload.bits import BinaryMasks, SignBits
from fedbench.payload.packets import Packet, Part, code_residues, index_width, pack, split, unpack

LARGEST = 2**24  # modulus for which float32 still holds all `values`


@dataclass(frozen=True, eq=False)
class Residues(Payload):
    """``x (n, d)`` int32 in ``[0, M)``, of which a server should learn no more than the sum mod M.

    On the wire ``ceil(log2 M)`` bits of each, and no header. No code is shorter: masked elements
    are uniform. What agreeing on the masks costs is not counted; masks are not played.

    `values` are whole numbers, ``2 x - c`` taken modulo ``2 M`` into ``[-M, M)``: 0 is the middle
    of what an honest client sends. They count halves, so that the middle of an odd number of coins
    is whole; sums of them are exact, and say the sum of the residues mod M (`total`).
    """

    bounded = True
    aligned = False  # vectors are rotated before, and the factor is missing

    x: Tensor
    modulus: int  # ``M``, in [2, 2**24]
    coins: int  # ``c``: a residue counts the heads among so many; 0: any whole number, wrapped

    def check(self) -> None:
        require_form(self, x=("d", torch.int32))
        if not 2 <= self.modulus <= LARGEST or not 0 <= self.coins < self.modulus:
            raise IllegalPayloadError(
                "Residues must have a modulus in [2, 2**24] and fewer coins than that, "
                f"got {self.modulus} and {self.coins}"
            )
        if bool(((self.x < 0) | (self.x >= self.modulus)).any()):
            raise IllegalPayloadError(f"Residues.x must be in [0, {self.modulus})")

    def values(self) -> Tensor:
        """Return the whole numbers ``(n, d)`` int32 in ``[-M, M)``."""
        return wrapped(2 * self.x - self.coins, self.modulus)

    def nearest(self, values: Tensor) -> Self:
        """Return the closest residue, never by going around; halfway the even one; NaN is 0."""
        low = -((self.modulus - self.coins) // 2)
        lifted = (values.to(torch.float64).nan_to_num(0.0) + self.coins) / 2
        lifted = lifted.round_().clamp_(low, low + self.modulus - 1)
        x = lifted.remainder_(self.modulus).to(torch.int32)
        return dataclasses.replace(self, x=x)

    def in_range(self) -> Tensor:
        """Return rows without more heads than coins. Wrapped noise may be anything."""
        return (self.x <= (self.coins or self.modulus)).all(dim=1)

    def parts(self) -> list[list[Part]]:
        return [[pack(row, index_width(self.modulus)) for row in self.x.cpu().numpy()]]

    @classmethod
    def decode_row(cls, packet: Packet, spec: Spec) -> Self:
        (d,), modulus = spec["x"], spec["modulus"]
        width = index_width(modulus)
        (data,) = split(packet, [d * width])
        x = unpack(data, d, width)
        if bool(np.any(x >= modulus)):
            raise IllegalPayloadError(f"residues must be below {modulus}, got {x.max()}")
        return cls(torch.from_numpy(x)[None], modulus, spec["coins"])


def wrapped(values: Tensor, modulus: int) -> Tensor:
    """Return ``values``, of any shape, modulo ``2 M`` in ``[-M, M)``.

    >>> wrapped(torch.tensor([-6, -5, 0, 4, 5]), 5).tolist()
    [4, -5, 0, 4, -5]
    """
    lifted = values + modulus
    if not values.is_floating_point() and modulus & (modulus - 1) == 0:  # bits are faster
        return lifted.bitwise_and_(2 * modulus - 1).sub_(modulus)
    return lifted.remainder_(2 * modulus).sub_(modulus)


def total(mean: Tensor, n: int, modulus: int, coins: int) -> Tensor:
    """Return the `values` ``(d,)`` float64 of the sum mod M, from the mean ``(d,)`` of ``n`` rows.

    Exact if the mean is; that of a robust rule may be no sum of residues, and is rounded to one.
    """
    doubled = (n * (mean.to(torch.float64) + coins) / 2).round_() * 2
    return wrapped(doubled - n * coins, modulus)


def summed_bits(payload: Payload) -> int | None:
    """Return the bits of each of the ``n`` messages, if the server gets no more than their sum.

    A sum of ``n`` bits is a whole number up to ``n``, so its masks are uniform modulo ``n + 1`` and
    cost ``log2(n + 1)`` bits a coordinate, however sparse the bits are: masked numbers cannot be
    compressed. `Residues` have a modulus of their own. For other alphabets, floats for instance,
    the cost is not known: None. Agreeing on the masks is not counted.

    References:
        Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning",
        CCS 2017, https://doi.org/10.1145/3133956.3133982, section 4.
    """
    if isinstance(payload, Residues):
        return payload.take([0]).encode()[0].bits if len(payload) else 0
    if isinstance(payload, SignBits):
        return masked_bits(payload.positive.shape[1], len(payload) + 1)
    if isinstance(payload, BinaryMasks) and payload.rest.shape[1] == 0:
        return masked_bits(payload.mask.shape[1], len(payload) + 1)
    return None


@lru_cache(maxsize=64)
def masked_bits(count: int, modulus: int) -> int:
    """Return the bits of ``count`` masked residues, as they are really coded."""
    drawn = Key(0).fold("masked", count, modulus).bits(count).numpy().view(np.uint64)
    return code_residues((drawn % np.uint64(modulus)).astype(np.int32), modulus)[1]
