"""Messages that were added up as they came, so that a cohort of any size fits in memory."""

import dataclasses
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from fedbench.core.copies import copied_to
from fedbench.core.tiling import column_sums, tiles
from fedbench.payload.base import Payload
from fedbench.payload.bits import BinaryMasks, bits_of, has_bits_alone, numbers_of


@dataclass(frozen=True, eq=False)
class FoldedMessages:
    """Sums of ``n`` messages, all that is left of them: no single one can be read.

    Sums are float64: exact for bits and rankings, to 1e-16 for floats. A sum holds NaN or infinity
    where a message does, so whoever needs finite ones folds these apart.

    Args:
        form: No messages, of the same alphabet and form.
        count: Number of the messages.
        total: ``(k,)`` float64, the sum of their `values`.
        weight: Sum of the messages' weights.
        weighted: ``(k,)`` float64, the sum of their `values`, each times its weight; None where all
            weights are one.
        squares: ``(k,)`` float64, the sum of their squared `values`; None where nobody reads it.
    """

    form: Payload
    count: int
    total: Tensor
    weight: float
    weighted: Tensor | None = None
    squares: Tensor | None = None

    @classmethod
    def of(cls, messages: Payload, weights: Tensor) -> Self:
        """Fold some messages with these weights ``(n,)`` float64."""
        form = messages.take([])
        alike = bool((weights == 1).all())
        if has_bits_alone(messages) and alike:
            ones = column_sums(bits_of(messages), torch.int32).to(torch.float64)
            total = 2 * ones - len(messages) if _signed(messages) else ones
            return cls(form, len(messages), total, float(len(messages)))
        x = messages.values()
        total = column_sums(x, torch.float64)
        weighted = None if alike else copied_to(weights, x.device) @ x.to(torch.float64)
        return cls(form, len(messages), total, float(weights.sum()), weighted)

    @classmethod
    def none(cls, form: Payload) -> Self:
        """Return the sums of no message of this form."""
        x = form.take([]).values()
        zeros = torch.zeros(x.shape[1], dtype=torch.float64, device=x.device)
        return cls(form, 0, zeros, 0.0)

    def __len__(self) -> int:
        return self.count

    def __add__(self, other: Self) -> Self:
        """Return the sums of both."""
        apart = self.weighted is not None or other.weighted is not None
        return dataclasses.replace(
            self,
            count=self.count + other.count,
            total=self.total + other.total,
            weight=self.weight + other.weight,
            weighted=self._weighted + other._weighted if apart else None,
            squares=_both(self.squares, other.squares),
        )

    @property
    def _weighted(self) -> Tensor:
        return self.total if self.weighted is None else self.weighted

    def copied(self) -> Self:
        """Return the same sums, in memory of their own."""
        weighted = None if self.weighted is None else self.weighted.clone()
        squares = None if self.squares is None else self.squares.clone()
        own = self.total.clone()
        return dataclasses.replace(self, total=own, weighted=weighted, squares=squares)

    def with_squares(self, messages: Payload) -> Self:
        """Return the same sums of these ``messages``, and that of their squares."""
        squares = [
            tile.to(torch.float64).square_().sum(dim=0) for (tile,) in tiles(messages.values())
        ]
        return dataclasses.replace(self, squares=torch.cat(squares))

    def unweighted(self) -> Self:
        """Return the sums of the same messages, each with the weight one."""
        return dataclasses.replace(self, weight=float(self.count), weighted=None)

    def mean(self, weighted: bool = False) -> Tensor:
        """Return the mean ``(k,)``, of `values`' type if that is floating, otherwise float64.

        It overflows where that of rows does: their plain sum may, a sum of shares of them may not.
        """
        dtype = self.form.values().dtype
        dtype = dtype if dtype.is_floating_point else torch.float64
        if weighted:
            return (self._weighted / self.weight).to(dtype)
        return self.total.to(dtype) / self.count

    def deviation(self) -> Tensor:
        """Return the standard deviation ``(k,)`` float64 of at least two messages, ddof 1.

        Where all say the same it may be the rounding of the sums instead of 0.
        """
        assert self.squares is not None
        spread = self.squares - self.total.square() / self.count
        return (spread.clamp_min_(0) / (self.count - 1)).sqrt_()

    def ones(self) -> Tensor:
        """Return how many of the messages say 1, ``(d,)`` float64; of masks and signs only."""
        d = bits_of(self.form).shape[1]
        return (self.total[:d] + self.count) / 2 if _signed(self.form) else self.total[:d]

    def bits_as_values(self, bits: Tensor) -> Tensor:
        """Return the numbers, float32, that these ``bits`` stand for in the messages."""
        return numbers_of(bits, _signed(self.form))


def _both(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    return None if first is None or second is None else first + second


def _signed(messages: Payload) -> bool:
    return not isinstance(messages, BinaryMasks) or messages.signed
