"""Masks of one entropy-coded bit per weight, and floats for the other parameters."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from fedbench.payload.base import Payload, Spec, require_form
from fedbench.payload.fields import cut, floats_of, number_bytes
from fedbench.payload.packets import Packet, Part, binary_entropy, code_bits, decode_bits


@dataclass(frozen=True, eq=False)
class BinaryMasks(Payload):
    """``mask (n, d)`` bool, and ``rest (n, p)`` float32 of parameters that have no mask.

    True stands for 1, False for 0, or for -1 if ``signed``. On the wire ``32 p`` bits of floats,
    then the mask as `code_bits` codes it: about ``d H2(share of ones)`` bits.

    Args:
        mask: Bits of the weights.
        rest: Biases and parameters of normalisation; often ``p = 0``.
        signed: Is False -1?
    """

    mask: Tensor
    rest: Tensor
    signed: bool = False

    def check(self) -> None:
        require_form(self, mask=("d", torch.bool), rest=("p", torch.float32))

    @property
    def bounded(self) -> bool:
        """True where there is nothing but the mask."""
        return self.rest.shape[1] == 0

    def values(self) -> Tensor:
        """Return the bits, then the floats, ``(n, d + p)`` float32."""
        bits = self.mask.to(torch.float32)
        return torch.cat([bits * 2 - 1 if self.signed else bits, self.rest], dim=1)

    def nearest(self, values: Tensor) -> Self:
        """Return True above the middle, 1/2 or 0; the middle is as close to both and is False."""
        d = self.mask.shape[1]
        bits = values[:, :d] > (0.0 if self.signed else 0.5)
        return type(self)(bits, values[:, d:].to(torch.float32), self.signed)

    def origin(self) -> Tensor:
        """Return 1/2 for bits that are 0 or 1, and 0 for floats."""
        origin = super().origin()
        origin[: self.mask.shape[1]] = 0.0 if self.signed else 0.5
        return origin

    def opposite(self, values: Tensor, scale: float = 1.0) -> Tensor:
        """Mirror bits at 1/2: the opposite of a mask is its complement, not all zeros."""
        if self.signed:
            return -scale * values
        d = self.mask.shape[1]
        bits = 0.5 - scale * (values[:, :d] - 0.5)
        return torch.cat([bits, -scale * values[:, d:]], dim=1)

    def entropy(self) -> Tensor:
        """Return ``d H2(share of ones)`` bits, and 32 per float."""
        return mask_entropy(self.mask) + 32 * self.rest.shape[1]

    def parts(self) -> list[list[Part]]:
        return [number_bytes(self.rest), [code_bits(mask) for mask in self.mask.cpu().numpy()]]

    @classmethod
    def decode_row(cls, packet: Packet, spec: Spec) -> Self:
        """Return the row; a wrong length and what is no code of a mask are illegal."""
        (d,), (p,) = spec["mask"], spec["rest"]
        rest, data = cut(packet, 4 * p)
        return cls(torch.from_numpy(decode_bits(data, d))[None], floats_of(rest), spec["signed"])


def mask_entropy(mask: Tensor) -> Tensor:
    """Return ``d H2(share of ones)`` of each row ``(n, d)``, in bits, ``(n,)`` float64.

    References:
        Mestoukirdi et al., https://arxiv.org/abs/2309.10834, equation 13, with log base 2 (R2).
    """
    shares = mask.to(torch.float32).mean(dim=1, dtype=torch.float64)
    each = [mask.shape[1] * binary_entropy(share) for share in shares.tolist()]
    return torch.tensor(each, dtype=torch.float64)
