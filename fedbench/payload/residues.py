"""Whole numbers modulo M, and the masked packets in which a secure aggregation adds them up."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from fedbench.core.errors import IllegalPayloadError
from fedbench.core.rng import Key
from fedbench.payload.base import Payload, Spec, require_form
from fedbench.payload.bits import BinaryMasks, SignBits, bits_of, has_bits_alone
from fedbench.payload.packets import BitString, Packet, code_residues, decode_residues

MAX_MODULUS = 2**24  # modulus for which float32 still holds all `values`


@dataclass(frozen=True, eq=False)
class Residues(Payload):
    """``x (n, d)`` int32 in ``[0, M)``, of which a server should learn no more than the sum mod M.

    On the wire ``log2 M`` bits of each as `code_residues` codes them, and no header. No code is
    shorter: behind a mask they are uniform. What agreeing on the masks costs is not counted.

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
        if not 2 <= self.modulus <= MAX_MODULUS or not 0 <= self.coins < self.modulus:
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

    def parts(self) -> list[BitString]:
        return [code_residues(self.x[0].numpy(), self.modulus)]

    @classmethod
    def decode_row(cls, packet: Packet, spec: Spec) -> Self:
        (d,) = spec["x"]
        modulus = spec["modulus"]
        x = decode_residues(packet, d, modulus)
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


# Alphabets of which a server may need no more than a sum of small whole numbers.
SUMMED = (BinaryMasks, SignBits, Residues)


def summands(payload: Payload, n: int) -> Residues:
    """Return messages of a round of ``n`` as the whole numbers of which the server needs the sum.

    A bit of a mask or a sign is a coin, 0 or 1 modulo ``n + 1``, which no sum of ``n`` reaches.
    `Residues` are such numbers already, with a modulus of their own. `IllegalPayloadError` for
    floats, and for symbols that each client scales or draws by itself: they have no such sum.
    """
    if isinstance(payload, Residues):
        return payload
    if not has_bits_alone(payload):
        floats = " with floats beside" if isinstance(payload, BinaryMasks) else ""
        raise IllegalPayloadError(
            "messages in a secure sum must be masks, signs or residues alone, "
            f"got {type(payload).__name__}{floats}; use --sees messages"
        )
    return Residues(bits_of(payload).to(torch.int32), max(n, 1) + 1, 1)


def masked_packets(numbers: Residues, key: Key) -> list[Packet]:
    """Return a packet of each row plus a mask; the masks cancel in the sum.

    All masks but the last are drawn, uniform modulo M, and the last is minus their sum: the law of
    the pairwise masks of the paper, at ``n`` draws instead of ``n (n - 1) / 2``.

    References:
        Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning",
        CCS 2017, https://doi.org/10.1145/3133956.3133982, section 4.
    """
    n, d = numbers.x.shape
    modulus = numbers.modulus
    masks_so_far = torch.zeros(d, dtype=torch.int64)
    packets = []
    for i, row in enumerate(numbers.x.cpu()):
        mask = -masks_so_far if i == n - 1 else key.fold(i).integers(modulus, d)
        masks_so_far += mask
        x = (row + mask).remainder_(modulus).to(torch.int32)
        packets += dataclasses.replace(numbers, x=x[None]).encode()
    return packets


def sum_of_packets(packets: Sequence[Packet], spec: Spec) -> Tensor:
    """Return the sum mod M ``(d,)`` int64 of residues of this form: all that a server computes.

    >>> secret = Residues(torch.tensor([[1, 0], [1, 1], [1, 0]], dtype=torch.int32), 4, 1)
    >>> sum_of_packets(masked_packets(secret, Key(0)), secret.spec).tolist()
    [3, 1]
    """
    (d,) = spec["x"]
    added = torch.zeros(d, dtype=torch.int64)
    for packet in packets:
        added += Residues.decode_row(packet, spec).x[0]
    return added.remainder_(spec["modulus"])
