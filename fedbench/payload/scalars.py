"""Scalars along public random directions, and those that a client has missed."""

import dataclasses
from dataclasses import dataclass
from typing import Self
from zlib import crc32

import numpy as np
import torch
from torch import Tensor

from fedbench.core.errors import IllegalPayloadError
from fedbench.core.order_statistics import largest
from fedbench.payload import packets as wire
from fedbench.payload.base import Payload, Spec, require_form
from fedbench.payload.packets import BitString, Packet


@dataclass(frozen=True, eq=False)
class Scalars(Payload):
    """``x (n, k)`` float32, the coordinates along ``k`` directions that a public seed draws.

    At most ``most`` of a row are not 0. If ``most`` is small against ``k``, a message is a list of
    pairs, the number of a direction in `index_width` bits and its scalar in 32; else it is all
    scalars, 32 k bits. Both ends can tell which. No seed travels: the directions are public. A row
    of zeros is the pair of the first direction, since a message of no bytes is none.

    `values` are the scalars and not the vectors of weights that they stand for. All rows have the
    same directions, so a mean of scalars is that of the vectors; d-dimensional Gaussian directions
    have ``Z Z^T = d I`` but for a share of about ``sqrt(k / d)``, so norms, distances and angles
    are those of the vectors up to one factor; and no rule or attack costs more than O(k) a row. A
    rule that works on single coordinates works on single directions.
    """

    x: Tensor  # 0, and never -0, where nothing is sent
    most: int  # largest number of scalars of a row that are not 0

    @property
    def paired(self) -> bool:
        """Whether a message says which scalars it holds, because that is shorter."""
        width = self.x.shape[1]
        return paired(width, self.most)

    def check(self) -> None:
        require_form(self, x=("k", torch.float32))
        if bool(((self.x == 0) & torch.signbit(self.x)).any()):
            raise IllegalPayloadError("Scalars.x must hold no -0; add 0 to it")
        counts = (self.x != 0).sum(dim=1)
        if bool((counts > self.most).any()):
            raise IllegalPayloadError(
                f"Scalars.x must hold at most {self.most} scalars a row that are not 0, got "
                f"{int(counts.max())}"
            )

    def values(self) -> Tensor:
        return self.x

    def nearest(self, values: Tensor) -> Self:
        """Return the ``most`` largest magnitudes; among equals the lowest direction."""
        x = values.to(torch.float32) + 0.0  # -0 becomes 0
        if self.most < x.shape[1]:
            magnitudes = x.abs().nan_to_num(nan=torch.inf, posinf=torch.inf)
            x = torch.where(largest(magnitudes, self.most), x, 0.0)
        return dataclasses.replace(self, x=x)

    def parts(self) -> list[BitString]:
        if not self.paired:
            return [wire.number_bytes(self.x)]
        row = self.x[0]
        index = row.nonzero()[:, 0] if bool(row.any()) else torch.zeros(1, dtype=torch.int64)
        numbers = wire.pack(index.numpy(), wire.index_width(len(row)))
        return [wire.number_bytes(row[None, index]), numbers]

    @classmethod
    def decode_row(cls, packet: Packet, spec: Spec) -> Self:
        (k,) = spec["x"]
        most = spec["most"]
        if not paired(k, most):
            (data,) = wire.split(packet, [32 * k])
            row = cls(wire.floats_of(data), most)
            row.check()
            return row
        width = wire.index_width(k)
        count = 8 * len(packet.data) // (32 + width)  # padding is shorter than a pair
        data, numbers = wire.split(packet, [32 * count, width * count])
        index = wire.unpack(numbers, count, width)
        ascending = bool((np.diff(index) > 0).all()) and bool((index < k).all())
        if not 1 <= count <= most or not ascending:
            raise IllegalPayloadError(
                f"pairs must be 1 to {most}, of ascending numbers below {k}, got {count}"
            )
        scalars = wire.floats_of(data)[0]
        nothing = count == 1 and int(index[0]) == 0 and data.tobytes() == bytes(4)
        if not nothing and bool((scalars == 0).any()):
            raise IllegalPayloadError("a pair must hold a scalar that is not 0")
        x = torch.zeros(1, k)
        x[0, torch.from_numpy(index.astype(np.int64))] = scalars
        return cls(x, most)


def paired(k: int, most: int) -> bool:
    """Return whether ``most`` pairs are shorter than ``k`` scalars.

    >>> paired(4096, 200), paired(10, 10), paired(4096, 2979), paired(4096, 2978)
    (True, False, False, True)
    """
    return most * (32 + wire.index_width(k)) < 32 * k


class History(bytes):
    """Scalars of all rounds so far, as little-endian float32: those that a client may have missed.

    >>> History.of(torch.tensor([1.0, 2.0])).scalars().tolist()
    [1.0, 2.0]
    """

    @classmethod
    def of(cls, scalars: Tensor) -> Self:
        """Return the history of ``scalars (T,)`` float32."""
        return cls(scalars.cpu().numpy().astype("<f4").tobytes())

    def scalars(self) -> Tensor:
        """Return the scalars ``(T,)`` float32."""
        return wire.floats_of(np.frombuffer(self, dtype=np.uint8))[0]

    def __repr__(self) -> str:
        """Return a short text: a public form is printed where two of them differ."""
        return f"History({crc32(self):08x})"


@dataclass(frozen=True, eq=False)
class MissedScalars(Payload):
    """``x (n, T)`` float32, all scalars of a history of which a row sends its ``missed`` last ones.

    On the wire 32 bits for each of these. A row's first scalars are ``known``: its receiver was
    sent them in earlier rounds.
    """

    aligned = False

    x: Tensor
    missed: Tensor  # ``(n, 1)`` int64, how many travel
    known: History

    def _travels(self) -> Tensor:
        """Return which scalars travel, ``(n, T)`` bool."""
        width = self.x.shape[1]
        return torch.arange(width, device=self.x.device) >= width - self.missed

    def check(self) -> None:
        agreed = self.known.scalars().to(self.x)
        require_form(self, x=(len(agreed), torch.float32), missed=(1, torch.int64))
        if bool(((self.missed < 0) | (self.missed > len(agreed))).any()):
            raise IllegalPayloadError(f"MissedScalars.missed must be in [0, {len(agreed)}]")
        if bool(((self.x != agreed) & ~self._travels()).any()):
            raise IllegalPayloadError("MissedScalars.x must be what is known where nothing travels")

    def values(self) -> Tensor:
        return self.x

    def nearest(self, values: Tensor) -> Self:
        x = torch.where(self._travels(), values.to(torch.float32), self.known.scalars().to(self.x))
        return dataclasses.replace(self, x=x)

    def parts(self) -> list[BitString]:
        row = self.x[0]
        return [wire.number_bytes(row[None, len(row) - int(self.missed[0, 0]) :])]

    @classmethod
    def decode_row(cls, packet: Packet, spec: Spec) -> Self:
        agreed = spec["known"].scalars()
        count = len(packet.data) // 4
        if count > len(agreed):
            raise IllegalPayloadError(f"scalars must be at most {len(agreed)}, got {count}")
        (data,) = wire.split(packet, [32 * count])
        x = torch.cat([agreed[: len(agreed) - count], wire.floats_of(data)[0]])
        return cls(x[None], torch.tensor([[count]]), spec["known"])
