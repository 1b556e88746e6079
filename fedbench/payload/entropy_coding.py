"""Whole numbers to bits and back: Elias' omega code, and a range coder with their histogram.

Nothing loops over coordinates: the omega code is read at every bit of a window at once, and the
codewords that are really there are found by following pointers that double.
"""

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from fedbench.core.errors import IllegalPayloadError
from fedbench.payload.packets import BitString, Bytes, range_coded, range_decoded

Integers = npt.NDArray[np.int64]

MAX_VALUE = 2**31 - 1  # gap or magnitude
_LONGEST = 31 + 5 + 3 + 2 + 1  # bits of its codeword
_WINDOW = 1 << 15  # bits that are read at once: tables of that length stay in the cache
_SYMBOLS = 256  # largest alphabet of grouped digits


def omega(x: Integers) -> tuple[Integers, Integers]:
    """Return Elias' omega code of each ``x >= 1``, as a binary number, and its length.

    A 0 ends it; before that stands ``x`` in binary, before that the length of ``x`` less one in
    binary, and so on down to 1, which is not written.

    >>> [f"{code:0{bits}b}" for code, bits in zip(*omega(np.array([1, 2, 4, 8])), strict=True)]
    ['0', '100', '101000', '1110000']

    References:
        Elias, "Universal Codeword Sets and Representations of the Integers", IEEE Transactions on
        Information Theory 1975, https://doi.org/10.1109/TIT.1975.1055349.
    """
    code = np.zeros_like(x)
    bits = np.ones_like(x)
    while (more := x > 1).any():
        width = np.frexp(x)[1].astype(np.int64)
        code |= np.where(more, x << bits, 0)
        bits += np.where(more, width, 0)
        x = np.where(more, width - 1, 1)
    return code, bits


def code_elias(x: npt.NDArray[np.integer]) -> BitString:
    """Return in 32 bits how many of ``x`` are not 0, then gap, sign and magnitude of those.

    The gap is the distance to the one before, of the first that to the position before all; gaps
    and magnitudes are `omega` codes, a sign is a bit, 1 for minus. The paper's code begins with the
    norm, which here is beside it, and leaves open where it ends, which here the 32 bits say.

    >>> data, bits = code_elias(np.array([0, -2, 1]))  # 100 1 100, 0 0 0
    >>> data.tobytes().hex(), bits
    ('020000009800', 42)

    References:
        Alistarh et al., "QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding",
        NIPS 2017, https://arxiv.org/abs/1610.02132, section 3.1, ``Code_s``.
    """
    at = np.flatnonzero(x)
    entries = x[at].astype(np.int64)
    gap, gap_bits = omega(np.diff(at, prepend=-1))
    size, size_bits = omega(np.abs(entries))
    size |= (entries < 0).astype(np.int64) << size_bits
    codes = np.stack([gap, size], axis=1).reshape(-1)
    lengths = np.stack([gap_bits, size_bits + 1], axis=1).reshape(-1)
    ends = np.cumsum(lengths)
    bits = np.zeros(lengths.sum(), dtype=np.uint8)
    while len(codes):  # the last bit of every code, then the last but one of those that have one
        ends -= 1
        bits[ends] = codes & 1
        longer = lengths > 1
        codes = codes[longer] >> 1
        lengths = lengths[longer] - 1
        ends = ends[longer]
    head = np.frombuffer(len(at).to_bytes(4, "little"), dtype=np.uint8)
    return np.concatenate([head, np.packbits(bits)]), 32 + len(bits)


def decode_elias(data: Bytes, count: int, top: int) -> Integers:
    """Return the ``count`` integers of magnitude ``top`` or less that `code_elias` wrote.

    No number has two codewords, so whatever decodes, from all of the bytes and with zero padding,
    is canonical; `IllegalPayloadError` for all else.
    """
    x, used = _read(data, count, top)
    if used != len(data):
        raise IllegalPayloadError(f"coded integers must fill their bytes, got {len(data)}")
    return x


def code_entropy(x: npt.NDArray[np.integer], top: int) -> BitString:
    """Return the histogram of integers of magnitude ``top`` or less, then range-coded words.

    The histogram is itself a vector with many zeros, and `code_elias` codes it: a few bytes for
    each number that occurs. Numbers are independent and of that frequency; of few different ones
    several are one symbol. Nothing but the histogram is sent where all are equal.

    >>> x = np.zeros(90_000, dtype=np.int16)
    >>> x[::3], x[1::9] = 1, -1
    >>> data, bits = code_entropy(x, 1)
    >>> round(bits / 90_000, 2), bool((decode_entropy(data, 90_000, 1) == x).all())
    (1.35, True)
    """
    at = np.add(x, top, dtype=np.int64)
    histogram = np.bincount(at, minlength=2 * top + 1)
    head, _ = code_elias(histogram)
    used = np.flatnonzero(histogram)
    if len(used) < 2:
        return head, 8 * len(head)
    rank = np.zeros(2 * top + 1, dtype=np.int32)
    rank[used] = np.arange(len(used))
    words = range_coded(_grouped(rank[at], len(used)), _model(histogram[used]))
    return np.concatenate([head, words]), 8 * (len(head) + len(words))


def decode_entropy(data: Bytes, count: int, top: int) -> Integers:
    """Return the ``count`` integers that `code_entropy` wrote, or raise `IllegalPayloadError`.

    Many streams decode to something, so the integers must give the same bytes when coded again.
    """
    histogram, start = _read(data, 2 * top + 1, count)
    used = np.flatnonzero(histogram)
    if histogram.sum() != count or (len(data) - start) % 4:
        raise IllegalPayloadError(f"coded integers must have a histogram of {count}, then words")
    numbers = used - top
    if len(used) < 2:
        if start != len(data):
            raise IllegalPayloadError("integers that are all equal are a histogram and no words")
        return np.full(count, numbers[0] if count else 0)
    words = data[start:]
    table = _digits(len(used))
    length = table.shape[1]
    model = _model(histogram[used])
    symbols = range_decoded(words, model, -(-count // length))
    behind = -count % length  # zeros behind the last
    occur = np.bincount(symbols, minlength=len(table))
    counts = np.bincount(table.reshape(-1), np.repeat(occur, length))
    counts[0] -= behind
    if (
        table[symbols[-1], length - behind :].any()
        or not np.array_equal(counts, histogram[used])
        or not np.array_equal(range_coded(symbols, model), words)
    ):
        raise IllegalPayloadError("coded integers must be the code of what they decode to")
    x: Integers = numbers[table].take(symbols, axis=0).reshape(-1)[:count]
    return x


def _group(base: int) -> int:
    """Return how many digits below ``base`` are one symbol."""
    length = 1
    while base ** (length + 1) <= _SYMBOLS:
        length += 1
    return length


def _grouped(digits: npt.NDArray[np.int32], base: int) -> npt.NDArray[np.int32]:
    """Return symbols of `_group` digits each, the first counting most; behind the last are 0."""
    length = _group(base)
    padded = np.pad(digits, (0, -len(digits) % length)).reshape(-1, length)
    symbols = padded[:, 0].copy()
    for column in padded.T[1:]:
        symbols = symbols * np.int32(base) + column
    return symbols


@lru_cache(maxsize=64)
def _digits(base: int) -> Integers:
    """Return the digits ``(symbols, length)`` that `_grouped` makes each symbol of."""
    length = _group(base)
    places = base ** np.arange(length - 1, -1, -1)
    return np.arange(base**length)[:, None] // places % base


def _model(counts: Integers) -> Any:
    """Return the model of independent digits; products alone, so equal on every machine."""
    import constriction

    share = counts / counts.sum()
    chances = share
    for _ in range(_group(len(counts)) - 1):
        chances = np.multiply.outer(chances, share).reshape(-1)
    return constriction.stream.model.Categorical(chances, perfect=False)


def _read(data: Bytes, count: int, top: int) -> tuple[Integers, int]:
    """Return the integers that `code_elias` wrote first in ``data``, and the bytes they fill."""
    # Behind the data there are zeros, so a codeword that is cut off ends behind it.
    if len(data) < 4:
        raise IllegalPayloadError(f"coded integers must begin with 4 bytes, got {len(data)}")
    left = int.from_bytes(data[:4].tobytes(), "little")
    if left > count:  # could not decode, but that would take longer to find out
        raise IllegalPayloadError(f"{count} integers cannot have {left} that are not 0")
    x = np.zeros(count, dtype=np.int64)
    at = -1
    bit = 32
    while left:
        start = bit // 8
        gaps, entries, end = _window(data[start:], bit % 8, left)
        left -= len(gaps)
        bit = 8 * start + end
        positions = at + np.cumsum(gaps)
        at = int(positions[-1])
        if bit > 8 * len(data) or at >= count or np.abs(entries).max() > top:
            raise IllegalPayloadError(f"coded integers must be {count} of magnitude <= {top}")
        x[positions] = entries
    used = -(-bit // 8)
    if int(data[used - 1]) & ((1 << -bit % 8) - 1):
        raise IllegalPayloadError("the padding bits of a message must be zero")
    return x, used


def _window(data: Bytes, first: int, most: int) -> tuple[Integers, Integers, int]:
    """Return up to ``most`` gaps and entries of this window, and the bit after the last."""
    # The first codeword starts at bit `first`, below 8.
    span = min(_WINDOW, 88 * most)  # a gap, a sign and a magnitude are 85 bits at most
    words = _words(data, span + 4 * _LONGEST)
    value, length = _omegas(words, span + 2 * _LONGEST)
    sign = np.arange(span) + length[:span]
    end = sign + 1 + length[sign + 1]
    legal = (length[:span] > 0) & (length[sign + 1] > 0)
    hop = np.append(np.where(legal & (end < span), end, span), span)
    starts = _chain(hop, first, min(most, span // 3 + 1))
    starts = starts[starts < span]
    if not legal[starts].all():
        raise IllegalPayloadError(f"coded integers must be at most {MAX_VALUE}")
    at = sign[starts]
    entries = np.where(words[at] >> 31, -value[at + 1], value[at + 1])
    return value[starts], entries, int(end[starts[-1]])


def _chain(hop: Integers, start: int, count: int) -> Integers:
    """Return ``start, hop[start], hop[hop[start]], ...``, ``count`` of them."""
    hops = [hop]  # by 1, 2, 4, ... steps
    while 1 << len(hops) < count:
        hops.append(hops[-1][hops[-1]])
    chain = np.array([start])
    for far in reversed(hops):
        chain = np.stack([chain, far[chain]], axis=1).reshape(-1)
    return chain[:count]


def _words(data: Bytes, count: int) -> Integers:
    """Return the 32 bits that start at each of the first ``count`` bits."""
    size = -(-count // 8)
    padded = np.zeros(size + 4, dtype=np.int64)
    padded[: len(data)] = data[: len(padded)]
    forty = np.zeros(size, dtype=np.int64)
    for i in range(5):
        forty |= padded[i : i + size] << (32 - 8 * i)
    return (forty[:, None] >> np.arange(8, 0, -1)).reshape(-1) & 0xFFFFFFFF


def _omegas(words: Integers, count: int) -> tuple[Integers, Integers]:
    """Return the number whose `omega` code starts at each of the first bits, and its length."""
    # The length is 0 where the number is above MAX_VALUE.
    value = np.ones(count, dtype=np.int64)
    at = np.arange(count)
    word = words[:count]
    for _ in range(4):  # 2 bits, then up to 4, 16, 31
        more = (word >> 31 == 1) & (value < 31)
        width = np.where(more, value + 1, 0)
        value = np.where(more, word >> (32 - width), value)
        at = at + width
        word = words[at]
    return value, np.where(word >> 31, 0, at + 1 - np.arange(count))
