"""Arithmetic of 64-bit words: Python's integers, which know no sign, and torch's int64."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

MASK = (1 << 64) - 1
_SIP = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)


def signed(value: int) -> int:
    """Return the 64 bits of ``value`` as an int64 of torch."""
    return value - (1 << 64) if value >> 63 else value


def shift_right(z: Tensor, shift: int) -> Tensor:
    """Shift int64 logically: torch's own shift repeats the sign bit."""
    return (z >> shift).bitwise_and_((1 << (64 - shift)) - 1)


def _rotate(x: int | Tensor, bits: int) -> int | Tensor:
    """Rotate 64 bits to the left."""
    if isinstance(x, Tensor):
        return (x << bits) | shift_right(x, 64 - bits)
    return (x << bits | x >> (64 - bits)) & MASK


def _sip_round(a: Any, b: Any, c: Any, d: Any) -> tuple[Any, Any, Any, Any]:
    """SipRound: ``a b c d`` are ``v0 v1 v2 v3`` of the paper, integers or tensors."""
    mask = -1 if isinstance(a, Tensor) else MASK  # tensors wrap around by themselves
    a = (a + b) & mask
    b = _rotate(b, 13) ^ a
    a = _rotate(a, 32)
    c = (c + d) & mask
    d = _rotate(d, 16) ^ c
    a = (a + d) & mask
    d = _rotate(d, 21) ^ a
    c = (c + b) & mask
    b = _rotate(b, 17) ^ c
    c = _rotate(c, 32)
    return a, b, c, d


def siphash(low: int | Tensor, high: int, words: Sequence[int]) -> Any:
    """Return SipHash-2-4 of 64-bit ``words`` under the key ``low, high``.

    It is a tensor if ``low`` is one. Only additions, rotations and exclusive ors, so it runs under
    ``vmap``, where BLAKE2b cannot.

    References:
        Aumasson and Bernstein, "SipHash: a fast short-input PRF", INDOCRYPT 2012,
        https://doi.org/10.1007/978-3-642-34931-7_28, section 2.
    """
    fit = signed if isinstance(low, Tensor) else int
    keys: tuple[Any, Any] = (low, low ^ low ^ fit(high))  # an integer or a tensor, as ``low``
    a, b, c, d = (keys[i % 2] ^ fit(constant) for i, constant in enumerate(_SIP))
    for word in (*words, len(words) * 8 % 256 << 56):
        a, b, c, d = _sip_round(*_sip_round(a, b, c, d ^ fit(word)))
        a = a ^ fit(word)
    c = c ^ 0xFF
    for _ in range(4):
        a, b, c, d = _sip_round(a, b, c, d)
    return a ^ b ^ c ^ d
