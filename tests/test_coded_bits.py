"""Bits on the wire: packed where a code gains nothing, else range-coded, and never both."""

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbench.core.errors import IllegalPayloadError
from fedbench.core.rng import Key
from fedbench.payload import packets as wire


@given(
    count=st.integers(1, 5000), ones=st.floats(0, 1), seed=st.integers(0, 2**32), flip=st.booleans()
)
def test_coded_bits_are_as_long_as_their_entropy(
    count: int, ones: float, seed: int, flip: bool
) -> None:
    bits = (Key(seed).uniform(count) < ones**4).numpy() ^ flip  # also shares near 0 and 1
    data, length = wire.code_bits(bits)
    assert length <= 8 * len(data) < length + 8
    assert np.array_equal(wire.decode_bits(data, count), bits)
    assert length <= 1.01 * count * wire.binary_entropy(float(bits.mean())) + 64 * 8
    assert length <= count + 64


def bits_with(ones: int, count: int) -> npt.NDArray[np.bool_]:
    """Return this many bits, in an order without a pattern."""
    return Key(count).permutation(count).numpy() < ones


def coded_words(bits: npt.NDArray[np.bool_]) -> bytes:
    """Return a count and the range coder's words, whatever the rule says of such bits."""
    ones = int(bits.sum())
    words = wire.range_coded(np.packbits(bits).astype(np.int32), wire._byte_model(ones / len(bits)))
    return ones.to_bytes(4, "little") + words.tobytes()


def packed_bits(bits: npt.NDArray[np.bool_]) -> bytes:
    """Return a count and the bits as they are, whatever the rule says of such bits."""
    return int(bits.sum()).to_bytes(4, "little") + np.packbits(bits).tobytes()


def refused_bits(data: bytes, count: int, requirement: str | None = None) -> None:
    with pytest.raises(IllegalPayloadError, match=requirement):
        wire.decode_bits(np.frombuffer(data, dtype=np.uint8), count)


@pytest.mark.parametrize(
    ("bits", "sent", "length"),
    [
        ("1011 0010 1100", "06000000 b2c0", 32 + 12),  # six ones, then the bits and four of padding
        ("1", "01000000", 32),  # all are equal: nothing but the count
        ("00000", "00000000", 32),
        ("10", "01000000 80", 32 + 2),
        ("0000 0001", "01000000 01", 32 + 8),
        ("", "00000000", 32),
    ],
)
def test_bits_that_are_packed_by_hand(bits: str, sent: str, length: int) -> None:
    vector = np.array([bit == "1" for bit in bits.replace(" ", "")], dtype=np.bool_)
    data, bits_sent = wire.code_bits(vector)
    assert (data.tobytes(), bits_sent) == (bytes.fromhex(sent), length)
    assert wire.decode_bits(data, len(vector)).tolist() == vector.tolist()


@pytest.mark.parametrize(
    ("count", "ones", "packed"),
    [
        (176, 44, True),  # (2 * 44 - 176)**2 = 88**2 = 44 * 176
        (176, 43, False),
        (176, 132, True),
        (176, 133, False),
        (44, 1, True),
        (45, 1, True),  # 43**2 <= 44 * 45
        (46, 1, True),
        (47, 1, True),  # 45**2 = 2025 <= 2068
        (48, 1, False),  # 46**2 = 2116 > 2112
        (1_000_000, 496_684, True),  # 6632**2 = 43,983,424 <= 44,000,000
        (1_000_000, 496_683, False),  # 6634**2 = 44,009,956
    ],
)
def test_bits_are_packed_where_a_code_would_not_save_a_word(
    count: int, ones: int, packed: bool
) -> None:
    bits = bits_with(ones, count)
    right = packed_bits(bits) if packed else coded_words(bits)
    wrong = coded_words(bits) if packed else packed_bits(bits)
    data, length = wire.code_bits(bits)
    assert data.tobytes() == right
    assert length == (32 + count if packed else 8 * len(right))
    assert np.array_equal(wire.decode_bits(data, count), bits)
    refused_bits(wrong, count)


def test_packing_costs_at_most_about_a_word_more_than_coding() -> None:
    longest = max(
        wire.code_bits(bits)[1] - 8 * len(coded_words(bits))
        for count in range(2, 100)
        for ones in range(1, count)
        for bits in [bits_with(ones, count)]
    )
    assert longest == 33  # of 65 bits six are ones: 97 bits, or a count and one word


@given(st.integers(0, 200), st.floats(0, 1), st.integers(0, 2**32), st.binary(max_size=12))
def test_bytes_decode_to_bits_that_have_those_bytes_or_are_refused(
    count: int, share: float, seed: int, forged: bytes
) -> None:
    good = wire.code_bits((Key(seed).uniform(count) < share).numpy())[0].tobytes()
    for start in range(len(good) + 1):
        data = np.frombuffer(good[:start] + forged + good[start + len(forged) :], dtype=np.uint8)
        try:
            bits = wire.decode_bits(data, count)
        except IllegalPayloadError:
            continue
        assert wire.code_bits(bits)[0].tobytes() == data.tobytes()


def test_packed_bits_with_another_count_padding_or_length_are_refused() -> None:
    good = bytes.fromhex("06000000 b2c0")
    assert wire.decode_bits(np.frombuffer(good, dtype=np.uint8), 12).sum() == 6
    for count in (0, 5, 7, 12, 13, 2**31):
        refused_bits(count.to_bytes(4, "little") + good[4:], 12)
    for bit in range(4):  # of the padding
        refused_bits(good[:5] + bytes([good[5] | 1 << bit]), 12, "padding")
    for data in (b"", good[:3]):
        refused_bits(data, 12, "4 bytes")
    for data in (good[:4], good[:5], good + b"\0", good + bytes(2), good[:4] * 2):
        refused_bits(data, 12, "2 bytes")
    refused_bits(good, 9)  # the tenth bit would be padding
    refused_bits(good, 17)


def test_coded_bits_with_ones_as_padding_are_refused() -> None:
    packed = np.packbits(bits_with(100, 1005))
    packed[-1] |= 1
    for coded in (wire.code_packed((packed, 1005)), wire.code_packed((packed, 1008))):
        refused_bits(coded[0].tobytes(), 1005, "must be the code")
