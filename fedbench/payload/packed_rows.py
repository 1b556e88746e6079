"""Symbols of a fixed number of bits, packed on the device that they lie on: bytes are copied."""

import dataclasses
from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from fedbench.core.copies import copied_to, fetched, staging
from fedbench.core.devices import accelerated
from fedbench.core.errors import IllegalPayloadError
from fedbench.core.threads import each
from fedbench.payload.base import Payload, Spec
from fedbench.payload.packets import BitString, Bytes, Packet, join, pack, split


def pack_rows(symbols: Tensor, width: int) -> Tensor:
    """Return the bytes that `pack` makes of each row ``(n, count)``, uint8, on the same device.

    Eight symbols are ``width`` bytes, each of which takes bits of a few symbols.

    >>> pack_rows(torch.tensor([[5, 2, 7], [0, 0, 1]]), 3).tolist()  # 101 010 111, 000 000 001
    [[171, 128], [0, 128]]
    """
    n, count = symbols.shape
    groups = torch.nn.functional.pad(symbols, (0, -count % 8)).reshape(n, -(-count // 8), 8)
    data = groups.new_zeros(n, groups.shape[1], width, dtype=torch.uint8)
    for byte in range(width):
        stop = 8 * (byte + 1)
        for i in range(8 * byte // width, -(-stop // width)):
            shift = (i + 1) * width - stop  # how far the symbol reaches beyond this byte's end
            symbol = groups[:, :, i]
            bits = symbol >> shift if shift > 0 else symbol.to(torch.uint8) << -shift
            data[:, :, byte].bitwise_or_(bits.to(torch.uint8))
    return data.flatten(1)[:, : -(-count * width // 8)]


def unpack_bits(data: Tensor, count: int) -> Tensor:
    """Return the rows ``(n, count)`` bool that `pack_rows` packed with one bit a symbol."""
    if not accelerated(data.device):
        bits = np.unpackbits(data.numpy(), axis=1, count=count)
        return torch.from_numpy(bits.view(np.bool_))
    places = torch.arange(7, -1, -1, dtype=torch.uint8, device=data.device)
    return (data[:, :, None] >> places & 1).flatten(1)[:, :count].to(torch.bool)


def unpack_rows(data: Tensor, count: int, width: int) -> Tensor:
    """Return the rows ``(n, count)`` int32 that `pack_rows` packed, ``width`` bits a symbol.

    >>> unpack_rows(torch.tensor([[171, 128], [0, 128]], dtype=torch.uint8), 3, 3).tolist()
    [[5, 2, 7], [0, 0, 1]]
    """
    n = len(data)
    eighths = -(-count // 8)
    padded = torch.nn.functional.pad(data, (0, eighths * width - data.shape[1]))
    groups = padded.reshape(n, eighths, width)
    symbols = torch.zeros(n, eighths, 8, dtype=torch.int32, device=data.device)
    for i in range(8 if width else 0):
        stop = (i + 1) * width
        symbol = torch.zeros(n, eighths, dtype=torch.int32, device=data.device)
        for byte in range(i * width // 8, -(-stop // 8)):
            shift = stop - 8 * (byte + 1)  # how far the byte is from the symbol's end
            bits = groups[:, :, byte].to(torch.int32)
            symbol.bitwise_or_(bits << shift if shift >= 0 else bits >> -shift)
        symbols[:, :, i] = symbol.bitwise_and_((1 << width) - 1)  # without those of another one
    return symbols.flatten(1)[:, :count]


def strings_of(packets: Sequence[Packet], lengths: list[int]) -> list[list[Bytes] | None]:
    """Cut each packet into bit strings, see `split`; None for one that has another length."""

    def strings(packet: Packet) -> list[Bytes] | None:
        try:
            return split(packet, lengths)
        except IllegalPayloadError:
            return None

    return list(map(strings, packets))


def stacked_bytes(rows: Sequence[list[Bytes]], device: torch.device) -> Tensor:
    """Return the bit strings of each row one after the other, ``(n, bytes)`` on the device."""
    width = sum(map(len, rows[0]))
    here = staging(torch.Size((len(rows), width)), torch.uint8, device)
    for out, strings in zip(here.numpy(), rows, strict=True):
        np.concatenate(strings, out=out)
    return copied_to(here, device)


class PackedRows(Payload):
    """Messages with one field of symbols of a fixed number of bits, beside what else is sent."""

    packed_field: ClassVar[str]  # its name

    def columns(self) -> list[tuple[int, int]]:
        """Return how many symbols follow one another, and the bits of each; one bit by default."""
        return [(getattr(self, self.packed_field).shape[1], 1)]

    def parts_around(self, packed: list[BitString]) -> list[BitString]:
        """Return the parts of the one message; ``packed`` has a bit string for each of `columns`.

        What is not packed is on the CPU; the symbols themselves may be on an accelerator.
        """
        return packed

    def _symbols(self) -> list[tuple[Tensor, int]]:
        """Return the symbols ``(n, count)`` of each of `columns`, and their bits."""
        counts, widths = zip(*self.columns(), strict=True)
        symbols = torch.split(getattr(self, self.packed_field), list(counts), dim=1)
        return list(zip(symbols, widths, strict=True))

    def parts(self) -> list[BitString]:
        return self.parts_around([pack(x[0].numpy(), width) for x, width in self._symbols()])

    def encode(self) -> list[Packet]:
        """Return one packet per row; an accelerator packs all rows, which are copied at once."""
        if not accelerated(getattr(self, self.packed_field).device):
            return super().encode()
        strings = [pack_rows(x, width) for x, width in self._symbols()]
        ends = np.cumsum([string.shape[1] for string in strings])[:-1]
        bits = [count * width for count, width in self.columns()]
        tensors = self.travelling()
        symbols = tensors.pop(self.packed_field)
        here = {name: fetched(x) for name, x in tensors.items()} | {self.packed_field: symbols}
        packed = fetched(torch.cat(strings, 1)).numpy()

        def packet(row: int) -> Packet:
            data = packed[row]
            own = dataclasses.replace(self, **{name: x[row : row + 1] for name, x in here.items()})
            return join(own.parts_around(list(zip(np.split(data, ends), bits, strict=True))))

        rows = range(len(packed))
        return each(packet, rows) if self.shared_out else list(map(packet, rows))


class PackedBits(PackedRows):
    """Messages whose packed field has bits, unpacked for all rows on the device that gets them."""

    @classmethod
    @abstractmethod
    def read_row(cls, packet: Packet, spec: Spec) -> Self:
        """Return the message of one packet, its bits still packed: ``(1, ceil(d / 8))`` uint8."""

    def _unpacked(self, spec: Spec) -> Self:
        (d,) = spec[self.packed_field]
        bits = unpack_bits(getattr(self, self.packed_field), d)
        return dataclasses.replace(self, **{self.packed_field: bits})

    @classmethod
    def decode_row(cls, packet: Packet, spec: Spec) -> Self:
        return cls.read_row(packet, spec)._unpacked(spec)

    @classmethod
    def decode(
        cls, packets: Sequence[Packet], spec: Spec, device: torch.device | str = "cpu"
    ) -> tuple[Self | None, Tensor]:
        packed, accepted = super().decode(packets, spec, device)
        return (None if packed is None else packed._unpacked(spec)), accepted
