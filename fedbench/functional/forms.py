"""Rows in the forms that loops have them in, and answers in the form that came in.

Rules, attacks and codecs compute on one matrix ``(n, d)``. Here it is made, once, of a tensor or a
NumPy array ``(n, ...)``, of a list of vectors, or of a list of state dicts.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedbench.core.blame import shown
from fedbench.core.errors import ConfigError, require
from fedbench.core.trees import Layout
from fedbench.payload import BinaryMasks, FloatVectors, Payload, Rankings

Array: TypeAlias = npt.NDArray[Any]
Vector: TypeAlias = Tensor | Array | Mapping[str, Tensor] | Mapping[str, Array]
Rows: TypeAlias = Tensor | Array | Sequence[Vector]

WHOLE = ""  # name of the only entry of a row that is no state dict


@dataclass(frozen=True)
class Entry:
    """Form of one tensor or array of a row."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    numpy: bool

    @classmethod
    def of(cls, x: Tensor | Array, tensor: Tensor) -> Entry:
        """Return the form of what came in, and of its ``tensor``."""
        return cls(tuple(tensor.shape), tensor.dtype, tensor.device, not isinstance(x, Tensor))

    @property
    def size(self) -> int:
        """Number of coordinates of the entry."""
        return math.prod(self.shape)

    def write(self, x: Tensor, *leading: int) -> Any:
        """Return ``x`` in this form; real answers to bits or to rankings keep their own dtype."""
        real = x.is_floating_point() and not self.dtype.is_floating_point
        x = x.reshape((*leading, *self.shape)).to(self.device, x.dtype if real else self.dtype)
        return x.numpy() if self.numpy else x


@dataclass(frozen=True, eq=False)
class Form:
    """Form of rows that were read: entries that make up a vector, and those set aside.

    Args:
        entries: By name, those of a row in their order; one named `WHOLE` if it is no state dict.
        together: True if all rows came as one tensor or array.
        ordered: True if state dicts came as `OrderedDict`, as modules have them.
        aside: Integer and bool entries ``(n, ...)`` of state dicts of floats, such as counters of
            batch normalisation, which no rule can average.
    """

    entries: dict[str, Entry]
    together: bool
    ordered: bool
    aside: dict[str, Tensor]

    @property
    def layout(self) -> Layout | None:
        """Layers of a state dict, those set aside left out; None of a plain vector."""
        if WHOLE in self.entries:
            return None
        return Layout.of({n: e.shape for n, e in self.entries.items() if n not in self.aside})

    @property
    def sizes(self) -> tuple[int, ...]:
        """Numbers of coordinates of the entries that make up a vector."""
        return tuple(e.size for name, e in self.entries.items() if name not in self.aside)

    @property
    def d(self) -> int:
        """Number of coordinates of a vector."""
        return sum(self.sizes)

    def row(self, x: Tensor, source: int | None = None) -> Any:
        """Return the vector ``x (d,)`` in this form.

        Entries set aside are those of the row ``source``; None: of every number the lower median.
        """
        return self._filled(x[None], [source])[0]

    def rows(self, x: Tensor, sources: Sequence[int | None]) -> Any:
        """Return the vectors ``x (r, d)`` in this form, together if the rows came together."""
        if self.together:
            return self.entries[WHOLE].write(x, len(x))
        return self._filled(x, sources)

    def _filled(self, x: Tensor, sources: Sequence[int | None]) -> list[Any]:
        if WHOLE in self.entries:
            return [self.entries[WHOLE].write(row) for row in x]
        made = []
        for row, source in zip(x, sources, strict=True):
            parts = iter(torch.split(row, list(self.sizes)))
            values: dict[str, Any] = {}
            for name, entry in self.entries.items():
                part = self._set_aside(name, source) if name in self.aside else next(parts)
                values[name] = entry.write(part)
            made.append(OrderedDict(values) if self.ordered else values)
        return made

    def _set_aside(self, name: str, source: int | None) -> Tensor:
        rows = self.aside[name]
        if source is not None:
            return rows[source].clone()
        numbers = rows.to(torch.uint8) if rows.dtype == torch.bool else rows
        return numbers.sort(dim=0).values[(len(rows) - 1) // 2]


def tensor_of(subject: str, x: object) -> Tensor:
    """Return a tensor without a graph, which shares an array's memory where it can.

    `ConfigError` for what is none of both, and for complex numbers, texts and objects.
    """
    if isinstance(x, Tensor):
        tensor = x.detach()
    else:
        legal = isinstance(x, np.ndarray) and x.dtype.kind in "fiub"
        legal = legal and not isinstance(x, np.ma.MaskedArray)  # what lies under a mask is no row
        requirement = "tensors or NumPy arrays of numbers, vectors or state dicts of them"
        if not legal:
            raise ConfigError(f"{subject} must be {requirement}, got {shown(x)}")
        assert isinstance(x, np.ndarray)
        native = np.ascontiguousarray(x, dtype=x.dtype.newbyteorder("="))
        plain = native if native.flags.writeable else native.copy()
        narrow = plain.dtype not in (np.dtype(np.longdouble), np.dtype(np.uint64))
        require(f"{subject}.dtype", str(plain.dtype), narrow, "a dtype that torch has")
        tensor = torch.from_numpy(plain.reshape(x.shape))
    require(f"{subject}.dtype", str(tensor.dtype), not tensor.is_complex(), "real")
    dense = tensor.layout is torch.strided
    require(f"{subject}.layout", str(tensor.layout), dense, "that of x.to_dense()")
    return tensor


def read(subject: str, rows: object) -> tuple[Tensor, Form]:
    """Return rows as a matrix ``(n, d)``, and their form.

    The matrix is float64 if anything in it is, else float32, or bool of masks and int32 of rankings
    where the rows hold nothing else. `ConfigError` for rows that are empty or unlike each other.
    """
    if isinstance(rows, Tensor | np.ndarray):
        x = tensor_of(subject, rows)
        shape = tuple(x.shape)
        requirement = "(n, d) with a row for each client"
        subject = f"{subject}.shape"
        require(subject, shape, x.ndim >= 2, f"{requirement}; a list of vectors will do, too")
        require(subject, shape, min(shape) >= 1, requirement)
        form = Form({WHOLE: Entry.of(rows, x[0])}, True, False, {})
        return _computable(x.flatten(1)), form
    if not isinstance(rows, Sequence) or isinstance(rows, str | bytes) or not len(rows):
        requirement = "a tensor or array (n, d), or a list of vectors or of state dicts"
        raise ConfigError(f"{subject} must be {requirement}, one at least, got {shown(rows)}")
    columns = [_entries(f"{subject}[{i}]", row) for i, row in enumerate(rows)]
    first = columns[0]
    entries = {name: Entry.of(x, tensor) for name, (x, tensor) in first.items()}
    for i, column in enumerate(columns):
        _require_alike(f"{subject}[{i}]", column, entries, f"{subject}[0]")
    stacked = {name: torch.stack([column[name][1] for column in columns]) for name in first}
    floats = any(x.is_floating_point() for x in stacked.values())
    aside = {name: x for name, x in stacked.items() if floats and not x.is_floating_point()}
    parts = [
        x.reshape(len(x), entries[name].size) for name, x in stacked.items() if name not in aside
    ]
    x = _joined(parts)
    require(f"{subject}[0]", tuple(entries), x.shape[1] >= 1, "a row of one number at least")
    return x, Form(entries, False, isinstance(rows[0], OrderedDict), aside)


def read_row(subject: str, row: object, form: Form, like: str, real: bool = False) -> Tensor:
    """Return one vector ``(d,)`` of the form of other rows, the root's for instance.

    It goes to their device. `ConfigError` if it is not of their form; a ``real`` one, such as a
    model, has floats where they may have masks or rankings.
    """
    column = _entries(subject, row)
    wanted = form.entries
    if real:
        kinds = {n: e.dtype if n in form.aside else torch.float32 for n, e in wanted.items()}
        wanted = {name: replace(e, dtype=kinds[name]) for name, e in wanted.items()}
    _require_alike(subject, column, wanted, like, devices=False)
    device = next(iter(wanted.values())).device
    parts = [x[1].reshape(1, -1).to(device) for n, x in column.items() if n not in form.aside]
    return _joined(parts)[0]


def read_vector(subject: str, x: object) -> tuple[Tensor, Form]:
    """Return one vector ``(d,)`` of any shape, or a state dict of floats, and its form."""
    rows, form = read(subject, [x])
    if form.aside:
        names = ", ".join(form.aside)
        raise ConfigError(f"{subject} must hold floats only, got integers in {names}; leave it out")
    return rows[0], form


def message(x: Tensor, sizes: tuple[int, ...]) -> Payload:
    """Return rows as messages: bits are masks, integers are rankings of each layer."""
    if x.dtype == torch.bool:
        return BinaryMasks(x, x[:, :0].to(torch.float32))
    return FloatVectors(x) if x.is_floating_point() else Rankings(x, sizes)


def symbols(payload: Payload) -> Tensor:
    """Return the rows ``(n, d)`` that `message` made these messages of."""
    if isinstance(payload, BinaryMasks):
        return payload.mask
    return payload.symbols if isinstance(payload, Rankings) else payload.values()


def _entries(subject: str, row: object) -> dict[str, tuple[Any, Tensor]]:
    """Return what came in and its tensor, by the names of a state dict."""
    if isinstance(row, Mapping):
        named = {str(name): (x, tensor_of(f"{subject}[{name!r}]", x)) for name, x in row.items()}
        require(subject, len(named), len(named) >= 1, "a state dict with an entry")
        return named
    x = tensor_of(subject, row)
    require(f"{subject}.shape", tuple(x.shape), x.ndim >= 1, "of one dimension or more")
    return {WHOLE: (row, x)}


def _require_alike(
    subject: str,
    column: dict[str, tuple[Any, Tensor]],
    wanted: dict[str, Entry],
    like: str,
    devices: bool = True,
) -> None:
    """Raise `ConfigError` unless names, shapes and kinds are those of another row."""
    if list(column) != list(wanted):
        got = sorted(set(column) ^ set(wanted)) or list(column)
        raise ConfigError(f"{subject} must have the entries of {like}, which differ in {got[0]!r}")
    for name, (_, x) in column.items():
        entry = wanted[name]
        place = f"{subject}[{name!r}]" if name else subject
        require(
            f"{place}.shape", tuple(x.shape), x.shape == entry.shape, f"{entry.shape} as {like}"
        )
        alike = x.is_floating_point() == entry.dtype.is_floating_point
        require(f"{place}.dtype", str(x.dtype), alike, f"{entry.dtype} as {like}")
        here = not devices or x.device == entry.device
        require(f"{place}.device", str(x.device), here, f"{entry.device} as {like}")


def _joined(parts: list[Tensor]) -> Tensor:
    """Return layers ``(n, d_l)`` as one matrix of the widest dtype."""
    dtypes = {x.dtype for x in parts}
    if len(dtypes) > 1 and all(dtype.is_floating_point for dtype in dtypes):
        dtype = torch.float64 if torch.float64 in dtypes else torch.float32
        parts = [x.to(dtype) for x in parts]
    elif len(dtypes) > 1:
        dtypes.discard(torch.bool)
        parts = [x.to(torch.int64) for x in parts]
    return _computable(torch.cat(parts, dim=1))


def _computable(x: Tensor) -> Tensor:
    """Return rows in a dtype that alphabets have: float32, float64, bool or int32.

    `ConfigError` for whole numbers that int32 does not have.
    """
    if x.is_floating_point():
        return x if x.dtype == torch.float64 else x.to(torch.float32)
    if x.dtype == torch.bool:
        return x
    whole = x.to(torch.int32)
    fits = bool((whole == x).all())
    require("rows", "larger whole numbers", fits, "floats, or whole numbers in -2**31 .. 2**31 - 1")
    return whole
