"""Values of drand's chain ``quicknet``, verified without asking anybody.

Every three seconds a round of the chain is signed by a threshold of independent parties. The
signature depends on the round alone, nobody knows it before, and anybody can verify it.
"""

import hashlib
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache

from fedbench.core.errors import ConfigError

DRAND = "drand"  # word of a source whose values are verified
SOURCE = re.compile(r"drand quicknet round ([1-9][0-9]{0,9})")  # the longest is of the year 2974
GENESIS = 1692803367  # seconds since 1970 of round 1
PERIOD = 3  # seconds from one round to the next
PUBLIC_KEY = (
    "83cf0f2896adee7eb8b5f01fcad3912212c437e0073e911fb90022d3e760183c8c4b450b6a0a6c3ac6a5776a2d106451"
    "0d1fec758c921cc22b0e17e63aaf4bcb5ed66304de9cf809bd274ca73bab4af5a6e9c76a4bc09e76eae8991ef5ece45a"
)
DOMAIN = b"BLS_SIG_BLS12381G1_XMD:SHA-256_SSWU_RO_NUL_"


def round_of(source: str) -> int | None:
    """Return the round that a source names; None for one that does not speak of drand.

    `ConfigError` for one of drand that names no round of quicknet.

    >>> round_of("drand quicknet round 1000")
    1000
    """
    if DRAND not in source.lower():
        return None
    named = SOURCE.fullmatch(source)
    if named is None:
        raise ConfigError(
            f"a source of drand must read drand quicknet round NUMBER, got {source!r}; "
            "other chains are not verified"
        )
    return int(named[1])


def published(number: int) -> datetime:
    """Return when a round is published.

    >>> str(published(1000))
    '2023-08-23 15:59:24+00:00'
    """
    return datetime.fromtimestamp(GENESIS + PERIOD * (number - 1), UTC)


@contextmanager
def recursion_limit_kept() -> Iterator[None]:
    """Leave Python's recursion limit as it is: the import of py_ecc raises it to 100,000.

    With so many calls an endless recursion, of a plug-in for instance, would end the process.
    """
    limit = sys.getrecursionlimit()
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)


@cache
@recursion_limit_kept()
def signed(number: int, signature: bytes) -> bool:
    """Tell if a signature is that of a round of quicknet, in about two seconds.

    The signature ``s`` is a point of G1, 48 bytes, the key ``p`` one of G2. It is legal if
    ``e(s, g2) = e(H(m), p)``, where ``m`` is the SHA-256 of the round as eight bytes, the largest
    first. `ConfigError` without the package that computes the pairing ``e``.

    References:
        Boneh, Lynn and Shacham, "Short signatures from the Weil pairing", ASIACRYPT 2001; hashing
        to the curve: RFC 9380, suite BLS12381G1_XMD:SHA-256_SSWU_RO_;
        scheme: drand, bls-unchained-g1-rfc9380.
    """
    try:
        from eth_typing import BLSPubkey, BLSSignature
        from py_ecc.bls.g2_primitives import pubkey_to_G1, signature_to_G2, subgroup_check
        from py_ecc.bls.hash_to_curve import hash_to_G1
        from py_ecc.optimized_bls12_381.optimized_curve import G2, is_inf
        from py_ecc.optimized_bls12_381.optimized_pairing import pairing
    except ImportError as error:
        raise ConfigError(
            "signatures of drand must be verified with py_ecc, got no such package; say "
            "python -m pip install py_ecc"
        ) from error
    if len(signature) != 48:
        return False
    try:
        point = pubkey_to_G1(BLSPubkey(signature))  # the format of 48 bytes, whatever their use
    except ValueError:
        return False
    if is_inf(point) or not subgroup_check(point):
        return False
    message = hashlib.sha256(number.to_bytes(8, "big")).digest()
    key = signature_to_G2(BLSSignature(bytes.fromhex(PUBLIC_KEY)))
    hashed = hash_to_G1(message, DOMAIN, hashlib.sha256)  # type: ignore[arg-type]
    return bool(pairing(G2, point) == pairing(key, hashed))
