"""Promises of the installed codecs: is the mean right, how large is the error, how many bits.

A test measures every one of them on decoded messages.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Promise:
    """Promise of a codec at its defaults, for vectors ``x (d,)``."""

    unbiased: bool  # is the mean of what is decoded, over keys, the vector itself?
    error: str  # of |x_hat - x|**2 / |x|**2
    bits: str  # of a coordinate

    def __str__(self) -> str:
        bias = "Unbiased" if self.unbiased else "Biased"
        return f"{bias}; relative squared error {self.error}; {self.bits} a coordinate."


_NORMAL = "of a Gaussian vector"
_NOISE = "depends on the noise: its magnitude must be that of the update"
_BLOCKS = "and 32 for each block of 4096 and 64 for the seed"
PROMISES = {
    "fedavg": Promise(True, "0", "32 bits"),
    "cast": Promise(False, "at most 2**-22 within the range of fp16", "16 bits"),
    "topk": Promise(False, "at most 1 - k", "1 + 32 k bits, the positions coded if index=entropy,"),
    "randk": Promise(True, "1 / k - 1 in the mean", "32 k bits, and 64 for the seed,"),
    "drive": Promise(True, f"pi / 2 - 1 = 0.571 {_NORMAL}", f"1 bit, {_BLOCKS},"),
    "eden": Promise(
        True,
        f"0.571, 0.133, 0.0358 and 0.0096 at 1, 2, 3 and 4 bits {_NORMAL}",
        f"as many bits as asked for, {_BLOCKS},",
    ),
    "qsgd": Promise(
        True,
        f"at most bucket / (2 levels)**2 = 2.61, and 0.036 {_NORMAL}",
        f"at most log2(2 levels + 1) bits, and 32 for each bucket, entropy-coded: 3.33 {_NORMAL},",
    ),
    "fedpaq": Promise(
        True,
        "at most min(d / levels**2, sqrt(d) / levels) in the mean",
        "at most log2(2 levels + 1) bits, and 32 for the norm, entropy-coded,",
    ),
    "terngrad": Promise(
        True,
        "|x|_1 max|x| / |x|**2 - 1 in the mean, over each layer",
        "at most log2(3) bits, and 32 for each layer, entropy-coded,",
    ),
    "signsgd": Promise(False, "unbounded, since the length is lost", "1 bit"),
    "stochastic-sign": Promise(False, "unbounded, since the length is lost", "1 bit"),
    "ef-signsgd": Promise(
        False,
        f"1 - |x|_1**2 / (d |x|**2) over each layer, 1 - 2 / pi {_NORMAL}",
        "1 bit, and 32 for each layer,",
    ),
    "fedmrn": Promise(False, _NOISE, "about 1 bit, entropy-coded, and 64 for the seed,"),
    "fedmrns": Promise(False, _NOISE, "about 1 bit, entropy-coded, and 64 for the seed,"),
}
