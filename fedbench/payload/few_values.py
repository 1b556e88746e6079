"""Floats of which few differ: a table of them, and which one each coordinate has."""

from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedbench.core.errors import IllegalPayloadError
from fedbench.payload.base import Payload, Spec, require_form
from fedbench.payload.entropy_coding import code_entropy, decode_entropy
from fedbench.payload.packets import BitString, Bytes, Packet, cut, floats_of, number_bytes

Patterns = npt.NDArray[np.int32]  # bits of floats
Places = npt.NDArray[np.int64]

MAX_TABLE = 1024
PROBED_COORDINATES = 1 << 14  # coordinates whose values are those of all, as a rule


@dataclass(frozen=True, eq=False)
class FewValues(Payload):
    """``x (n, d)`` float32 whose first ``coded`` coordinates take few values; exact, bit by bit.

    On the wire 16 bits with the number V of these values, 32 bits of each, the coordinates behind
    the first as floats, and the first as `code_entropy` codes the places of their values in the
    table: at most about log2 V bits each. Where that is not shorter than floats, or V is above
    `MAX_TABLE`, V is 0 and all coordinates are floats.

    The table says which values there are, so it holds whatever a server's rule has answered: the
    mean of K bits has K + 1 values, a median or a trimmed mean fewer, a rule that weights clients
    up to one for each coordinate.
    """

    x: Tensor
    coded: int

    def check(self) -> None:
        require_form(self, x=("d", torch.float32))
        if not 0 <= self.coded <= self.x.shape[1]:
            width = self.x.shape[1]
            raise IllegalPayloadError(f"FewValues.coded must be in [0, {width}], got {self.coded}")

    def values(self) -> Tensor:
        return self.x

    def nearest(self, values: Tensor) -> Self:
        return type(self)(values.to(torch.float32), self.coded)

    def parts(self) -> list[BitString]:
        return list(_coded(self.x[0], self.coded))

    @classmethod
    def decode_row(cls, packet: Packet, spec: Spec) -> Self:
        (d,) = spec["x"]
        coded = spec["coded"]
        head, data = cut(packet, 2)
        count = int.from_bytes(head.tobytes(), "little")
        if count:
            _, table, rest, words = cut(packet, 2, 4 * count, 4 * (d - coded))
            first = _looked_up(table.view("<i4"), words, coded)
            return cls(torch.cat([floats_of(first.view(np.uint8)), floats_of(rest)], dim=1), coded)
        if len(data) != 4 * d:
            raise IllegalPayloadError(f"{d} floats must fill {4 * d} bytes, got {len(data)}")
        row = cls(floats_of(data), coded)
        if row.encode()[0].data != packet.data:
            raise IllegalPayloadError("floats must be coded by their values where that is shorter")
        return row


def _looked_up(table: Patterns, words: Bytes, count: int) -> Patterns:
    """Return the ``count`` patterns at the places in a table that `_coded` wrote."""
    places = decode_entropy(words, count, len(table) - 1)
    if bool((places < 0).any()):
        raise IllegalPayloadError("places in a table must be at least 0")
    unused = np.bincount(places, minlength=len(table)).min() == 0
    shorter = len(table) <= MAX_TABLE and 4 * len(table) + len(words) < 4 * count
    if unused or not shorter or bool((np.diff(table.astype(np.int64)) <= 0).any()):
        raise IllegalPayloadError(
            f"a table must have at most {MAX_TABLE} values in ascending order, all of them "
            "used, and be shorter than floats"
        )
    return table[places]


def _coded(row: Tensor, coded: int) -> tuple[BitString, BitString, BitString, BitString]:
    """Return the number of values, the table, the other floats and the places of ``row (d,)``."""
    patterns = np.ascontiguousarray(row[:coded].numpy()).view(np.int32)  # 0.0 is not -0.0
    table, places = _tabled(patterns)
    count = len(table)
    if 0 < count <= MAX_TABLE:
        words, bits = code_entropy(places, count - 1)
        if 32 * count + bits < 32 * coded:
            values = number_bytes(torch.from_numpy(table.view(np.float32))[None])
            rest = number_bytes(row[None, coded:])
            return _number(count), values, rest, (words, bits)
    floats = number_bytes(row[None])
    nothing = np.zeros(0, dtype=np.uint8)
    return _number(0), (nothing, 0), floats, (nothing, 0)


def _tabled(patterns: Patterns) -> tuple[Patterns, Places]:
    """Return the different patterns in ascending order, and the place of each in that table."""
    table = np.unique(patterns[:PROBED_COORDINATES])
    places = np.searchsorted(table, patterns).clip(max=max(len(table) - 1, 0))
    if np.array_equal(table[places], patterns):  # as a rule: no sort of all of them
        return table, places
    table, places = np.unique(patterns, return_inverse=True)
    return table, places


def _number(count: int) -> BitString:
    return np.frombuffer(count.to_bytes(2, "little"), dtype=np.uint8), 16
