"""Messages that are kept as their packets, for rules that must look at all of them again."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from io import FileIO
from typing import Self

import torch
from torch import Tensor

from fedbench.core.order_statistics import tile_width
from fedbench.core.scratch import scratch, write_at
from fedbench.core.tiling import finite_rows, tiles
from fedbench.payload.base import Payload, row_numbers
from fedbench.payload.folded import FoldedMessages
from fedbench.payload.packets import Packet

DECODED_BYTES = 1 << 29  # of values, at once
PACKETS = "the packets of a round"


@dataclass(eq=False)
class PacketFile:
    """Packets one after the other in a file without a name.

    In memory they would lie between what training frees, which could then not be joined again.
    """

    file: FileIO = field(default_factory=lambda: scratch(PACKETS))
    size: int = 0  # bytes so far

    def put(self, packet: Packet) -> "Filed":
        """Write a packet and return its place; `ConfigError` if there is no room."""
        filed = Filed(self, self.size, len(packet.data), packet.bits)
        subject = f"{PACKETS}, {self.size} bytes so far,"
        write_at(self.file, self.size, [memoryview(packet.data)], subject)
        self.size += len(packet.data)
        return filed


@dataclass(frozen=True, eq=False)
class Filed:
    """Place of a packet in a file."""

    within: PacketFile
    start: int
    size: int
    bits: int

    def read(self) -> Packet:
        """Return the packet that was put there."""
        self.within.file.seek(self.start)
        data = b""
        while len(data) < self.size:
            data += self.within.file.read(self.size - len(data))
        return Packet(data, self.bits)


@dataclass(frozen=True, eq=False)
class KeptMessages:
    """``n`` legal messages as their packets, whose values are decoded again where they are read.

    A mask has one bit a weight in its packet, and 32 as a row of `values`. A `Patch`, whose packet
    says what changes of a vector that both ends remember, cannot be kept so.

    Args:
        form: No messages, of the same alphabet and form.
        packets: Packets of the messages, or their places in a file, in their order.
        at_once: Number of messages that are decoded at once.
        width: Columns of values that are decoded at once; by default up to `DECODED_BYTES`.
        shares: ``(m, n)`` float64 with rows that add up to one, of messages that were mixed: each
            of the ``m`` that are read is made of these shares of the ``n`` packets.
        only: Columns that `columns` returns, all by default.
    """

    form: Payload
    packets: Sequence[Packet | Filed]
    at_once: int = 8
    width: int | None = None
    shares: Tensor | None = None
    only: range | None = None

    def __len__(self) -> int:
        return len(self.packets) if self.shares is None else len(self.shares)

    def copied(self) -> Self:
        """Return the same messages, which nobody can write into."""
        return self

    def mixed(self, shares: Tensor) -> Self:
        """Return ``m`` messages, each made of these ``shares (m, n)`` of those here."""
        return dataclasses.replace(
            self, shares=shares if self.shares is None else shares @ self.shares
        )

    def take(self, rows: Tensor | Sequence[int]) -> Self:
        """Return the messages of these rows: indices, or a mask ``(n,)`` bool."""
        index = row_numbers(rows, len(self))
        if self.shares is not None:
            return dataclasses.replace(self, shares=self.shares[index.to(self.shares.device)])
        return dataclasses.replace(self, packets=[self.packets[row] for row in index.tolist()])

    def batches(self) -> Iterator[list[Packet]]:
        """Read the packets, ``at_once`` at a time."""
        for start in range(0, len(self.packets), self.at_once):
            some = self.packets[start : start + self.at_once]
            yield [packet.read() if isinstance(packet, Filed) else packet for packet in some]

    def parts(self) -> Iterator[Payload]:
        """Decode the messages of all packets, not mixed, a few at a time."""
        for read in self.batches():
            decoded, _ = self.form.decode(read, self.form.spec, self.form.values().device)
            assert decoded is not None
            assert len(decoded) == len(read)  # they were accepted
            yield decoded

    @property
    def span(self) -> range:
        """Columns that `columns` returns."""
        return range(self.form.values().shape[1]) if self.only is None else self.only

    @property
    def widest(self) -> int:
        """Most columns that are decoded at once, of whole tiles if it is one or more."""
        form = self.form.values()
        width = self.width or max(
            DECODED_BYTES // max(form.element_size() * len(self.packets), 1), 1
        )
        return width - width % min(width, tile_width(form.device))

    def shards(self, count: int) -> list[Self]:
        """Return parts of the columns for ``count`` processes, each of which decodes one at once.

        They are cut where the answers to all of them are those to the whole.
        """
        start, stop = self.span.start, self.span.stop
        step = min(self.widest, tile_width(self.form.values().device))
        turns = -(-(stop - start) // (self.widest * count))
        width = step * -(-(stop - start) // (step * count * turns))
        cuts = range(start, stop, width)
        return [dataclasses.replace(self, only=range(a, min(a + width, stop))) for a in cuts]

    def columns(self) -> Iterator[Tensor]:
        """Return `values` ``(n, t)`` of a few columns at a time; each time all are decoded.

        They lie in the same memory, so they are gone once the next ones are there.
        """
        n = len(self.packets)
        span = self.span
        width = min(self.widest, len(span))
        memory = self.form.values().new_empty(n * width)
        for start in span[:: max(width, 1)]:
            columns = min(width, span.stop - start)
            tile = memory[: n * columns].view(n, columns)
            row = 0
            for part in self.parts():
                tile[row : row + len(part)] = part.values()[:, start : start + columns]
                row += len(part)
            yield tile if self.shares is None else mixed_rows(self.shares, tile, self.finite)

    def tiles(self, *vectors: Tensor) -> Iterator[tuple[Tensor, ...]]:
        """Cut `values` and vectors ``(k,)`` into the same few columns, as `tiling.tiles` does."""
        start = self.span.start
        for x in self.columns():
            width = x.shape[1]
            yield from tiles(x, *(vector[start : start + width] for vector in vectors))
            start += width

    @cached_property
    def finite(self) -> Tensor:
        """``(n,)`` bool: packets whose values are finite, all of them."""
        return self.each(finite_rows, torch.bool)

    def each(self, f: Callable[[Tensor], Tensor], dtype: torch.dtype) -> Tensor:
        """Return ``f`` of the `values` of each packet ``(n,)``; ``f`` of some rows is ``(rows,)``.

        A list of small answers would lie between large rows, which could then not be freed.
        """
        out = torch.empty(len(self.packets), dtype=dtype, device=self.form.values().device)
        start = 0
        for part in self.parts():
            out[start : start + len(part)] = f(part.values())
            start += len(part)
        return out

    def mean(self) -> Tensor:
        """Return the mean ``(k,)`` of `values`, all of the same weight, summed in float64."""
        sums = FoldedMessages.none(self.form)
        spoilt = False
        start = 0
        each = torch.ones(len(self.packets), dtype=torch.float64)
        if self.shares is not None:
            each = (self.shares / self.shares.amax()).sum(dim=0).cpu()
            each /= each.amax()  # exactly 1 where all weigh the same
        for part in self.parts():
            weights = each[start : start + len(part)]
            read = weights > 0  # what is in none of them may be anything
            rows = part.take(read.nonzero()[:, 0])
            sums += FoldedMessages.of(rows, weights[read])
            spoilt |= self.shares is not None and not bool(finite_rows(rows.values()).all())
            start += len(part)
        mean = sums.mean(weighted=self.shares is not None)
        return torch.full_like(mean, torch.nan) if spoilt else mean  # as `mixed_rows` has it


Rows = Tensor | KeptMessages  # ``(n, k)``, or messages whose rows are decoded where they are read


def tiles_of(x: Rows, *vectors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Cut rows and vectors ``(k,)`` into the same few columns, see `fedbench.core.tiling.tiles`."""
    return x.tiles(*vectors) if isinstance(x, KeptMessages) else tiles(x, *vectors)


def mixed_rows(shares: Tensor, x: Tensor, finite: Tensor) -> Tensor:
    """Return real rows ``(m, t)``, each of these ``shares (m, n)`` of the rows of ``x (n, t)``.

    Whoever has a share of a row that is not ``finite (n,)`` has NaN in all of its own. Whole
    numbers of equal shares are summed exactly: as many votes each way are a tie.
    """
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    largest = shares.amax() if shares.numel() else shares.new_ones(())
    part = (shares / largest).to(dtype)
    rows = torch.empty(len(shares), x.shape[1], dtype=dtype, device=x.device)
    for tile, out in tiles(x, rows):
        torch.mm(part[:, finite], tile[finite].to(dtype), out=out)
        out *= largest
    rows[(shares[:, ~finite] > 0).any(dim=1)] = torch.nan
    return rows
