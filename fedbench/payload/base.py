"""The contract of everything that travels."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import torch
from torch import Tensor

from fedbench.core.errors import IllegalPayloadError
from fedbench.core.tiling import finite_rows
from fedbench.payload.packets import Packet

Spec = dict[str, Any]  # the public form of a message: what both ends know before it is sent
Checks = Literal["none", "finite", "range"]


@dataclass(frozen=True, eq=False)
class Payload(ABC):
    """``n`` messages of one alphabet: a frozen dataclass of tensors, first dimension ``n``.

    A field that holds no tensor is part of the public form: both ends know it, it is not sent.
    ``values`` lifts any alphabet to real rows ``(n, k)``, `nearest` projects back to the closest
    legal messages, so any real-valued attack or defense runs on every alphabet.
    """

    @property
    def bounded(self) -> bool:
        """True if the alphabet itself limits how large `values` can be."""
        return False

    def __len__(self) -> int:
        return len(next(iter(self._tensors().values())))

    def _tensors(self) -> dict[str, Tensor]:
        fields = ((f.name, getattr(self, f.name)) for f in dataclasses.fields(self))
        return {name: value for name, value in fields if isinstance(value, Tensor)}

    @property
    def spec(self) -> Spec:
        """The public form: every field that is no tensor, and the widths of those that are."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {
            name: tuple(value.shape[1:]) if isinstance(value, Tensor) else value
            for name, value in fields.items()
        }

    def copied(self) -> Self:
        """The same messages, in memory of their own."""
        copies = {name: x.clone() for name, x in self._tensors().items()}
        return dataclasses.replace(self, **copies)

    def take(self, rows: Tensor | Sequence[int]) -> Self:
        """The messages of these rows, copied; negative ones count from the end."""
        index = torch.as_tensor(rows, dtype=torch.long)
        index = torch.where(index < 0, index + len(self), index)
        taken = {name: x.index_select(0, index.to(x.device)) for name, x in self._tensors().items()}
        return dataclasses.replace(self, **taken)

    def put(self, rows: Tensor | Sequence[int], other: Self) -> Self:
        """A copy in which these rows are ``other``'s messages."""
        require_same_form(self, other)
        index = torch.as_tensor(rows, dtype=torch.long)
        tensors, new = self._tensors(), other._tensors()
        if len(index) != len(other):
            raise IllegalPayloadError(f"put: {len(index)} rows for {len(other)} messages")
        merged = {
            name: x.index_copy(0, index.to(x.device), new[name].to(x))
            for name, x in tensors.items()
        }
        return dataclasses.replace(self, **merged)

    @abstractmethod
    def check(self) -> None:
        """Raise `IllegalPayloadError` unless every row is legal: shape, dtype, alphabet."""

    @abstractmethod
    def values(self) -> Tensor:
        """``(n, k)``: float32, or exact int32 for rankings."""

    @abstractmethod
    def nearest(self, values: Tensor) -> Self:
        """The legal messages closest to ``values (n, k)`` in L2, with this payload's headers."""

    @property
    def aligned(self) -> bool:
        """True if, where both are as wide, a column of `values` is that column of the updates."""
        return True

    def opposite(self, values: Tensor, scale: float = 1.0) -> Tensor:
        """``values``, mirrored at the middle of the alphabet and ``scale`` times as far from it."""
        return -scale * values

    def origin(self) -> Tensor:
        """``(k,)``: `values` in the middle of the alphabet, as zeros of floats and halves of bits.

        Norms and angles of messages are measured from here.
        """
        return torch.zeros(self.values().shape[1], device=self.values().device)

    def entropy(self) -> Tensor | None:
        """``(n,)`` bits: the empirical entropy of a message's symbols, where that is an estimate.

        Beside the measured bits, never instead of them.
        """
        return None

    def headers(self) -> dict[str, Tensor]:
        """What a client chooses beside its symbols: scales, seeds, indices, each ``(n, ...)``.

        The record compares the adversary's with those of its clients as if honest.
        """
        return {}

    def in_range(self) -> Tensor:
        """``(n,)`` bool: False for a row that no honest encoder sends, whatever its input.

        A scale of any size is that of some input, so a large one is in range.
        """
        return torch.ones(len(self), dtype=torch.bool)

    @abstractmethod
    def encode(self) -> list[Packet]:
        """One packet per row; canonical: equal messages have equal bytes."""

    @classmethod
    @abstractmethod
    def decode_row(cls, packet: Packet, spec: Spec) -> Self:
        """One message. Raises `IllegalPayloadError` for bytes that no legal message has."""

    @classmethod
    def decode(
        cls, packets: Sequence[Packet], spec: Spec, device: torch.device | str = "cpu"
    ) -> tuple[Self | None, Tensor]:
        """The legal messages (None if there are none), and ``(n,)`` bool: which were accepted."""
        accepted = torch.zeros(len(packets), dtype=torch.bool)
        rows = []
        for i, packet in enumerate(packets):
            try:
                rows.append(cls.decode_row(packet, spec))
            except IllegalPayloadError:
                continue
            accepted[i] = True
        if not rows:
            return None, accepted
        columns = [row._tensors() for row in rows]
        stacked = {
            name: torch.cat([column[name] for column in columns]).to(device) for name in columns[0]
        }
        return dataclasses.replace(rows[0], **stacked), accepted

    def receive(
        self, packets: Sequence[Packet], checks: Checks, device: torch.device | str = "cpu"
    ) -> tuple[Self, Tensor]:
        """Messages of this form: those that decode and pass ``checks``, and ``(n,)`` bool which."""
        received, accepted = self.decode(packets, self.spec, device)
        if received is None:
            return self.take([]), accepted
        good = received.passes(checks)
        accepted[accepted.clone()] = good
        if bool(good.all()):
            return received, accepted
        return received.take(good.nonzero()[:, 0]), accepted

    def passes(self, checks: Checks) -> Tensor:
        """``(n,)`` bool: rows that the server's ``checks`` let through.

        ``none``: all; ``finite``: no NaN, no infinity; ``range``: also `in_range`.
        """
        rows = torch.ones(len(self), dtype=torch.bool)
        if checks == "none":
            return rows
        for x in self._tensors().values():
            if x.is_floating_point():
                rows &= finite_rows(x).cpu()
        return rows & self.in_range().cpu() if checks == "range" else rows


def require_same_form(a: Payload, b: Payload) -> None:
    """Raise `IllegalPayloadError` unless both have one type and one public form."""
    if type(a) is not type(b) or a.spec != b.spec:
        raise IllegalPayloadError(
            f"messages must be {type(a).__name__} of form {a.spec}, "
            f"got {type(b).__name__} of form {b.spec}"
        )


def same(a: Payload, b: Payload) -> bool:
    """Equal type and equal bytes (dataclasses of tensors compare by identity)."""
    return type(a) is type(b) and a.spec == b.spec and a.encode() == b.encode()


def identical(a: Payload, b: Payload) -> bool:
    """Equal type, form and tensors, without the bytes; NaN is equal to nothing."""
    if type(a) is not type(b) or a.spec != b.spec:
        return False
    mine, theirs = a._tensors(), b._tensors()
    return all(torch.equal(x, theirs[name]) for name, x in mine.items())


def require_width(name: str, x: Tensor, width: int, dtype: torch.dtype) -> None:
    """Raise `IllegalPayloadError` unless ``x`` is ``(n, width)`` of ``dtype``."""
    if x.ndim != 2 or x.shape[1] != width or x.dtype != dtype:
        raise IllegalPayloadError(
            f"{name} must be (n, {width}) {dtype}, got {tuple(x.shape)} {x.dtype}"
        )
