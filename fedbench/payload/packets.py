"""Bits to bytes and back: the cost of a message is counted here, on the bytes themselves.

Here are also the fields that many alphabets share, floats, seeds and bits, and the entropy code of
bits.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedbench.core.errors import IllegalPayloadError

Bytes = npt.NDArray[np.uint8]
BitString = tuple[Bytes, int]  # its bytes and its number of bits


@dataclass(frozen=True)
class Packet:
    """Message on the wire: its bytes, and how many bits of them are information.

    Fewer than eight bits of zero padding end the last byte; they are not counted.
    """

    data: bytes
    bits: int

    @classmethod
    def raw(cls, data: bytes) -> Self:
        """Return the packet of an attacker's bytes: every bit of them is sent."""
        return cls(data, 8 * len(data))


def pack(symbols: npt.NDArray[np.integer | np.bool], width: int) -> BitString:
    """Return big-endian ``width``-bit symbols, one after the other.

    >>> data, bits = pack(np.array([5, 2, 7]), 3)  # 101 010 111
    >>> data.tobytes().hex(), bits
    ('ab80', 9)
    """
    count = len(symbols)
    if width == 1:
        return np.packbits(symbols.astype(np.bool_, copy=False)), count
    groups = np.zeros((-(-count // 8), 4, 2), dtype=np.uint64)  # eight symbols are `width` bytes
    groups.reshape(-1)[:count] = symbols
    pairs = groups[:, :, 0] << np.uint64(width) | groups[:, :, 1]
    words = np.zeros((len(groups), -(-width // 8)), dtype=np.uint64)
    for i, pair in enumerate(pairs.T):
        stop = 2 * (i + 1) * width
        for word in range(2 * i * width // 64, -(-stop // 64)):
            shift = 64 * (word + 1) - stop  # how far the pair sits left of this word's end
            piece = pair << np.uint64(shift) if shift >= 0 else pair >> np.uint64(-shift)
            words[:, word] |= piece
    data = words.astype(">u8").view(np.uint8).reshape(len(groups), 8 * words.shape[1])
    bits = count * width
    return data[:, :width].reshape(-1)[: -(-bits // 8)], bits


def unpack(data: Bytes, count: int, width: int) -> npt.NDArray[np.int32]:
    """Return the ``count`` symbols that `pack` wrote."""
    if width == 1:
        return np.unpackbits(data, count=count).astype(np.int32)
    groups = -(-count // 8)
    padded = np.zeros((groups + 1) * width + 8, dtype=np.uint8)
    padded[: len(data)] = data
    out = np.empty((groups, 8), dtype=np.int32)
    for i in range(8):
        start = i * width // 8
        words = np.ndarray(groups, ">u8", padded, start, (width,))  # the symbol is within 8 bytes
        last = 64 - (i * width - 8 * start) - width  # bits of the word behind it
        out[:, i] = words.astype(np.uint64) >> np.uint64(last) & np.uint64((1 << width) - 1)
    return out.reshape(-1)[:count]


def join(parts: Sequence[BitString]) -> Packet:
    """Return bit strings one after the other, without padding between them."""
    bits = sum(length for _, length in parts)
    if all(length % 8 == 0 for _, length in parts[:-1]):
        # A memoryview is copied once, and while it is long other threads go on.
        return Packet(b"".join(np.ascontiguousarray(data).data for data, _ in parts), bits)
    unpacked = [np.unpackbits(data, count=length) for data, length in parts]
    return Packet(np.packbits(np.concatenate(unpacked)).tobytes(), bits)


def split(packet: Packet, lengths: list[int]) -> list[Bytes]:
    """Cut a packet into bit strings of these lengths, each from the start of a byte.

    `IllegalPayloadError` unless it is exactly that long, with zeros as padding.
    """
    bits = sum(lengths)
    data = np.frombuffer(packet.data, dtype=np.uint8)
    if len(data) != -(-bits // 8):
        raise IllegalPayloadError(f"a message must have {-(-bits // 8)} bytes, got {len(data)}")
    if bits % 8 and data[-1] & ((1 << (8 - bits % 8)) - 1):
        raise IllegalPayloadError("the padding bits of a message must be zero")
    if all(length % 8 == 0 for length in lengths[:-1]):
        ends = np.cumsum([-(-length // 8) for length in lengths])
        return np.split(data, ends[:-1])
    flat = np.unpackbits(data, count=bits)
    return [np.packbits(part) for part in np.split(flat, np.cumsum(lengths)[:-1])]


def index_width(count: int) -> int:
    """Return the bits of one index below ``count``: the smallest whole number that suffices.

    >>> [index_width(n) for n in (1, 2, 288, 1605632)]
    [0, 1, 9, 21]
    """
    return (count - 1).bit_length()


def number_bytes(x: Tensor) -> BitString:
    """Return the row ``(1, p)`` of float32 or int64 as little-endian bytes, and its bits."""
    row = np.ascontiguousarray(x[0].numpy())
    return row.astype(row.dtype.newbyteorder("<"), copy=False).view(np.uint8), 8 * row.nbytes


def floats_of(data: Bytes) -> Tensor:
    """Return the row ``(1, p)`` float32 that these ``4 p`` bytes are."""
    return torch.from_numpy(np.frombuffer(data.tobytes(), dtype="<f4").astype(np.float32))[None]


def entries_at(mask: Tensor, x: Tensor) -> Tensor:
    """Return the entries ``(1, k)`` of ``x (1, d)`` where ``mask (1, d)`` is 1, by NumPy."""
    return torch.from_numpy(np.compress(mask[0].numpy(), x[0].numpy()))[None]


def placed(mask: Tensor, entries: Tensor) -> Tensor:
    """Return ``(1, d)`` float32: these entries where ``mask (1, d)`` is 1, 0 elsewhere."""
    x = np.zeros(mask.shape, dtype=np.float32)
    x[:, np.flatnonzero(mask.numpy())] = entries.numpy()
    return torch.from_numpy(x)


def seeds_of(data: Bytes) -> Tensor:
    """Return the seed ``(1, 1)`` int64 that these eight bytes are."""
    return torch.from_numpy(np.frombuffer(data.tobytes(), dtype="<i8").astype(np.int64))[None]


def packed_bits(data: Bytes) -> Tensor:
    """Return the packed bits of one message as a row ``(1, bytes)`` uint8."""
    return torch.from_numpy(data.copy())[None]


def unpacked_bits(data: Bytes, count: int) -> Tensor:
    """Return the row ``(1, count)`` bool that these bytes pack, the highest bit first."""
    return torch.from_numpy(np.unpackbits(data, count=count).astype(np.bool_))[None]


def cut(packet: Packet, *lengths: int) -> list[Bytes]:
    """Cut parts of these sizes in bytes off a packet; return them, then the rest.

    `IllegalPayloadError` if the packet is shorter.
    """
    data = np.frombuffer(packet.data, dtype=np.uint8)
    if len(data) < sum(lengths):
        raise IllegalPayloadError(f"a message must have {sum(lengths)} bytes, got {len(data)}")
    return np.split(data, np.cumsum(lengths))


def binary_entropy(p: float) -> float:
    """Return ``H2(p)`` in bits, 0 at both ends.

    >>> [round(binary_entropy(p), 4) for p in (0.0, 0.11, 0.5, 1.0)]
    [0.0, 0.4999, 1.0, 0.0]
    """
    return sum(-q * math.log2(q) for q in (p, 1 - p) if q > 0)


def code_bits(bits: npt.NDArray[np.bool_]) -> BitString:
    """Return the code of bits that are not packed yet, see `code_packed`.

    >>> code_bits(np.array([1, 0, 1, 1, 0, 0, 1, 0, 1, 1, 0, 0], dtype=np.bool_))[1]  # 32 + 12
    44
    >>> mask = np.zeros(80_000, dtype=np.bool_)
    >>> mask[::10] = True
    >>> code_bits(mask)[1] / 80_000 < binary_entropy(0.1) * 1.01 + 0.01
    True
    """
    return code_packed(pack(bits, 1))


def count_ones(packed: Bytes) -> int:
    """Return how many bits of these bytes are 1, eight bytes at a time.

    >>> count_ones(np.array([3, 0, 0, 0, 0, 0, 0, 128, 255], dtype=np.uint8))
    11
    """
    whole = len(packed) // 8 * 8
    words = np.bitwise_count(packed[:whole].view(np.uint64)).sum()
    return int(words) + int(np.bitwise_count(packed[whole:]).sum())


def code_packed(string: BitString) -> BitString:
    """Return how many bits are 1, in 32 bits, then the bits: packed, or a range coder's words.

    Nothing but the count is sent where all bits are equal. The bits are packed as they are where a
    code `saves_no_word`; otherwise eight of them are one symbol, independent and of that frequency.
    The number of bits is known to the receiver.
    """
    packed, count = string
    ones = count_ones(packed)
    head = np.frombuffer(ones.to_bytes(4, "little"), dtype=np.uint8)
    if ones in (0, count):
        return head, 32
    if saves_no_word(ones, count):
        return np.concatenate([head, packed]), 32 + count
    words = range_coded(packed.astype(np.int32), _byte_model(ones / count))
    return np.concatenate([head, words]), 32 + 8 * len(words)


def decode_bits(data: Bytes, count: int) -> npt.NDArray[np.bool_]:
    """Return the ``count`` bits that `code_bits` wrote, or raise `IllegalPayloadError`."""
    return np.unpackbits(decode_packed(data, count), count=count).view(np.bool_)


def decode_packed(data: Bytes, count: int) -> Bytes:
    """Return the ``count`` bits that `code_packed` wrote, packed, or raise `IllegalPayloadError`.

    Many streams decode to something, so the bits must give the same bytes when coded again.
    """
    head, sent = cut(Packet.raw(data.tobytes()), 4)
    ones = int.from_bytes(head.tobytes(), "little")
    if ones > count or (ones in (0, count) and len(sent)):
        raise IllegalPayloadError(f"{count} bits have no code of {ones} ones and {len(data)} bytes")
    if ones in (0, count):
        return np.packbits(np.full(count, ones > 0))
    if saves_no_word(ones, count):
        (packed,) = split(Packet.raw(sent.tobytes()), [count])
        if count_ones(packed) != ones:
            raise IllegalPayloadError(f"{count} bits must have the {ones} ones that they claim")
        return packed
    if len(sent) % 4:
        raise IllegalPayloadError(f"coded bits must fill 32-bit words, got {len(data)} bytes")
    symbols = range_decoded(sent, _byte_model(ones / count), -(-count // 8))
    packed = symbols.astype(np.uint8)
    packed[-1] &= 256 - (1 << -count % 8)  # a coder's padding may be anything
    if not np.array_equal(code_packed((packed, count))[0], data):
        raise IllegalPayloadError("coded bits must be the code of what they decode to")
    return packed


def saves_no_word(ones: int, count: int) -> bool:
    """Return whether a code of ``count`` bits by their share of ones saves at most a 32-bit word.

    Of a share ``1/2 + e`` it saves ``count (1 - H2) = 2 count e**2 / ln 2`` bits, to second order:
    32 where ``(2 ones - count)**2 = 64 ln 2 count``. ``64 ln 2 = 44.4`` is cut to 44, since both
    ends decide in whole numbers. The orders left out cost a bit: six ones of 65 would save 33.

    >>> saves_no_word(44, 176), saves_no_word(43, 176)  # 88**2 is 44 * 176
    (True, False)
    """
    return (2 * ones - count) ** 2 <= 44 * count


def code_residues(residues: npt.NDArray[np.int32], modulus: int) -> BitString:
    """Return the code of numbers in ``[0, modulus)``, each as likely: log2(modulus) bits.

    Whole bits if the modulus is a power of two, otherwise a range coder's 32-bit words. The modulus
    is at most 2**24.

    >>> code_residues(np.arange(4_000, dtype=np.int32) % 8, 8)[1] / 4_000
    3.0
    >>> code_residues(np.arange(4_000, dtype=np.int32) % 5, 5)[1] / 4_000  # log2(5) = 2.3219
    2.328
    """
    import constriction

    if is_power_of_two(modulus):
        return pack(residues, index_width(modulus))
    words = range_coded(residues, constriction.stream.model.Uniform(modulus))
    return words, 8 * len(words)


def decode_residues(packet: Packet, count: int, modulus: int) -> npt.NDArray[np.int32]:
    """Return the ``count`` residues that `code_residues` wrote, or raise `IllegalPayloadError`.

    Many streams decode to something, so the residues must give the same bytes when coded again.
    """
    import constriction

    if is_power_of_two(modulus):
        width = index_width(modulus)
        (data,) = split(packet, [count * width])
        return unpack(data, count, width)
    data = np.frombuffer(packet.data, dtype=np.uint8)
    if len(data) % 4:
        raise IllegalPayloadError(f"coded residues must fill 32-bit words, got {len(data)} bytes")
    residues = range_decoded(data, constriction.stream.model.Uniform(modulus), count)
    if not np.array_equal(code_residues(residues, modulus)[0], data):
        raise IllegalPayloadError("coded residues must be the code of what they decode to")
    return residues


def is_power_of_two(modulus: int) -> bool:
    """Return whether residues of this modulus fill whole bits."""
    return modulus & (modulus - 1) == 0


def range_coded(symbols: npt.NDArray[np.int32], model: Any) -> Bytes:
    """Return the 32-bit words of a range coder, as bytes."""
    import constriction

    coder = constriction.stream.queue.RangeEncoder()
    coder.encode(symbols, model)
    words: Bytes = coder.get_compressed().astype("<u4").view(np.uint8)
    return words


def range_decoded(data: Bytes, model: Any, count: int) -> npt.NDArray[np.int32]:
    """Return ``count`` symbols that whole words decode to, or raise `IllegalPayloadError`."""
    import constriction

    words = np.frombuffer(data.tobytes(), dtype="<u4").astype(np.uint32)
    try:
        symbols: npt.NDArray[np.int32]
        symbols = constriction.stream.queue.RangeDecoder(words).decode(model, count)
    except Exception as error:  # foreign code over foreign bytes: whatever it raises ends here
        raise IllegalPayloadError(f"coded symbols do not decode: {error}") from error
    return symbols


@lru_cache(maxsize=64)
def _byte_model(p: float) -> Any:
    """Return the model of eight independent bits, 1 with probability ``p``, as one symbol."""
    import constriction

    ones = np.bitwise_count(np.arange(256, dtype=np.uint8)).astype(np.float64)
    chances = np.exp(ones * math.log(p) + (8 - ones) * math.log1p(-p))
    return constriction.stream.model.Categorical(chances, perfect=False)
