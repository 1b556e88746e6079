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
PROMISES = {
    "fedavg": Promise(True, "0", "32 bits"),
    "cast": Promise(
        False,
        "at most 2**-22, rounding to 11 significant bits, if none over- or underflows",
        "16 bits",
    ),
    "topk": Promise(False, "at most 1 - k", "32 k + 1 bits, or fewer with index=entropy,"),
    "randk": Promise(True, "1 / k - 1 in the mean", "32 k bits, and 64 for the seed,"),
    "drive": Promise(True, f"pi / 2 - 1 = 0.571 {_NORMAL}", "1 bit, and 32 per block,"),
    "eden": Promise(
        True,
        f"0.571, 0.133, 0.0358, 0.0096 at 1, 2, 3, 4 bits {_NORMAL}",
        "the asked bits, and 32 per block,",
    ),
    "qsgd": Promise(
        True,
        "at most bucket / (4 levels**2) times a bucket's share with norm=max",
        "measured by `bits`, about log2(2 levels + 1) at most",
    ),
    "fedpaq": Promise(True, "that of qsgd at its levels", "measured by `bits`"),
    "terngrad": Promise(
        True,
        "unbounded: |x|_1 max|x| / |x|**2 - 1 in the mean",
        "at most log2(3) bits, entropy-coded,",
    ),
    "signsgd": Promise(False, "not bounded: the length is lost", "1 bit"),
    "stochastic-sign": Promise(False, "not bounded: the mean is x over its norm", "1 bit"),
    "ef-signsgd": Promise(
        False,
        f"1 - |x|_1**2 / (d |x|**2) per layer, 1 - 2 / pi {_NORMAL}",
        "1 bit, and 32 per layer,",
    ),
    "fedmrn": Promise(
        False, "depends on the noise, which must be of the size of the update", "1 bit"
    ),
    "fedmrns": Promise(
        False, "depends on the noise, which must be of the size of the update", "1 bit"
    ),
}
