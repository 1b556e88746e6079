"""Messages that are kept as their packets, for rules that must look at all of them again."""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from fedbench.payload.base import Payload
from fedbench.payload.folded import FoldedMessages
from fedbench.payload.packets import Packet

BYTES = 1 << 29  # of values that are decoded at once


@dataclass(frozen=True, eq=False)
class KeptMessages:
    """``n`` legal messages as their packets, whose values are decoded again where they are read.

    A mask has one bit a weight in its packet, and 32 as a row of `values`. A `Patch`, whose packet
    says what changes of a vector that both ends remember, cannot be kept so.

    Args:
        form: No messages, of the same alphabet and form.
        packets: Packets of the messages, in their order.
        at_once: Number of messages that are decoded at once.
        width: Columns of values that are decoded at once; by default as many as `BYTES` hold.
    """

    form: Payload
    packets: Sequence[Packet]
    at_once: int = 8
    width: int | None = None

    def __len__(self) -> int:
        return len(self.packets)

    def copied(self) -> Self:
        """Return the same messages, which nobody can write into."""
        return self

    def take(self, rows: Tensor) -> Self:
        """Return the messages of these rows, which are indices."""
        return dataclasses.replace(self, packets=[self.packets[row] for row in rows.tolist()])

    def parts(self) -> Iterator[Payload]:
        """Decode all messages, a few at a time."""
        for start in range(0, len(self), self.at_once):
            some = self.packets[start : start + self.at_once]
            decoded, _ = self.form.decode(some, self.form.spec, self.form.values().device)
            assert decoded is not None  # they were accepted
            yield decoded

    def columns(self) -> Iterator[Tensor]:
        """Return `values` ``(n, t)`` of a few columns at a time; each time all are decoded."""
        form = self.form.values()
        k = form.shape[1]
        width = self.width or max(BYTES // max(form.element_size() * len(self), 1), 1)
        for start in range(0, k, width):
            tile = form.new_empty(len(self), min(width, k - start))
            row = 0
            for part in self.parts():
                tile[row : row + len(part)] = part.values()[:, start : start + width]
                row += len(part)
            yield tile

    def mean(self) -> Tensor:
        """Return the mean ``(k,)`` of `values`, all of the same weight, summed in float64."""
        sums = FoldedMessages.none(self.form)
        for part in self.parts():
            sums += FoldedMessages.of(part, torch.ones(len(part), dtype=torch.float64))
        return sums.mean()
