"""Bits to bytes and back: what a message costs is counted here, on the bytes themselves."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedbench.errors import IllegalPayloadError

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Packet:
    """One message: its bytes, and how many bits of them are information.

    Fewer than eight bits of zero padding end the last byte; they are not counted.
    """

    data: bytes
    bits: int

    @classmethod
    def raw(cls, data: bytes) -> Packet:
        """Bytes as an attacker hands them in: every bit of them is sent."""
        return cls(data, 8 * len(data))


def pack(symbols: npt.NDArray[np.integer], width: int) -> tuple[Bytes, int]:
    """Big-endian ``width``-bit symbols, one after the other: the bytes and the number of bits.

    >>> data, bits = pack(np.array([5, 2, 7]), 3)  # 101 010 111
    >>> data.tobytes().hex(), bits
    ('ab80', 9)
    """
    count = len(symbols)
    groups = np.zeros((-(-count // 8), 8), dtype=np.uint32)
    groups.reshape(-1)[:count] = symbols
    out = np.zeros((len(groups), width), dtype=np.uint8)  # eight symbols fill `width` bytes
    for i in range(8):
        start, stop = i * width, (i + 1) * width
        for byte in range(start // 8, -(-stop // 8)):
            shift = 8 * (byte + 1) - stop  # how far the symbol sits left of this byte's end
            column = groups[:, i]
            piece = column << np.uint32(shift) if shift >= 0 else column >> np.uint32(-shift)
            out[:, byte] |= piece.astype(np.uint8)
    bits = count * width
    return out.reshape(-1)[: -(-bits // 8)], bits


def unpack(data: Bytes, count: int, width: int) -> npt.NDArray[np.int32]:
    """The ``count`` symbols that `pack` wrote."""
    groups = -(-count // 8)
    padded = np.zeros(groups * width, dtype=np.uint8)
    padded[: len(data)] = data
    table = padded.reshape(groups, width)
    out = np.zeros((groups, 8), dtype=np.uint32)
    for i in range(8):
        start, stop = i * width, (i + 1) * width
        for byte in range(start // 8, -(-stop // 8)):
            shift = 8 * (byte + 1) - stop
            column = table[:, byte].astype(np.uint32)
            out[:, i] |= column >> np.uint32(shift) if shift >= 0 else column << np.uint32(-shift)
    if width < 32:
        out &= np.uint32((1 << width) - 1)
    return out.reshape(-1)[:count].astype(np.int32)


def join(parts: list[tuple[Bytes, int]]) -> Packet:
    """Bit strings one after the other, without padding between them."""
    bits = sum(length for _, length in parts)
    if all(length % 8 == 0 for _, length in parts[:-1]):
        return Packet(b"".join(data.tobytes() for data, _ in parts), bits)
    unpacked = [np.unpackbits(data, count=length) for data, length in parts]
    return Packet(np.packbits(np.concatenate(unpacked)).tobytes(), bits)


def split(packet: Packet, lengths: list[int]) -> list[Bytes]:
    """Cut a packet into bit strings of these lengths, each from the start of a byte.

    Raises:
        IllegalPayloadError: the packet is not exactly that long, or its padding is not zero.
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
    """Bits of one index below ``count``: the smallest whole number that suffices.

    >>> [index_width(n) for n in (1, 2, 288, 1605632)]
    [0, 1, 9, 21]
    """
    return (count - 1).bit_length()
