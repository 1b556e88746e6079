"""Floats behind gates: what a closed gate governs is zero, and is not sent."""

import math
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from fedbench.core.errors import IllegalPayloadError
from fedbench.payload.base import Payload, Spec, require_width
from fedbench.payload.fields import behind, float_bytes, floats_of, placed
from fedbench.payload.packets import Packet, join, split

Governor = tuple[int, int, int]  # axis, first gate, coordinates a gate
Gating = tuple[tuple[tuple[int, ...], tuple[Governor, ...]], ...]  # of each layer: shape, governors


def governed(gates: Tensor, layers: Gating) -> Tensor:
    """``(n, d)``: for each coordinate the product of those of ``gates (n, G)`` that govern it.

    Of bools that is "all open", of independent probabilities the probability of that. A governor
    ``(axis, start, repeat)`` puts coordinate ``i`` along ``axis`` behind gate
    ``start + i // repeat``; a layer without governors is always open.

    >>> two_by_three = ((2, 3), ((0, 0, 1), (1, 2, 1)))  # a gate each row, then one each column
    >>> governed(torch.tensor([[1, 0, 1, 0, 1]]).bool(), (two_by_three,)).int().tolist()
    [[1, 0, 1, 0, 0, 0]]
    """
    n, parts = len(gates), []
    for shape, governors in layers:
        product = gates.new_ones(n, *(1 for _ in shape))
        for axis, start, repeat in governors:
            own = gates[:, start : start + shape[axis] // repeat].repeat_interleave(repeat, dim=1)
            along = [1] * len(shape)
            along[axis] = shape[axis]
            product = product * own.reshape(n, *along)
        parts.append(product.expand(n, *shape).reshape(n, math.prod(shape)))
    return torch.cat(parts, dim=1) if parts else gates[:, :0]


@dataclass(frozen=True, eq=False)
class GatedVectors(Payload):
    """``gates (n, G)`` bool, ``x (n, d)`` float32 behind them, ``rest (n, p)`` float32 behind none.

    On the wire 32 bits for each open coordinate of ``x`` and each of ``rest``, then G bits of
    gates: rows are of different length, and that is what gates save.

    Args:
        gates: Which are open.
        x: Zero where a gate is closed.
        rest: Parameters that have no gate; often ``p = 0``.
        layers: Of each layer of ``x`` its shape and the gates that govern it, see `governed`.
    """

    gates: Tensor
    x: Tensor
    rest: Tensor
    layers: Gating

    def is_open(self) -> Tensor:
        """``(n, d)`` bool."""
        return governed(self.gates, self.layers)

    def check(self) -> None:
        """Shapes, and nothing behind a closed gate."""
        d = sum(math.prod(shape) for shape, _ in self.layers)
        require_width("GatedVectors.gates", self.gates, self.gates.shape[1], torch.bool)
        require_width("GatedVectors.x", self.x, d, torch.float32)
        require_width("GatedVectors.rest", self.rest, self.rest.shape[1], torch.float32)
        if bool(((self.x != 0) & ~self.is_open()).any()):
            raise IllegalPayloadError("GatedVectors.x must be 0 behind a closed gate")

    @property
    def aligned(self) -> bool:
        """False: gates come first, and updates have none."""
        return False

    def origin(self) -> Tensor:
        """1/2 for gates, and 0 for floats."""
        origin = super().origin()
        origin[: self.gates.shape[1]] = 0.5
        return origin

    def opposite(self, values: Tensor, scale: float = 1.0) -> Tensor:
        """The same gates, and the floats mirrored at 0."""
        g = self.gates.shape[1]
        return torch.cat([values[:, :g], -scale * values[:, g:]], dim=1)

    def values(self) -> Tensor:
        """``(n, G + d + p)`` float32: gates as 0 or 1, then the floats."""
        return torch.cat([self.gates.to(torch.float32), self.x, self.rest], dim=1)

    def nearest(self, values: Tensor) -> Self:
        """A gate is open above 1/2, then ``x`` is what is behind open gates.

        Gates first: what is closest in L2 over both is a combinatorial problem where two gates
        govern a coordinate, and would weigh gates by the scale of the weights. NaN closes.
        """
        g, d = self.gates.shape[1], self.x.shape[1]
        gates = values[:, :g] > 0.5
        x = values[:, g : g + d].to(torch.float32)
        x = torch.where(governed(gates, self.layers), x, torch.zeros_like(x))
        return type(self)(gates, x, values[:, g + d :].to(torch.float32), self.layers)

    def encode(self) -> list[Packet]:
        """Floats, then gates."""
        g, packets = self.gates.shape[1], []
        rows = zip(self.gates, self.x, self.is_open(), float_bytes(self.rest), strict=True)
        for gates, x, is_open, rest in rows:
            bitmap = np.packbits(gates.cpu().numpy())
            packets.append(join([float_bytes(behind(is_open, x)[None])[0], rest, (bitmap, g)]))
        return packets

    @classmethod
    def decode_row(cls, packet: Packet, spec: Spec) -> Self:
        """Rejects whatever has not exactly the floats of its open gates, and non-zero padding."""
        (g,), (p,), layers = spec["gates"], spec["rest"], spec["layers"]
        floats = len(packet.data) - -(-g // 8)
        if floats < 4 * p or floats % 4:
            raise IllegalPayloadError(
                f"a gated vector must have {p} floats or more and {g} gates, "
                f"got {len(packet.data)} bytes"
            )
        entries, rest, bitmap = split(packet, [8 * floats - 32 * p, 32 * p, g])
        gates = torch.from_numpy(np.unpackbits(bitmap, count=g).astype(np.bool_))[None]
        is_open = governed(gates, layers)
        if int(is_open.sum()) * 4 != len(entries):
            raise IllegalPayloadError(
                f"a gated vector must have {int(is_open.sum())} floats behind its open gates, "
                f"got {len(entries) // 4}"
            )
        x = placed(is_open[0], floats_of(entries))
        return cls(gates, x, floats_of(rest)[None], layers)
