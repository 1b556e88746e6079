"""One bit per coordinate: signs, and masks over weights or noise that a seed regenerates."""

import dataclasses
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, Self

import torch
from torch import Tensor

from fedbench.core.blocks import spread
from fedbench.core.rng import Key
from fedbench.core.tiling import row_sums
from fedbench.payload import packets as wire
from fedbench.payload.base import Payload, Spec, require_form
from fedbench.payload.packed_rows import PackedBits
from fedbench.payload.packets import BitString, Packet

Noise = Literal["uniform", "gaussian", "bernoulli"]

MIN_NOISE = 1e-8  # no noise is closer to 0


def bits_of(messages: Payload) -> Tensor:
    """Return the bits ``(n, d)`` bool of signs or masks, whatever a bit stands for."""
    assert isinstance(messages, PackedBits)
    bits: Tensor = getattr(messages, messages.packed_field)
    return bits


def with_bits(messages: Any, bits: Tensor) -> Any:
    """Return signs or masks with these ``bits (d,)`` or ``(n, d)``, and all else unchanged."""
    field = messages.packed_field
    return dataclasses.replace(messages, **{field: bits.expand(len(messages), -1).clone()})


def numbers_of(bits: Tensor, signed: bool) -> Tensor:
    """Return 0 and 1, or if ``signed`` -1 and +1, float32, in the shape of the bool ``bits``.

    They are bytes before they are floats, which PyTorch converts faster than bool.
    """
    x = bits.view(torch.int8)
    return (x * 2 - 1 if signed else x).to(torch.float32)


def has_bits_alone(form: Payload) -> bool:
    """Return whether messages of this form are bits, and nothing else beside them."""
    return isinstance(form, BinaryMasks | SignBits) and form.bounded


@dataclass(frozen=True, eq=False)
class SignBits(PackedBits):
    """``positive (n, d)`` bool: True stands for +1, False for -1; on the wire d bits."""

    bounded = True
    packed_field = "positive"

    positive: Tensor

    def check(self) -> None:
        require_form(self, positive=("d", torch.bool))

    def values(self) -> Tensor:
        """Return -1 and +1, ``(n, d)`` float32."""
        return numbers_of(self.positive, signed=True)

    def nearest(self, values: Tensor) -> Self:
        """Return the signs; 0 is as close to both and becomes +1."""
        return type(self)(values >= 0)

    @classmethod
    def read_row(cls, packet: Packet, spec: Spec) -> Self:
        (d,) = spec["positive"]
        (data,) = wire.split(packet, [d])
        return cls(wire.packed_bits(data))


@dataclass(frozen=True, eq=False)
class ScaledSigns(PackedBits):
    """``positive (n, d)`` bool, ``scales (n, parts)`` and ``rest (n, p)`` float32.

    A coordinate is plus or minus the scale of its part. On the wire the scales, the floats, d bits.
    """

    packed_field = "positive"

    positive: Tensor  # False stands for minus the scale
    scales: Tensor  # at least 0 for an honest client; a forged one may be anything
    rest: Tensor  # floats that are always sent; often ``p = 0``
    sizes: tuple[int, ...]  # coordinates of each part, layers for instance

    def check(self) -> None:
        scales = (len(self.sizes), torch.float32)
        positive = (sum(self.sizes), torch.bool)
        require_form(self, positive=positive, scales=scales, rest=("p", torch.float32))

    def headers(self) -> dict[str, Tensor]:
        return {"scales": self.scales}

    def in_range(self) -> Tensor:
        """Return rows without a negative scale, which no mean of magnitudes is; 0 is positive."""
        silent = spread(self.scales, self.sizes) == 0
        return (self.scales >= 0).all(dim=1) & (self.positive | ~silent).all(dim=1)

    def values(self) -> Tensor:
        """Return scaled signs, then the floats, ``(n, d + p)`` float32."""
        signs = numbers_of(self.positive, signed=True)
        return torch.cat([signs.mul_(spread(self.scales, self.sizes)), self.rest], dim=1)

    def nearest(self, values: Tensor) -> Self:
        """Return the signs; 0 is as close to both and becomes positive, as does all at scale 0."""
        d = self.positive.shape[1]
        still = spread(self.scales, self.sizes) == 0
        positive = (values[:, :d] >= 0) | still
        return dataclasses.replace(self, positive=positive, rest=values[:, d:].to(torch.float32))

    def parts_around(self, packed: list[BitString]) -> list[BitString]:
        return [wire.number_bytes(self.scales), wire.number_bytes(self.rest), *packed]

    @classmethod
    def read_row(cls, packet: Packet, spec: Spec) -> Self:
        (d,) = spec["positive"]
        (b,) = spec["scales"]
        (p,) = spec["rest"]
        scales, rest, data = wire.split(packet, [32 * b, 32 * p, d])
        positive = wire.packed_bits(data)
        return cls(positive, wire.floats_of(scales), wire.floats_of(rest), spec["sizes"])


def mask_entropy(mask: Tensor) -> Tensor:
    """Return ``d H2(share of ones)`` of each row ``(n, d)``, in bits, ``(n,)`` float64.

    References:
        Mestoukirdi et al., https://arxiv.org/abs/2309.10834, equation 13, with log base 2 (R2).
    """
    shares = row_sums(mask, torch.int64).to(torch.float64) / mask.shape[1]
    each = [mask.shape[1] * wire.binary_entropy(share) for share in shares.tolist()]
    return torch.tensor(each, dtype=torch.float64)


@dataclass(frozen=True, eq=False)
class BinaryMasks(PackedBits):
    """``mask (n, d)`` bool, and ``rest (n, p)`` float32 of parameters that have no mask.

    On the wire ``32 p`` bits of floats, then the mask as `code_packed` codes it: about
    ``d H2(share of ones)`` bits.
    """

    packed_field = "mask"

    mask: Tensor  # True stands for 1
    rest: Tensor  # biases and parameters of normalisation; often ``p = 0``
    signed: bool = False  # whether False stands for -1 instead of 0

    def check(self) -> None:
        require_form(self, mask=("d", torch.bool), rest=("p", torch.float32))

    @property
    def bounded(self) -> bool:
        """True where there is nothing but the mask."""
        return self.rest.shape[1] == 0

    def values(self) -> Tensor:
        """Return the bits, then the floats, ``(n, d + p)`` float32."""
        return torch.cat([numbers_of(self.mask, self.signed), self.rest], dim=1)

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

    def parts_around(self, packed: list[BitString]) -> list[BitString]:
        (mask,) = packed
        return [wire.number_bytes(self.rest), wire.code_packed(mask)]

    @classmethod
    def read_row(cls, packet: Packet, spec: Spec) -> Self:
        (d,) = spec["mask"]
        (p,) = spec["rest"]
        rest, data = wire.cut(packet, 4 * p)
        mask = wire.packed_bits(wire.decode_packed(data, d))
        return cls(mask, wire.floats_of(rest), spec["signed"])


def noise_of(
    key: Key, d: int, noise: Noise, magnitude: float, device: torch.device | str = "cpu"
) -> Tensor:
    """Return ``G(s) (d,)`` float32, equal on every device and under ``vmap``; do not write.

    Uniform in ``[-magnitude, magnitude)``, Gaussian with that standard deviation, or
    ``+-magnitude``. What is closer to 0 than `MIN_NOISE` becomes that, with its sign; 0 becomes
    positive (A2: updates are divided by it). The last few are kept.

    >>> noise_of(Key(0), 3, "bernoulli", 0.5).tolist()
    [0.5, -0.5, -0.5]
    """
    if isinstance(key.seed, Tensor):
        return _draw(key, d, noise, magnitude, device)
    return _cached(key.seed, d, noise, magnitude, str(device))


@lru_cache(maxsize=32)
def _cached(seed: int, d: int, noise: Noise, magnitude: float, device: str) -> Tensor:
    return _draw(Key(seed), d, noise, magnitude, device)


def _draw(key: Key, d: int, noise: Noise, magnitude: float, device: torch.device | str) -> Tensor:
    if noise == "uniform":
        x = key.uniform(d, device=device).mul_(2).sub_(1)
    else:
        x = (key.normal if noise == "gaussian" else key.signs)(d, device=device)
    x = x * magnitude
    return x.abs().clamp_min_(MIN_NOISE).copysign_(x)


@dataclass(frozen=True, eq=False)
class NoiseMasks(PackedBits):
    """``mask (n, d)`` bool over the noise of ``seeds (n, 1)``, and ``rest (n, p)`` float32.

    On the wire 64 bits of seed, ``32 p`` bits of floats, then the mask as `code_packed` codes it. A
    client chooses its own seed: nothing on the wire forbids to search for one, or to copy it.
    """

    packed_field = "mask"

    mask: Tensor  # True stands for the noise
    seeds: Tensor  # int64, whose 64 bits name the stream of the noise
    rest: Tensor  # biases and parameters of normalisation; often ``p = 0``
    noise: Noise  # its distribution, see `noise_of`
    magnitude: float
    signed: bool = False  # whether False stands for the noise negated instead of 0

    def check(self) -> None:
        seeds = (1, torch.int64)
        require_form(self, mask=("d", torch.bool), seeds=seeds, rest=("p", torch.float32))

    @property
    def bounded(self) -> bool:
        """True where there is nothing but masked noise: Gaussian noise ends at 4.4 sigma."""
        return self.rest.shape[1] == 0

    def headers(self) -> dict[str, Tensor]:
        return {"seeds": self.seeds}

    def noises(self) -> Tensor:
        """Return the noise before it is masked, ``(n, d)`` float32."""
        d = self.mask.shape[1]
        device = self.mask.device
        keys = [Key(seed % 2**64) for seed in self.seeds[:, 0].tolist()]
        rows = [noise_of(key, d, self.noise, self.magnitude, device) for key in keys]
        return torch.stack(rows) if rows else torch.zeros(0, d, device=device)

    def values(self) -> Tensor:
        """Return the masked noise, then the floats, ``(n, d + p)`` float32."""
        symbols = numbers_of(self.mask, self.signed)
        return torch.cat([symbols.mul_(self.noises()), self.rest], dim=1)

    def nearest(self, values: Tensor) -> Self:
        """Return the closer of the two values that a bit can stand for, with the same seeds.

        1 iff ``v / n > 1/2``, if signed iff ``v / n >= 0``: distances to a large ``v`` would round.
        """
        d = self.mask.shape[1]
        along = values[:, :d].to(torch.float32) / self.noises()
        bits = along >= 0 if self.signed else along > 0.5
        rest = values[:, d:].to(torch.float32)
        return type(self)(bits, self.seeds, rest, self.noise, self.magnitude, self.signed)

    def entropy(self) -> Tensor:
        """Return ``d H2(share of ones)`` bits, 32 per float, and the seed."""
        return mask_entropy(self.mask) + 32 * self.rest.shape[1] + 64

    def parts_around(self, packed: list[BitString]) -> list[BitString]:
        (mask,) = packed
        floats = wire.number_bytes(self.rest)
        return [wire.number_bytes(self.seeds), floats, wire.code_packed(mask)]

    @classmethod
    def read_row(cls, packet: Packet, spec: Spec) -> Self:
        (d,) = spec["mask"]
        (p,) = spec["rest"]
        seed, rest, data = wire.cut(packet, 8, 4 * p)
        mask = wire.packed_bits(wire.decode_packed(data, d))
        return cls(
            mask,
            wire.seeds_of(seed),
            wire.floats_of(rest),
            spec["noise"],
            spec["magnitude"],
            spec["signed"],
        )
