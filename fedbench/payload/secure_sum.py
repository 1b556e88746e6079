"""Cost of a message where a secure aggregation adds it up."""

from functools import lru_cache

import numpy as np

from fedbench.core.rng import Key
from fedbench.payload.base import Payload
from fedbench.payload.masks import BinaryMasks
from fedbench.payload.packets import code_residues
from fedbench.payload.residues import Residues
from fedbench.payload.signs import SignBits


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
