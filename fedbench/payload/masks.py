"""One bit a weight, entropy-coded, and floats for the parameters that are no weights."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from fedbench.payload.base import Payload, Spec, require_width
from fedbench.payload.fields import cut, float_bytes, floats_of
from fedbench.payload.packets import Packet, binary_entropy, code_bits, decode_bits, join


@dataclass(frozen=True, eq=False)
class BinaryMasks(Payload):
    """``mask (n, d)`` bool, and ``rest (n, p)`` float32 of parameters that have no mask.

    True stands for 1, False for 0, or for -1 if ``signed``. On the wire ``32 p`` bits of floats,
    then the mask as `code_bits` codes it: about ``d H2(share of ones)`` bits.

    Args:
        mask: The bits.
        rest: Biases and parameters of normalisation; often ``p = 0``.
        signed: Is False -1?
    """

    mask: Tensor
    rest: Tensor
    signed: bool = False

    def check(self) -> None:
        """A bool and a float for each coordinate."""
        require_width("BinaryMasks.mask", self.mask, self.mask.shape[1], torch.bool)
        require_width("BinaryMasks.rest", self.rest, self.rest.shape[1], torch.float32)

    @property
    def bounded(self) -> bool:
        """True where there is nothing but the mask."""
        return self.rest.shape[1] == 0

    def values(self) -> Tensor:
        """``(n, d + p)`` float32: the bits, then the floats."""
        bits = self.mask.to(torch.float32)
        return torch.cat([bits * 2 - 1 if self.signed else bits, self.rest], dim=1)

    def nearest(self, values: Tensor) -> Self:
        """Above the middle, 1/2 or 0, is True; the middle is as close to both and is False."""
        d = self.mask.shape[1]
        bits = values[:, :d] > (0.0 if self.signed else 0.5)
        return type(self)(bits, values[:, d:].to(torch.float32), self.signed)

    def origin(self) -> Tensor:
        """1/2 for bits that are 0 or 1, and 0 for floats."""
        d, width = self.mask.shape[1], self.mask.shape[1] + self.rest.shape[1]
        origin = torch.zeros(width, device=self.mask.device)
        origin[:d] = 0.0 if self.signed else 0.5
        return origin

    def opposite(self, values: Tensor, scale: float = 1.0) -> Tensor:
        """Bits mirror at 1/2: the opposite of a mask is its complement, not all zeros."""
        if self.signed:
            return -scale * values
        d = self.mask.shape[1]
        bits = 0.5 - scale * (values[:, :d] - 0.5)
        return torch.cat([bits, -scale * values[:, d:]], dim=1)

    def entropy(self) -> Tensor:
        """``d H2(share of ones)`` bits, and 32 a float."""
        return mask_entropy(self.mask) + 32 * self.rest.shape[1]

    def encode(self) -> list[Packet]:
        """Floats, then coded bits."""
        rows = zip(self.mask.cpu().numpy(), float_bytes(self.rest), strict=True)
        return [join([floats, code_bits(mask)]) for mask, floats in rows]

    @classmethod
    def decode_row(cls, packet: Packet, spec: Spec) -> Self:
        """Rejects a wrong length and whatever is no code of a mask."""
        (d,), (p,) = spec["mask"], spec["rest"]
        rest, data = cut(packet, 4 * p)
        bits = decode_bits(data, d)
        return cls(torch.from_numpy(bits)[None], floats_of(rest)[None], spec["signed"])


def mask_entropy(mask: Tensor) -> Tensor:
    """``(n,)`` float64 bits: ``d H2(share of ones)`` of each row ``(n, d)``.

    References:
        Mestoukirdi et al., https://arxiv.org/abs/2309.10834, equation 13, with log base 2 (R2).
    """
    shares = mask.to(torch.float32).mean(dim=1, dtype=torch.float64)
    each = [mask.shape[1] * binary_entropy(share) for share in shares.tolist()]
    return torch.tensor(each, dtype=torch.float64)
