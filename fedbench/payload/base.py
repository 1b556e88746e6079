"""The contract of every message: alphabets, their real values and their bytes."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from fedbench.core.blame import Hook
from fedbench.core.choices import Checks
from fedbench.core.copies import copied_to, fetched, stacked_on
from fedbench.core.devices import accelerated
from fedbench.core.errors import IllegalPayloadError, PluginError
from fedbench.core.threads import each
from fedbench.core.tiling import finite_rows
from fedbench.payload.packets import BitString, Packet, join

Spec = dict[str, Any]  # the public form of a message: what both ends know before it is sent


def row_numbers(rows: Tensor | Sequence[int], n: int) -> Tensor:
    """Return the numbers of some of ``n`` rows, int64; a mask would else be read as rows 0 and 1.

    >>> row_numbers([True, False, True], 3), row_numbers([2, -1], 3)
    (tensor([0, 2]), tensor([ 2, -1]))
    """
    index = torch.as_tensor(rows)
    if index.dtype == torch.bool:
        return torch.arange(n, device=index.device)[index]
    return index.to(torch.long)


@cache
def _fields(alphabet: type["Payload"]) -> tuple[str, ...]:
    """Return the names of an alphabet's fields, which a round asks for a hundred times."""
    return tuple(field.name for field in dataclasses.fields(alphabet))


@dataclass(frozen=True, eq=False)
class Payload(ABC):
    """``n`` messages of one alphabet: a frozen dataclass of tensors, first dimension ``n``.

    A field that holds no tensor is part of the public form: both ends know it, it is not sent.
    """

    # Where both are as wide, is a column of `values` that column of the updates?
    aligned: ClassVar[bool] = True
    # Do threads share out the rows? They gain where coding a long row is NumPy's work, which frees
    # the interpreter's lock; a range coder holds it, and two threads are slower than one.
    shared_out: ClassVar[bool] = False

    @property
    def bounded(self) -> bool:
        """True if the alphabet itself limits how large `values` can be."""
        return False

    def __len__(self) -> int:
        fields = (getattr(self, name) for name in _fields(type(self)))
        return next(value for value in fields if isinstance(value, Tensor)).shape[0]

    def _tensors(self) -> dict[str, Tensor]:
        fields = ((name, getattr(self, name)) for name in _fields(type(self)))
        return {name: value for name, value in fields if isinstance(value, Tensor)}

    @property
    def spec(self) -> Spec:
        """Public form: every field that is no tensor, and the widths of those that are."""
        widths = {name: tuple(x.shape[1:]) for name, x in self._tensors().items()}
        return {name: getattr(self, name) for name in _fields(type(self))} | widths

    def copied(self) -> Self:
        """Return the same messages, in memory of their own."""
        return dataclasses.replace(self, **{name: x.clone() for name, x in self._tensors().items()})

    def take(self, rows: Tensor | Sequence[int]) -> Self:
        """Return the messages of these rows, copied; negative ones count from the end.

        Rows are indices, or a mask ``(n,)`` bool.
        """
        index = row_numbers(rows, len(self))
        index = torch.where(index < 0, index + len(self), index)
        tensors = self._tensors().items()
        taken = {name: x.index_select(0, copied_to(index, x.device)) for name, x in tensors}
        return dataclasses.replace(self, **taken)

    def put(self, rows: Tensor | Sequence[int], other: Self) -> Self:
        """Return a copy in which these rows, indices or a mask, are ``other``'s messages."""
        require_same_form(self, other)
        index = row_numbers(rows, len(self))
        if len(index) != len(other):
            raise IllegalPayloadError(f"put: {len(index)} rows for {len(other)} messages")
        new = other._tensors()
        old = self._tensors().items()
        merged = {name: x.index_copy(0, index.to(x.device), new[name].to(x)) for name, x in old}
        return dataclasses.replace(self, **merged)

    @abstractmethod
    def check(self) -> None:
        """Raise `IllegalPayloadError` unless every row is legal: shape, dtype, alphabet."""

    def check_form(self) -> None:
        """Raise `IllegalPayloadError` unless types and shapes are legal, whatever the symbols are.

        Messages of nobody are checked, on the CPU: nothing waits for another device.
        """
        forms = {name: (x.shape[1:], x.dtype) for name, x in self._tensors().items()}
        nobody = {
            name: torch.empty(0, *shape, dtype=dtype) for name, (shape, dtype) in forms.items()
        }
        dataclasses.replace(self, **nobody).check()

    @abstractmethod
    def values(self) -> Tensor:
        """Return real rows ``(n, k)``: float32, or exact int32 for rankings."""

    @abstractmethod
    def nearest(self, values: Tensor) -> Self:
        """Return the legal messages closest to ``values (n, k)`` in L2, with the same headers."""

    def fixed(self) -> tuple[int, float]:
        """Return how many first columns of `values` cannot be mirrored, and their middle."""
        return 0, 0.0

    def opposite(self, values: Tensor, scale: float = 1.0) -> Tensor:
        """Return ``values``, mirrored at the middle and ``scale`` times as far from it.

        The `fixed` columns stay.
        """
        columns, _ = self.fixed()
        mirrored = -scale * values
        mirrored[:, :columns] = values[:, :columns]
        return mirrored

    def origin(self) -> Tensor:
        """Return the `values` ``(k,)`` from which norms and angles are measured: the middle."""
        values = self.values()
        columns, middle = self.fixed()
        origin = torch.zeros(values.shape[1], device=values.device)
        origin[:columns] = middle
        return origin

    def entropy(self) -> Tensor | None:
        """Return the empirical entropy ``(n,)`` of a message's symbols in bits, if it estimates."""
        return None

    def headers(self) -> dict[str, Tensor]:
        """Return the client's choices beside its symbols: scales, seeds, indices, ``(n, ...)``."""
        return {}

    def in_range(self) -> Tensor:
        """Return ``(n,)`` bool: False for a row that no honest encoder sends, whatever its input.

        A scale of any size is that of some input, so a large one is in range.
        """
        return torch.ones(len(self), dtype=torch.bool)

    def travelling(self) -> dict[str, Tensor]:
        """Return the tensors that are sent, by the names of their fields."""
        return self._tensors()

    def parts(self) -> list[BitString]:
        """Return the one message, which is on the CPU, as bit strings in the order of the wire."""
        raise NotImplementedError

    def encode(self) -> list[Packet]:
        """Return one packet per row; canonical: equal messages have equal bytes."""
        here = {name: fetched(x) for name, x in self.travelling().items()}

        def packet(row: int) -> Packet:
            own = {name: x[row : row + 1] for name, x in here.items()}
            return join(dataclasses.replace(self, **own).parts())

        rows = range(len(self))
        return each(packet, rows) if self.shared_out else list(map(packet, rows))

    @classmethod
    @abstractmethod
    def decode_row(cls, packet: Packet, spec: Spec) -> Self:
        """Return the message of one packet; `IllegalPayloadError` if none has its bytes."""

    @classmethod
    def read_row(cls, packet: Packet, spec: Spec) -> Self:
        """Return the message of one packet in the form in which `decode` stacks the rows."""
        return cls.decode_row(packet, spec)

    @classmethod
    def decode(
        cls, packets: Sequence[Packet], spec: Spec, device: torch.device | str = "cpu"
    ) -> tuple[Self | None, Tensor]:
        """Return the legal messages (None if there are none), and which were accepted, ``(n,)``.

        `PluginError` for a ``decode_row`` that raises another error than `IllegalPayloadError`, or
        returns messages of several widths.
        """
        decode_one = partial(cls._decoded, spec=spec)
        shared = cls.shared_out
        decoded = each(decode_one, packets) if shared else list(map(decode_one, packets))
        accepted = torch.tensor([row is not None for row in decoded], dtype=torch.bool)
        rows = [row._tensors() for row in decoded if row is not None]
        if not rows:
            return None, accepted
        first = next(row for row in decoded if row is not None)
        widths = _widths(rows[0])
        for row in rows[1:]:
            if _widths(row) != widths:
                raise _misread(first, _widths(row))
        stacked = {
            name: stacked_on([row[name] for row in rows], torch.device(device)) for name in rows[0]
        }
        return dataclasses.replace(first, **stacked), accepted

    @classmethod
    def _decoded(cls, packet: Packet, spec: Spec) -> Self | None:
        """Return the message of one packet, or None if none has its bytes."""
        with Hook(cls, "decode_row"):
            try:
                return cls.read_row(packet, spec)
            except IllegalPayloadError:
                return None

    def receive(
        self, packets: Sequence[Packet], checks: Checks, device: torch.device | str = "cpu"
    ) -> tuple[Self, Tensor]:
        """Return the messages that decode to this form and pass ``checks``, and which, ``(n,)``."""
        received, accepted = self.decode(packets, self.spec, device)
        if received is None:
            return self.take([]), accepted
        if received.spec != self.spec:
            raise _misread(self, received.spec)
        received, good = received.checked(checks)
        accepted[accepted.clone()] = good
        return received, accepted

    def checked(self, checks: Checks) -> tuple[Self, Tensor]:
        """Return the messages that pass the server's ``checks``, and which, ``(n,)`` bool."""
        good = self.passes(checks)
        return (self if bool(good.all()) else self.take(good.nonzero()[:, 0])), good

    def passes(self, checks: Checks) -> Tensor:
        """Return the rows ``(n,)`` bool that the server's ``checks`` let through.

        ``none``: all; ``finite``: no NaN, no infinity; ``range``: also `in_range`.
        """
        rows = torch.ones(len(self), dtype=torch.bool)
        if checks == "none" or not len(self):
            return rows
        floats = [x for x in self._tensors().values() if x.is_floating_point()]
        if floats:
            rows = torch.stack([finite_rows(x) for x in floats]).all(dim=0).cpu()
        return rows & self.in_range().cpu() if checks == "range" else rows


def _widths(row: dict[str, Tensor]) -> Spec:
    """Return the shapes of one message's tensors, without the row."""
    return {name: tuple(x.shape[1:]) for name, x in row.items()}


def _misread(payload: Payload, form: object) -> PluginError:
    """Return the error of an alphabet that decodes bytes which are no message of the round."""
    return Hook(payload, "decode_row").wrong(
        f"must raise IllegalPayloadError for bytes that are no message of form {payload.spec}, "
        f"got one of {form}; fedbench.payload.packets.split checks lengths"
    )


def joined(payloads: Sequence[Payload]) -> Payload:
    """Return the messages of payloads of one form in one payload, on the device of the first."""
    first, *others = payloads
    if not others:
        return first
    stacked = {
        name: torch.cat([x, *(copied_to(other._tensors()[name], x.device) for other in others)])
        for name, x in first._tensors().items()
    }
    return dataclasses.replace(first, **stacked)


def require_same_form(a: Payload, b: Payload) -> None:
    """Raise `IllegalPayloadError` unless both have one type and one public form."""
    if type(a) is not type(b) or a.spec != b.spec:
        raise IllegalPayloadError(
            f"messages must be {type(a).__name__} of form {a.spec}, "
            f"got {type(b).__name__} of form {b.spec}"
        )


def same(a: Payload, b: Payload) -> bool:
    """Return whether type, form and bytes are equal (``==`` compares identity)."""
    return type(a) is type(b) and a.spec == b.spec and a.encode() == b.encode()


def identical(a: Payload, b: Payload) -> bool:
    """Return whether type, form and tensors are equal; NaN is equal to nothing."""
    if type(a) is not type(b) or a.spec != b.spec:
        return False
    theirs = b._tensors()
    pairs = [(x, theirs[name]) for name, x in a._tensors().items()]
    elsewhere = [(x, y) for x, y in pairs if accelerated(x.device)]
    if any(x.shape != y.shape for x, y in elsewhere):
        return False
    alike = all(_equal(x, y) for x, y in pairs if not accelerated(x.device))
    if not alike or not elsewhere:
        return alike
    return bool(torch.stack([(x == y).all() for x, y in elsewhere]).all())  # one wait for all


def _equal(x: Tensor, y: Tensor) -> bool:
    """Return whether shapes and numbers of a CPU are equal; bools are compared eight at a time."""
    if x is y:  # of one tensor torch may not look for NaN
        return not (x.is_floating_point() and bool(x.isnan().any()))
    if x.dtype != torch.bool or y.dtype != torch.bool or x.shape != y.shape:
        return torch.equal(x, y)
    left = np.ascontiguousarray(x.numpy()).reshape(-1)
    right = np.ascontiguousarray(y.numpy()).reshape(-1)
    words = len(left) // 8 * 8
    wide = np.array_equal(left[:words].view(np.uint64), right[:words].view(np.uint64))
    return wide and np.array_equal(left[words:], right[words:])


def require_form(payload: Payload, **forms: tuple[int | str, torch.dtype]) -> None:
    """Raise `IllegalPayloadError` unless each named field is ``(n, width)`` of its dtype.

    A width that is a letter may be any number.
    """
    for name, (width, dtype) in forms.items():
        x: Tensor = getattr(payload, name)
        fits = x.ndim == 2 and (isinstance(width, str) or x.shape[1] == width)
        if not fits or x.dtype != dtype:
            raise IllegalPayloadError(
                f"{type(payload).__name__}.{name} must be (n, {width}) {dtype}, "
                f"got {tuple(x.shape)} {x.dtype}"
            )
