"""Masks over random noise that a seed regenerates."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, Self

import torch
from torch import Tensor

from fedbench.core.rng import Key
from fedbench.payload.base import Payload, Spec, require_form
from fedbench.payload.fields import cut, floats_of, number_bytes, seeds_of
from fedbench.payload.masks import mask_entropy
from fedbench.payload.packets import Packet, Part, code_bits, decode_bits

Noise = Literal["uniform", "gaussian", "bernoulli"]

SMALLEST = 1e-8  # no noise is closer to 0


def noise_of(
    key: Key, d: int, noise: Noise, magnitude: float, device: torch.device | str = "cpu"
) -> Tensor:
    """Return ``G(s) (d,)`` float32, equal on every device and under ``vmap``; do not write.

    Uniform in ``[-magnitude, magnitude)``, Gaussian with that standard deviation, or
    ``+-magnitude``. What is closer to 0 than `SMALLEST` becomes that, with its sign; 0 becomes
    positive (A2: updates are divided by it). The last few are kept: attacks and defenses read the
    same rows many times.

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
    elif noise == "gaussian":
        x = key.normal(d, device=device)
    else:
        x = key.signs(d, device=device)
    x = x * magnitude
    return x.abs().clamp_min_(SMALLEST).copysign_(x)


@dataclass(frozen=True, eq=False)
class NoiseMasks(Payload):
    """``mask (n, d)`` bool over the noise of ``seeds (n, 1)``, and ``rest (n, p)`` float32.

    True stands for the noise, False for 0, or for the noise negated if ``signed``. On the wire 64
    bits of seed, ``32 p`` bits of floats, then the mask as `code_bits` codes it.

    A client chooses its own seed, so every 64 bits are a legal one: a server cannot tell a seed
    that was drawn from one that was searched for, or copied from another client. Searching pays
    little, the noise of any seed is within the magnitude; but nothing on the wire forbids it.

    Args:
        mask: Bits of the weights.
        seeds: int64, whose 64 bits name the stream of the noise.
        rest: Biases and parameters of normalisation; often ``p = 0``.
        noise: Distribution of the noise, see `noise_of`.
        magnitude: Scale of the noise.
        signed: Is False the noise negated?
    """

    mask: Tensor
    seeds: Tensor
    rest: Tensor
    noise: Noise
    magnitude: float
    signed: bool = False

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
        bits = self.mask.to(torch.float32)
        symbols = bits.mul_(2).sub_(1) if self.signed else bits
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

    def parts(self) -> list[list[Part]]:
        coded = [code_bits(mask) for mask in self.mask.cpu().numpy()]
        return [number_bytes(self.seeds), number_bytes(self.rest), coded]

    @classmethod
    def decode_row(cls, packet: Packet, spec: Spec) -> Self:
        """Return the row; a wrong length and what is no code of a mask are illegal."""
        (d,), (p,) = spec["mask"], spec["rest"]
        seed, rest, data = cut(packet, 8, 4 * p)
        bits = torch.from_numpy(decode_bits(data, d))
        form = spec["noise"], spec["magnitude"], spec["signed"]
        return cls(bits[None], seeds_of(seed), floats_of(rest), *form)
